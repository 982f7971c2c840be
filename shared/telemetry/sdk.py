"""Telemetry: the only module that knows the OpenTelemetry SDK, which is imported when a setting asks for it."""

# ruff: noqa: PLC0415 — what is off must not be imported

import asyncio
import contextlib
import functools
import logging
import os
import socket
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from temporalio import runtime

from shared.errors import InvalidSetting, check_extra
from shared.settings import Settings
from shared.telemetry.logs import ABOUT
from shared.telemetry.metrics import DURATION_BOUNDS, PUBLISHED_METRICS, WORKER_METRICS, Metric, MetricValue
from shared.telemetry.spans import NO_SPAN, NOTHING, Attributes, Carrier, Span, draw

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource

Recorder = Callable[[float, Mapping[str, Any]], None]
BeginSpan = Callable[[str, Attributes, Mapping[str, Carrier], Carrier], Span]

logger = logging.getLogger(__name__)

CORE_UPDATES_MAX = 100_000  # measurements that the SDK's core may buffer; the buffer is emptied once a second
SHUTDOWN_SECONDS = 5.0  # time that a receiver gets for the last metrics, and again for the last spans
SPANS_HELD_MAX = 4096  # spans that may wait for their receiver, about 10 MB; further spans are dropped
ATTRIBUTE_MAX = 1000  # characters of a span's attribute, so that long texts of handlers don't fill the receiver


class Telemetry:
    """Collects what a process measures; when it is off, everything is discarded."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on  # whether anything is exported; if not, callers need not measure
        seconds = runtime.MetricBufferDurationFormat.SECONDS
        # the runtime fills it with the core's measurements, which are passed on once a second
        self.core = runtime.MetricBuffer(CORE_UPDATES_MAX, seconds) if is_on else None
        self.make_recorder: Callable[[runtime.BufferedMetric], Recorder] = lambda _: _discard
        self.recorders: dict[str, Recorder] = {}  # by the name of what is recorded
        self.latest: Mapping[str, list[MetricValue]] = {}  # the readings published last, by name, for any thread
        self.ratio = 0.0  # the share of all messages that get spans, made by the next one
        self.span_maker: BeginSpan | None = None

    def publish(self, readings: Iterable[MetricValue]) -> None:
        """Replace all earlier readings with these; a series that is left out ends."""
        latest: dict[str, list[MetricValue]] = {}
        for reading in readings:
            latest.setdefault(reading.metric.name, []).append(reading)
        self.latest = latest  # exporters read from other threads: replaced, never changed in place

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Record an event: an increment of a counter or gauge, or one value of a histogram."""
        self.recorders.get(metric.name, _discard)(value, labels)

    def samples(self, workflow_id: bytes) -> bool:
        """Return whether a message gets spans; the answer is the same in every process."""
        return self.ratio > 0 and draw(workflow_id) < self.ratio

    def begin_span(
        self, name: str, attributes: Attributes, links: Mapping[str, Carrier] = NOTHING, parent: Carrier = NOTHING
    ) -> Span:
        """Begin a span, in its parent's trace or one of its own; `links` are earlier work elsewhere, by what it is."""
        return NO_SPAN if self.span_maker is None else self.span_maker(name, attributes, links, parent)

    async def pass_core_on(self) -> None:
        """Also record what the SDK's core measures, once a second, for ever; returns at once when telemetry is off."""
        while self.core is not None:
            for update in self.core.retrieve_updates():
                name = update.metric.name  # the core's own, which never begins with "dormice."
                if name not in self.recorders:
                    self.recorders[name] = self.make_recorder(update.metric)
                self.recorders[name](update.value, update.attributes)
            await asyncio.sleep(1.0)


