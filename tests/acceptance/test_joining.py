"""Logs, metrics and traces join: one correlation id leads from the Kafka record to the event of its outcome."""

import json
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.local.kafka.broker import EmbeddedBroker
from tests.conftest import wait_until
from tests.support.processes import bridge_process, worker_process
from tests.support.receivers import Receiver, Seen, receiving
from tests.support.records import producing
from tests.support.topics import create_topic, read_records

pytestmark = pytest.mark.timeout(120)  # a bridge and a worker begin and end in it

KINDS = ("telling", "telling-packed")
PRODUCER = ("a1" * 16, "b2" * 8)


@pytest.fixture
async def topic(broker: EmbeddedBroker, kind: str) -> str:
    """A topic of the test's own, beside one for outcomes."""
    for name in (kind, outcomes_of(kind)):
        await create_topic(broker.address, name)
    return kind


def outcomes_of(topic: str) -> str:
    """Name the outcomes topic of a topic's records."""
    return f"{topic}.outcomes"


@pytest.fixture
def receiver(broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Let a test's processes send here: every message traced, all log lines as JSON, and outcomes to a topic."""
    with receiving() as server:
        told = {"TELEMETRY_OTLP": server.url, "TRACE_RATIO": "1", "LOG_FORMAT": "json", "LOG_LEVEL": "debug"}
        told |= {"OUTCOMES_TOPIC": outcomes_of(topic), "KAFKA_SERVERS": broker.address}
        for name, value in told.items():
            monkeypatch.setenv(f"DORMICE_{name}", value)
        yield server


def lines_about(path: Path, correlation_id: str) -> list[dict[str, Any]]:
    """Give the log lines that bear a correlation id."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("correlation_id") == correlation_id]


def find(lines: Iterable[dict[str, Any]], message: str) -> list[dict[str, Any]]:
    """Give the lines with that sentence."""
    return [line for line in lines if line["message"] == message]


def of(spans: Iterable[Seen], name: str, correlation_id: str) -> list[Seen]:
    """Give the spans of a name that bear a correlation id, in the order in which they began."""
    found = [s for s in spans if s.span.name == name and s.attributes["correlation_id"] == correlation_id]
    return sorted(found, key=lambda seen: seen.span.start_time_unix_nano)


async def test_one_correlation_id_joins_all_from_the_record_to_the_event(
    server: EmbeddedServer,
    broker: EmbeddedBroker,
    settings: Settings,
    receiver: Receiver,
    topic: str,
) -> None:
    """Log lines, spans and events of bridge and worker, of both encodings; the series have the same kind and lane."""
    async with producing(broker.address) as producer:
        for kind in KINDS:
            headers = [
                ("correlation_id", f"c-{kind}".encode()),
                ("traceparent", "-".join(("00", *PRODUCER, "00")).encode()),
            ]
            await producer.send_and_wait(topic, json.dumps({"kind": kind, "id": topic}).encode(), headers=headers)
    async with (
        worker_process(server, settings, "--lane", "short") as worker,
        bridge_process(server, broker, settings, topic) as bridge,
    ):

        async def events() -> list[Any]:
            found = await read_records(broker.address, outcomes_of(topic))
            return found if len(found) >= 2 * len(KINDS) else []

        told = await wait_until(events, "each cycle of each message is told")
        for process in (bridge, worker):
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0

    for kind in KINDS:
        correlation_id = f"c-{kind}"
        (record,) = of(receiver.spans, f"process {topic}", correlation_id)
        first, second = of(receiver.spans, f"cycle {kind}", correlation_id)
        assert (record.service, first.service) == ("dormice-bridge", "dormice-worker")
        assert (record.span.trace_id.hex(), record.span.parent_span_id.hex()) == PRODUCER
        assert record.attributes["outcome"] == "started"
        assert first.links == {"record": record.context}
        assert second.links == {"record": record.context, "previous cycle": first.context}

        said = lines_about(server.options.data / "bridge.log", correlation_id)
        (settled,) = find(said, "record settled")
        assert (settled["trace_id"], settled["span_id"]) == record.context
        assert settled["workflow_id"] == record.attributes["workflow_id"] == f"{kind}:{topic}"
        said = lines_about(server.options.data / "worker.log", correlation_id)
        for sentence in ("told by the handler", "told by a library", "cycle ended"):
            found = [(line["trace_id"], line["span_id"]) for line in find(said, sentence)]
            assert found == [first.context, second.context], sentence

        mine = [event for event in told if json.loads(event.value)["correlation_id"] == correlation_id]
        contexts = [tuple(dict(event.headers)["traceparent"].decode().split("-")[1:3]) for event in mine]
        assert contexts == [first.context, second.context]
        assert {(first.attributes["kind"], first.attributes["lane"], "again")} <= set(series(receiver))


def series(receiver: Receiver) -> Iterator[tuple[str, ...]]:
    """Give kind, lane and outcome of each series of cycles that was received."""
    for sent in receiver.metrics:
        for scope in sent.scope_metrics:
            for metric in scope.metrics:
                if metric.name == "dormice.cycles":
                    for point in metric.sum.data_points:
                        labels = {label.key: label.value.string_value for label in point.attributes}
                        yield labels["kind"], labels["lane"], labels["outcome"]
