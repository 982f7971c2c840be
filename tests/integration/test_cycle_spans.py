"""The traces of cycles on a real server and broker: each is one of its own, and names the one before it."""

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from temporalio.client import Client

from activities import Again, Context, Done, Message, RetryAfter, handler
from activities.api.handler import Handler
from shared.keepers.gates import GateClosure
from shared.settings import Settings
from shared.telemetry.sdk import start_telemetry
from starter.local.kafka.broker import EmbeddedBroker
from starter.steering.keepers import GateControl
from tests.conftest import Begin, serving, wait_until
from tests.support.receivers import Receiver, Seen, receiving
from tests.support.topics import create_topic, read_records

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

SECOND = timedelta(seconds=1)


@dataclass
class Traced:
    """Workers whose cycles are all traced, and what is received of them."""

    client: Client
    settings: Settings
    receiver: Receiver

    @contextlib.asynccontextmanager
    async def serve(self, work: Handler, **changes: Any) -> AsyncGenerator[None]:
        """Run workers with a handler for the length of an `async with` block; all has been received at its end."""
        settings = dataclasses.replace(self.settings, telemetry_otlp=self.receiver.url, trace_ratio=1.0, **changes)
        with start_telemetry(settings, "dormice-worker") as telemetry:
            async with serving(self.client, settings, work, lanes=("short",), telemetry=telemetry):
                yield

    @property
    def cycles(self) -> list[Seen]:
        """The cycles received, in the order in which they began."""
        found = [seen for seen in self.receiver.spans if seen.span.name.startswith("cycle ")]
        return sorted(found, key=lambda seen: seen.span.start_time_unix_nano)


@pytest.fixture
def traced(client: Client, settings: Settings) -> Iterator[Traced]:
    """Trace every cycle."""
    with receiving() as receiver:
        yield Traced(client, settings, receiver)


async def test_every_cycle_is_a_trace_that_names_the_one_before(
    traced: Traced, begin: Begin, broker: EmbeddedBroker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it comes to, in every encoding; its event, and the log line of a failure, bear its ids."""
    await create_topic(broker.address, kind)
    calls: list[tuple[int, int]] = []

    @handler(kind, max_attempts=2, backoff=SECOND)
    async def work(message: Message, ctx: Context) -> Again | Done:
        calls.append((message.version, ctx.attempt))
        match len(calls):
            case 1:
                return Again(after=SECOND, tolerance=timedelta(0))
            case 2:
                raise KeyError(message.id)
            case 3:
                raise RetryAfter(SECOND, "not yet")
            case _:
                return Done()

    async with traced.serve(work, outcomes_topic=kind, kafka_servers=broker.address):
        message = await begin(kind, correlation_id="c-1", tenant="t")
        await wait_until(lambda: len(calls) == 4, "all cycles ran")
    events = await read_records(broker.address, kind)

    first, failed, tried, done = cycles = traced.cycles
    told = ("version", "attempt", "outcome")
    assert [tuple(cycle.attributes[name] for name in told) for cycle in cycles] == [
        (0, 1, "again"),
        (1, 1, "failed"),
        (1, 2, "retry_after"),
        (1, 2, "done"),
    ]
    assert len({cycle.span.trace_id for cycle in cycles}) == 4
    assert [cycle.span.parent_span_id for cycle in cycles] == [b""] * 4
    assert first.links == {}
    for before, cycle in ((first, failed), (failed, tried), (tried, done)):
        assert cycle.links == {"previous cycle": before.context}
    assert {(c.attributes["workflow_id"], c.attributes["correlation_id"], c.attributes["tenant"]) for c in cycles} == {
        (f"{kind}:{message.id}", "c-1", "t")
    }
    assert [cycle.span.status.code == Status.STATUS_CODE_ERROR for cycle in cycles] == [False, True, False, False]
    assert failed.attributes["error.type"] == "KeyError"
    headers = [dict(event.headers)["traceparent"].decode().split("-")[1:3] for event in events]
    assert [tuple(ids) for ids in headers] == [cycle.context for cycle in cycles]
    (line,) = [record for record in caplog.records if record.message == "cycle failed"]
    assert (line.__dict__["trace_id"], line.__dict__["span_id"]) == failed.context
    assert (line.__dict__["correlation_id"], line.__dict__["outcome"]) == ("c-1", "failed")


async def test_what_a_closed_gate_sends_away_is_no_cycle(traced: Traced, begin: Begin, kind: str) -> None:
    """It has no trace; the first cycle after it has one like any other."""
    ran: list[str] = []

    @handler(kind, gate=kind)
    async def work(message: Message, ctx: Context) -> Done:
        ran.append(message.id)
        return Done()

    gates = GateControl(traced.client, traced.settings)
    await gates.close(kind, GateClosure.lasting(timedelta(seconds=4)))
    async with traced.serve(work):
        message = await begin(kind)
        await wait_until(lambda: ran == [message.id], "it ran once the gate was open")

    (cycle,) = traced.cycles
    assert cycle.attributes["outcome"] == "done"