@contextlib.contextmanager
def start_telemetry(settings: Settings, service: str) -> Generator[Telemetry]:
    """Export for the length of a `with` block, as the settings say; raises Misconfigured."""
    if not settings.telemetry_prometheus and not settings.telemetry_otlp:
        yield Telemetry(is_on=False)
        return
    check_extra("telemetry", "telemetry", "opentelemetry.sdk", "opentelemetry.exporter")
    from opentelemetry.sdk.metrics import MeterProvider

    telemetry = Telemetry(is_on=True)
    with contextlib.ExitStack() as stack:
        readers: list[MetricReader] = []
        if settings.telemetry_prometheus:
            readers.append(stack.enter_context(_serve_prometheus(settings.telemetry_prometheus)))
        if settings.telemetry_otlp:
            readers.append(_push_otlp(settings.telemetry_otlp))
        resource = _describe_process(service)
        # our processes end with os._exit, which runs no exit handlers
        provider = MeterProvider(readers, resource, shutdown_on_exit=False)
        stack.callback(provider.shutdown, SHUTDOWN_SECONDS * 1000)  # pushes what was published last
        _declare(provider.get_meter("dormice"), telemetry)
        if settings.telemetry_otlp and settings.trace_ratio:
            telemetry.span_maker = stack.enter_context(_trace(resource, settings.telemetry_otlp))
            telemetry.ratio = settings.trace_ratio
        yield telemetry


def _describe_process(service: str) -> "Resource":
    from opentelemetry.sdk.resources import Resource

    instance = f"{socket.gethostname()}-{os.getpid()}"
    return Resource.create(
        {"service.name": service, "service.version": version("dormice"), "service.instance.id": instance}
    )


def _declare(meter: "Meter", telemetry: Telemetry) -> None:
    from opentelemetry.metrics import CallbackOptions, Observation

    make: dict[str, Any] = {"gauge": meter.create_observable_gauge, "counter": meter.create_observable_counter}
    for metric in PUBLISHED_METRICS:

        def observe(_: CallbackOptions, metric: Metric = metric) -> Iterable[Observation]:
            return [Observation(reading.value, reading.labels) for reading in telemetry.latest.get(metric.name, ())]

        make[metric.kind](metric.name, [observe], metric.unit, metric.description)
    for metric in WORKER_METRICS:
        telemetry.recorders[metric.name] = _make_recorder(meter, metric)
    telemetry.make_recorder = functools.partial(_make_recorder, meter)


def _make_recorder(meter: "Meter", metric: Metric | runtime.BufferedMetric) -> Recorder:
    about = metric.name, metric.unit or "", metric.description or ""
    if metric.kind in ("counter", runtime.BUFFERED_METRIC_KIND_COUNTER):
        return meter.create_counter(*about).add
    if metric.kind == "gauge":
        return meter.create_up_down_counter(*about).add
    if metric.kind == runtime.BUFFERED_METRIC_KIND_GAUGE:
        return meter.create_gauge(*about).set
    bounds = metric.bounds if isinstance(metric, Metric) else DURATION_BOUNDS
    return meter.create_histogram(*about, explicit_bucket_boundaries_advisory=list(bounds)).record


def _discard(_value: float, _labels: Mapping[str, Any]) -> None:
    pass


@contextlib.contextmanager
def _serve_prometheus(address: str) -> "Generator[MetricReader]":
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import REGISTRY, start_http_server

    host, port = _read_address(address)
    try:
        server, serving = start_http_server(port, host)
    except OSError as exc:
        raise _cannot_open(address, exc) from exc
    logger.info("metrics endpoint open", extra={"action": "metrics_open", "address": address})
    try:
        yield PrometheusMetricReader(scope_info_enabled=False, registry=REGISTRY)
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def check_ports(address: str, processes: int) -> None:
    """Raise InvalidSetting unless each of `processes` processes can open its own port, from that of `address` on."""
    if not address:
        return

    for number in range(processes):
        own = shift_port(address, number)
        host, port = _read_address(own)
        try:
            family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            socket.create_server(place, family=family).close()
        except OSError as exc:
            raise _cannot_open(own, exc) from exc


