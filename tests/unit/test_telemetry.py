"""Telemetry: metrics are published as declared, to what a setting names, and cost nothing without one."""

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from shared.errors import InvalidSetting
from shared.settings import Settings
from shared.telemetry.metrics import LAG, PUBLISHED_METRICS, REBALANCES, WORKER_METRICS, MetricValue
from shared.telemetry.sdk import check_ports, start_telemetry
from shared.telemetry.spans import NO_SPAN
from starter.local.supervised_process import find_free_port
from tests.support.receivers import Receiver, receiving

ROOT = Path(__file__).parents[2]
FEEDS = {"group": "dormice", "topic": "feeds", "partition": "0"}
READINGS = [MetricValue(LAG, 7, FEEDS), MetricValue(REBALANCES, 2, {"group": "dormice"})]


def fetch(address: str) -> dict[str, float]:
    """Give the series of ours that an address publishes."""
    lines = httpx.get(f"http://{address}/metrics", trust_env=False).text.splitlines()
    return {(found := line.rpartition(" "))[0]: float(found[2]) for line in lines if line.startswith("dormice_")}


def test_off_is_not_even_imported() -> None:
    """Nobody pays for what no setting asks for; what is published then is forgotten."""
    code = (
        "import sys\n"
        "from shared.settings import Settings\n"
        "from shared.telemetry.sdk import start_telemetry\n"
        "with start_telemetry(Settings(), 'test') as telemetry:\n"
        "    assert not telemetry.is_on\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"


def test_prometheus_fetches_what_was_published_last() -> None:
    """Under Prometheus' own kind of names; a series that ended is not told any more, nor anything after the end."""
    address = f"127.0.0.1:{find_free_port()}"
    with start_telemetry(Settings(telemetry_prometheus=address), "test") as telemetry:
        before = fetch(address)
        telemetry.publish(READINGS)
        first = fetch(address)
        telemetry.publish(READINGS[1:])
        second = fetch(address)
    with pytest.raises(httpx.ConnectError):
        fetch(address)

    lag = 'dormice_bridge_lag{group="dormice",partition="0",topic="feeds"}'
    assert before == {}
    assert first == {lag: 7, 'dormice_bridge_rebalances_total{group="dormice"}': 2}
    assert set(first) - set(second) == {lag}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Receive for the length of a test."""
    with receiving() as server:
        yield server


def test_a_receiver_gets_what_was_published_last_at_the_end_at_the_latest(receiver: Receiver) -> None:
    """With the unit and description of its declaration, under the name of the service."""
    with start_telemetry(Settings(telemetry_otlp=f"{receiver.url}/"), "dormice-bridge") as telemetry:
        telemetry.publish(READINGS)

    (resource,) = receiver.metrics
    told = {item.key: item.value.string_value for item in resource.resource.attributes}
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    lag = metrics[LAG.name]
    assert receiver.refused == []
    assert told["service.name"] == "dormice-bridge"
    assert set(metrics) == {LAG.name, REBALANCES.name}
    assert (lag.unit, lag.description, lag.gauge.data_points[0].as_int) == (LAG.unit, LAG.description, 7)
    assert metrics[REBALANCES.name].sum.is_monotonic


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (Settings(telemetry_prometheus="9464"), "telemetry_prometheus: is '9464'; write HOST:PORT, for example"),
        (Settings(telemetry_prometheus="h:0"), "telemetry_prometheus: is 'h:0'; write HOST:PORT, for example"),
        (Settings(telemetry_prometheus="192.0.2.1:9464"), "telemetry_prometheus: 192.0.2.1:9464 can't be opened ("),
        (Settings(telemetry_otlp="localhost:4318"), "telemetry_otlp: is 'localhost:4318'; write a URL, for example"),
    ],
    ids=["no host", "no port", "not ours", "no URL"],
)
def test_an_address_that_can_not_be_had_is_named(settings: Settings, sentence: str) -> None:
    """One sentence, with what to write instead."""
    with pytest.raises(InvalidSetting, match=f"^{re.escape(sentence)}"), start_telemetry(settings, "test"):
        pass


def test_a_port_that_is_taken_is_named() -> None:
    """By whatever program."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with (
            pytest.raises(InvalidSetting, match=f"^telemetry_prometheus: {address} can't be opened"),
            start_telemetry(Settings(telemetry_prometheus=address), "test"),
        ):
            pass


