"""Telemetry: what is published is told as declared, to whoever a setting names, and costs nothing without one."""

import http.server
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from shared.errors import InvalidSetting
from shared.metrics import BRIDGE_METRICS, LAG, REBALANCES, WORKER_METRICS, Reading
from shared.settings import Settings
from shared.telemetry import start_telemetry
from starter.embedded import find_free_port

ROOT = Path(__file__).parents[2]
FEEDS = {"group": "dormice", "topic": "feeds", "partition": "0"}
READINGS = [Reading(LAG, 7, FEEDS), Reading(REBALANCES, 2, {"group": "dormice"})]


def fetch(address: str) -> dict[str, float]:
    """Give the series of ours that an address tells."""
    lines = httpx.get(f"http://{address}/metrics", trust_env=False).text.splitlines()
    return {(found := line.rpartition(" "))[0]: float(found[2]) for line in lines if line.startswith("dormice_")}


def test_off_is_not_even_imported() -> None:
    """Nobody pays for what no setting asks for; what is published then is forgotten."""
    code = (
        "import sys\n"
        "from shared.settings import Settings\n"
        "from shared.telemetry import start_telemetry\n"
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


class Receiver(http.server.ThreadingHTTPServer):
    """A receiver of OTLP over HTTP on loopback."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.received: dict[str, ExportMetricsServiceRequest] = {}


class _Taking(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received[self.path] = ExportMetricsServiceRequest.FromString(body)
        self.send_response(HTTPStatus.OK)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — the overridden one's own word
        """Nobody reads it."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Receive for the length of a test."""
    with Receiver() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def test_a_receiver_gets_what_was_published_last_at_the_end_at_the_latest(receiver: Receiver) -> None:
    """With the unit and description of its declaration, under the name of the service."""
    settings = Settings(telemetry_otlp=f"http://127.0.0.1:{receiver.server_port}/")
    with start_telemetry(settings, "dormice-bridge") as telemetry:
        telemetry.publish(READINGS)

    ((path, request),) = receiver.received.items()
    (resource,) = request.resource_metrics
    told = {item.key: item.value.string_value for item in resource.resource.attributes}
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    lag = metrics[LAG.name]
    assert path == "/v1/metrics"
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


def test_metrics_are_declared_once_and_whole() -> None:
    """Each with a name of its own and a sentence."""
    metrics = (*BRIDGE_METRICS, *WORKER_METRICS)
    assert len({metric.name for metric in metrics}) == len(metrics)
    assert [metric.name for metric in metrics if not metric.description.endswith(".") or not metric.unit] == []