def _cannot_open(address: str, exc: OSError) -> InvalidSetting:
    return InvalidSetting(
        f"telemetry_prometheus: {address} can't be opened ({exc.strerror}); give another port, or an address of "
        "this machine; several processes take a port each, from that on"
    )


def shift_port(address: str, by: int) -> str:
    """Give `address` with its port raised by `by`, for one of several processes; an empty address stays empty."""
    if not address:
        return address
    host, port = _read_address(address)
    name = f"[{host}]" if ":" in host else host
    return f"{name}:{port + by}"


def _read_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise InvalidSetting(f"telemetry_prometheus: is {address!r}; write HOST:PORT, for example 127.0.0.1:9464")
    return host.strip("[]"), int(port)


def _push_otlp(url: str) -> "MetricReader":
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    if not url.startswith(("http://", "https://")):
        raise InvalidSetting(f"telemetry_otlp: is {url!r}; write a URL, for example http://localhost:4318")
    return PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{url.rstrip('/')}/v1/metrics"))


@contextlib.contextmanager
def _trace(resource: "Resource", url: str) -> Generator[BeginSpan]:
    """Send spans in batches from a thread of their own, and the rest at the end.

    Spans of libraries are sent when they are children of ours, unless somebody has set up tracing already.
    """
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

    class Naming(SpanProcessor):
        """Adds the ids of the message to each span within a handler's call."""

        def on_start(self, span: Any, parent_context: object = None) -> None:  # noqa: ARG002 — as the SDK calls it
            if about := ABOUT.get():
                span.set_attributes(about.identity)

    exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=SHUTDOWN_SECONDS)
    sending = BatchSpanProcessor(exporter, max_queue_size=SPANS_HELD_MAX)
    limits = SpanLimits(max_span_attribute_length=ATTRIBUTE_MAX)

    def build(sampler: Any) -> TracerProvider:
        provider = TracerProvider(sampler, resource, shutdown_on_exit=False, span_limits=limits)
        for processor in (Naming(), sending):
            provider.add_span_processor(processor)
        return provider

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(build(ParentBased(ALWAYS_OFF)))
    try:
        yield functools.partial(_begin_span, build(ALWAYS_ON).get_tracer("dormice"))
    finally:
        # the SDK's own limit is 30 s; our processes end without waiting for their daemon threads
        ending = threading.Thread(target=sending.shutdown, daemon=True)
        ending.start()
        ending.join(SHUTDOWN_SECONDS)


def _begin_span(
    tracer: "trace.Tracer", name: str, attributes: Attributes, links: Mapping[str, Carrier], parent: Carrier
) -> Span:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    extract = TraceContextTextMapPropagator().extract
    found = [(what, get_current_span(extract(c, Context())).get_span_context()) for what, c in links.items()]
    valid = [Link(context, {"link": what}) for what, context in found if context.is_valid]
    span = tracer.start_span(name, extract(parent, Context()), SpanKind.CONSUMER, attributes, valid)
    return _SampledSpan(span) if span.is_recording() else NO_SPAN  # the SDK's own variables may switch it off


class _SampledSpan(Span):
    def __init__(self, span: "trace.Span") -> None:
        context = span.get_span_context()
        self._span = span
        self._left_by = ""
        self.ids = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
        self.traceparent = f"00-{self.ids['trace_id']}-{self.ids['span_id']}-{context.trace_flags:02x}"

    @contextlib.contextmanager
    def around(self) -> Generator[None]:
        from opentelemetry.trace import use_span

        with use_span(self._span, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except BaseException as exc:
                # whatever leaves the call only lends its name to the span; the caller gets it as it is
                self._left_by = type(exc).__name__
                raise

    def end(self, attributes: Attributes, error: str = "") -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes(attributes)
        if error:  # only the class: an exception's text may contain somebody's payload
            self._span.set_attribute("error.type", self._left_by or error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()