def test_the_ports_of_all_processes_are_checked() -> None:
    """The first that can't be had is named; none is kept open, and a setting that is off needs none."""
    free = f"127.0.0.1:{find_free_port()}"
    check_ports(free, 1)
    check_ports(free, 1)
    check_ports("", 2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(InvalidSetting, match=f"^telemetry_prometheus: {address} can't be opened"):
            check_ports(address, 2)
    with pytest.raises(InvalidSetting, match=re.escape("is '127.0.0.1:65536'; write HOST:PORT")):
        check_ports("127.0.0.1:65535", 2)


def test_metrics_are_declared_once_and_whole() -> None:
    """Each with a name of its own and a sentence."""
    metrics = (*PUBLISHED_METRICS, *WORKER_METRICS)
    assert len({metric.name for metric in metrics}) == len(metrics)
    assert [metric.name for metric in metrics if not metric.description.endswith(".") or not metric.unit] == []


IDS = [f"feed:{number:07}".encode() for number in range(100_000)]


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.3, 1.0])
def test_a_share_of_all_messages_is_sampled_and_always_the_same(receiver: Receiver, ratio: float) -> None:
    """However alike their ids are: one that is sampled in one process is sampled in each."""
    settings = Settings(telemetry_otlp=receiver.url, trace_ratio=ratio)
    with start_telemetry(settings, "bridge") as bridge, start_telemetry(settings, "worker") as worker:
        sampled = [name for name in IDS if bridge.samples(name)]

        assert len(sampled) == pytest.approx(ratio * len(IDS), rel=0.1)
        assert sampled == [name for name in IDS if worker.samples(name)]


def test_without_a_receiver_nothing_is_sampled() -> None:
    """Prometheus takes no traces."""
    address = f"127.0.0.1:{find_free_port()}"
    with start_telemetry(Settings(telemetry_prometheus=address, trace_ratio=1.0), "test") as telemetry:
        assert telemetry.is_on
        assert not telemetry.samples(b"feed:1")
        assert telemetry.begin_span("cycle feed", {}) is NO_SPAN


def test_a_span_is_received_with_its_links_its_parent_and_its_error(receiver: Receiver) -> None:
    """A new trace, or part of its parent's; of an exception the class alone, of contexts those that can be read."""
    record = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-00", "tracestate": "vendor=1"}
    with start_telemetry(Settings(telemetry_otlp=receiver.url), "dormice-worker") as telemetry:
        root = telemetry.begin_span(
            "cycle feed", {"version": 3}, {"record": record, "previous cycle": {"traceparent": ""}}
        )
        with pytest.raises(ValueError, match="secret"), root.around():
            raise ValueError("secret")
        root.end({"outcome": "failed"}, "failed")
        child = telemetry.begin_span("process feeds", {}, parent=record)
        child.end({})

    seen = {span.span.name: span for span in receiver.spans}
    failed = seen["cycle feed"]
    processed = seen["process feeds"]
    assert failed.service == "dormice-worker"
    assert failed.attributes == {"version": 3, "outcome": "failed", "error.type": "ValueError"}
    assert failed.links == {"record": ("a" * 32, "b" * 16)}
    assert (failed.span.parent_span_id, failed.span.status.code) == (b"", Status.STATUS_CODE_ERROR)
    assert failed.span.status.message == ""
    assert root.traceparent.rpartition("-")[0] == "-".join(("00", *failed.context))
    assert root.ids == dict(zip(("trace_id", "span_id"), failed.context, strict=True))
    assert processed.span.trace_id.hex() == "a" * 32
    assert processed.span.parent_span_id.hex() == "b" * 16
    assert processed.span.trace_state == "vendor=1"
    assert processed.span.kind == Span.SPAN_KIND_CONSUMER
    assert b"secret" not in b"".join(span.span.SerializeToString() for span in receiver.spans)


def test_what_a_library_tells_is_sent_where_it_is_part_of_a_sampled_cycle(receiver: Receiver) -> None:
    """With the message's ids on it; its spans of other messages are dropped. In a process where nobody else traces."""
    code = (
        "from opentelemetry import trace\n"
        "from types import SimpleNamespace\n"
        "from shared.telemetry.logs import ABOUT\n"
        "from shared.settings import Settings\n"
        "from shared.telemetry.sdk import start_telemetry\n"
        f"with start_telemetry(Settings(telemetry_otlp={receiver.url!r}), 'test') as telemetry:\n"
        "    library = trace.get_tracer('library')\n"
        "    library.start_span('alone').end()\n"
        "    ABOUT.set(SimpleNamespace(identity={'correlation_id': 'c-1'}))\n"
        "    cycle = telemetry.begin_span('cycle feed', {})\n"
        "    with cycle.around(), library.start_as_current_span('request'):\n"
        "        pass\n"
        "    cycle.end({})\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)

    seen = {span.span.name: span for span in receiver.spans}
    assert set(seen) == {"request", "cycle feed"}
    assert seen["request"].span.parent_span_id.hex() == seen["cycle feed"].context[1]
    assert seen["request"].attributes == {"correlation_id": "c-1"}


@pytest.mark.long
def test_a_receiver_that_never_answers_holds_nobody_up() -> None:
    """Neither while spans are sent nor for long at the end."""
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = Settings(telemetry_otlp=f"http://127.0.0.1:{silent.getsockname()[1]}", trace_ratio=1.0)
        with start_telemetry(settings, "test") as telemetry:
            for _ in range(3000):
                telemetry.begin_span("cycle feed", {}).end({})
        still_sending = set(threading.enumerate()) - before

    assert still_sending  # so they were not waited for, which would take half a minute
    for thread in still_sending:
        thread.join()  # they give up as nobody listens any more; until then they would disturb other tests
