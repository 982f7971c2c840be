"""Telemetry: the only module that knows the OpenTelemetry SDK, which is imported when a setting asks for it."""

# ruff: noqa: PLC0415 — what is off must not be imported

import asyncio
import contextlib
import importlib
import logging
import os
import socket
from collections.abc import Callable, Generator, Iterable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from temporalio.runtime import (
    BUFFERED_METRIC_KIND_COUNTER,
    BUFFERED_METRIC_KIND_GAUGE,
    BufferedMetric,
    BufferedMetricUpdate,
    MetricBuffer,
    MetricBufferDurationFormat,
)

from shared.errors import InvalidSetting, Misconfigured
from shared.metrics import BRIDGE_METRICS, DURATION_BOUNDS, WORKER_METRICS, Metric, Reading
from shared.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader

Recorder = Callable[[float, Mapping[str, Any]], None]

logger = logging.getLogger(__name__)

CORE_UPDATES_MAX = 100_000
"""What the core may measure in a second."""

SHUTDOWN_MILLISECONDS = 5_000
"""What a receiver gets for the last push."""


class Telemetry:
    """Where a process tells what it measures; one that is off takes it and forgets it."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        """Whether anybody listens; who is off need not measure at all."""
        self._latest: Mapping[str, list[Reading]] = {}
        self._recorders: dict[str, Recorder] = {}
        self.core = MetricBuffer(CORE_UPDATES_MAX, MetricBufferDurationFormat.SECONDS) if is_on else None
        """What the SDK's core measures, for the runtime to fill; passed on once a second."""
        self.take_core: Callable[[BufferedMetricUpdate], None] = lambda _: None

    def publish(self, readings: Iterable[Reading]) -> None:
        """Take the readings of this moment in place of all earlier ones; a series that is left out ends."""
        latest: dict[str, list[Reading]] = {}
        for reading in readings:
            latest.setdefault(reading.metric.name, []).append(reading)
        self._latest = latest  # exporters read in threads of their own, so it is replaced and never changed

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Take something that has just happened: so many more of a counter or gauge, or one value of a histogram."""
        if (recorder := self._recorders.get(metric.name)) is not None:
            recorder(value, labels)

    async def pass_core_on(self) -> None:
        """Tell what the SDK's core measures as well, once a second; for ever, or not at all if nobody listens."""
        while self.core is not None:
            for update in self.core.retrieve_updates():
                self.take_core(update)
            await asyncio.sleep(1.0)

    def declare(self, name: str, recorder: Recorder) -> None:
        """Let `recorder` take what is recorded under a name."""
        self._recorders[name] = recorder

    def read(self, metric: Metric) -> list[Reading]:
        """Give what was published last; may be asked from any thread."""
        return self._latest.get(metric.name, [])


@contextlib.contextmanager
def start_telemetry(settings: Settings, service: str) -> Generator[Telemetry]:
    """Export what is published for the length of a `with` block, to Prometheus, an OTLP receiver, or both.

    Without a setting that asks for it nothing is imported and nothing runs. Raises InvalidSetting for an address that
    can't be had and Misconfigured when the package is missing.
    """
    if not settings.telemetry_prometheus and not settings.telemetry_otlp:
        yield Telemetry(is_on=False)
        return
    try:
        importlib.import_module("opentelemetry.sdk.metrics")
    except ImportError as exc:
        raise Misconfigured(
            "telemetry needs the OpenTelemetry SDK, which is missing; install dormice with the extra telemetry"
        ) from exc
    telemetry = Telemetry(is_on=True)
    with contextlib.ExitStack() as stack:
        readers: list[MetricReader] = []
        if settings.telemetry_prometheus:
            readers.append(stack.enter_context(_serve_prometheus(settings.telemetry_prometheus)))
        if settings.telemetry_otlp:
            readers.append(_push_otlp(settings.telemetry_otlp))
        provider = _build_provider(service, readers)
        stack.callback(provider.shutdown, SHUTDOWN_MILLISECONDS)  # pushes what was published last
        _declare(provider, telemetry)
        yield telemetry


def _build_provider(service: str, readers: "list[MetricReader]") -> "MeterProvider":
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

    instance = f"{socket.gethostname()}-{os.getpid()}"
    told = {"service.name": service, "service.version": version("dormice"), "service.instance.id": instance}
    # our processes leave without the interpreter's own exit
    return MeterProvider(readers, Resource.create(told), shutdown_on_exit=False)


def _declare(provider: "MeterProvider", telemetry: Telemetry) -> None:
    from opentelemetry.metrics import CallbackOptions, Observation

    meter = provider.get_meter("dormice")
    make: dict[str, Any] = {"gauge": meter.create_observable_gauge, "counter": meter.create_observable_counter}
    for metric in BRIDGE_METRICS:

        def observe(_: CallbackOptions, metric: Metric = metric) -> Iterable[Observation]:
            return [Observation(reading.value, reading.labels) for reading in telemetry.read(metric)]

        make[metric.kind](metric.name, [observe], metric.unit, metric.description)
    instruments = _Instruments(meter)
    for metric in WORKER_METRICS:
        telemetry.declare(metric.name, instruments.make(metric))
    telemetry.take_core = instruments.pass_on


class _Instruments:
    """Makes instruments that record as things happen, and passes on what the SDK's core has measured."""

    def __init__(self, meter: "Meter") -> None:
        self._meter = meter
        self._of_core: dict[str, Recorder] = {}

    def make(self, metric: Metric) -> Recorder:
        """Make the instrument of a metric."""
        name, unit, description = metric.name, metric.unit, metric.description
        if metric.kind == "counter":
            return self._meter.create_counter(name, unit, description).add
        if metric.kind == "gauge":
            return self._meter.create_up_down_counter(name, unit, description).add
        bounds = list(metric.bounds)
        return self._meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=bounds).record

    def pass_on(self, update: BufferedMetricUpdate) -> None:
        """Record one of the core's measurements under the name that it has there."""
        if (recorder := self._of_core.get(update.metric.name)) is None:
            recorder = self._of_core[update.metric.name] = self._make_of_core(update.metric)
        recorder(update.value, update.attributes)

    def _make_of_core(self, metric: BufferedMetric) -> Recorder:
        name, unit, description = metric.name, metric.unit or "", metric.description or ""
        if metric.kind == BUFFERED_METRIC_KIND_COUNTER:
            return self._meter.create_counter(name, unit, description).add
        if metric.kind == BUFFERED_METRIC_KIND_GAUGE:
            return self._meter.create_gauge(name, unit, description).set
        bounds = list(DURATION_BOUNDS)
        return self._meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=bounds).record


@contextlib.contextmanager
def _serve_prometheus(address: str) -> "Generator[MetricReader]":
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import REGISTRY, start_http_server

    host, port = _read_address(address)
    try:
        server, serving = start_http_server(port, host)
    except OSError as exc:
        raise InvalidSetting(
            f"telemetry_prometheus: {address} can't be opened ({exc.strerror}); give another port, or an address of "
            "this machine"
        ) from exc
    logger.info("metrics endpoint open", extra={"action": "metrics_open", "address": address})
    try:
        yield PrometheusMetricReader(scope_info_enabled=False, registry=REGISTRY)
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def shift_port(address: str, by: int) -> str:
    """Give the address whose port is so much higher, for one of several processes; one that is empty stays so."""
    if not address:
        return address
    host, port = _read_address(address)
    return f"{f'[{host}]' if ':' in host else host}:{port + by}"


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
