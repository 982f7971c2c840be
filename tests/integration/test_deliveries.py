"""What a record asks of its message: done once, however often and however late the record comes again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle

from activities import Again, Context, Done, Message, handler
from shared.errors import ServerNotReady
from shared.messages.envelope import Envelope
from shared.messages.placement import workflow_id
from shared.settings import Settings
from starter.control import Control
from starter.starting.bulk import BulkStarter
from starter.starting.delivery import Delivery
from starter.starting.receipts import Receipt, StartOutcome
from tests.conftest import Serve, wait_until
from tests.support.subjects import Subject, declare

Deliver = Callable[..., Awaitable[Receipt[None]]]
Calls = list[tuple[int, Any]]

LATER = datetime.now(UTC) + timedelta(days=300)
TOMBSTONE = object()


@pytest.fixture
async def calls(serve: Serve, kind: str) -> AsyncIterator[Calls]:
    """Serve the kind with a handler that is done at payload "last", else comes back tomorrow; gives its calls."""
    calls: Calls = []

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Again | Done:
        calls.append((message.version, message.payload))
        return Done(message.payload) if message.payload == "last" else Again(after=timedelta(days=1))

    async with serve(work, lanes=("short",)):
        yield calls


@pytest.fixture
def deliver(client: Client, settings: Settings, kind: str, encoding: str, calls: Calls) -> Deliver:
    """Deliver a record of partition t/0 for one message."""
    starter = BulkStarter(client, settings, encodings=declare(encoding, kind), revises=True)

    async def deliver(
        name: str, offset: int, payload: Any = None, *, source: str = "t/0", **fields: Any
    ) -> Receipt[None]:
        is_stop = payload is TOMBSTONE
        envelope = None if is_stop else Envelope(kind=kind, id=name, lane="short", payload=payload, **fields)
        delivery = Delivery(kind, name, source, offset, envelope)
        async for receipt in starter.start_all([(None, delivery)]):
            return receipt
        raise AssertionError("a delivery without a receipt")

    return deliver


@pytest.fixture
def subject(client: Client, settings: Settings, kind: str, encoding: str) -> Callable[[str], Subject]:
    """Give the message of a name."""
    return lambda name: Subject(client, Control(client, settings), encoding, kind, name)


async def test_the_first_record_of_a_key_starts_its_message(
    deliver: Deliver, subject: Callable[[str], Subject], calls: Calls
) -> None:
    """It carries what the record said and where it came from."""
    receipt = await deliver("a", 5, "first", priority=2)
    await wait_until(lambda: calls == [(0, "first")], "the handler ran")
    status = await subject("a").status()

    assert (receipt.outcome, receipt.workflow_id) == (StartOutcome.STARTED, f"{subject('a').kind}:a")
    assert (status["sources"], status["priority"], status["payload"]) == ({"t/0": 5}, 2, "first")


async def test_a_records_trace_context_reaches_its_handler(
    client: Client, settings: Settings, serve: Serve, kind: str, encoding: str
) -> None:
    """First cycles have the context of the record that started the message, later ones of that which revised it."""
    parents = [f"00-{n:032x}-{n:016x}-01" for n in (1, 2)]
    seen: list[Mapping[str, str]] = []

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Again:
        seen.append(message.trace)
        return Again(after=timedelta(days=1))

    envelope = Envelope(kind=kind, id="a", lane="short", payload=None)
    starter = BulkStarter(client, settings, encodings=declare(encoding, kind), revises=True)
    async with serve(work, lanes=("short",)):
        for offset, parent in enumerate(parents):
            delivery = Delivery(kind, "a", "t/0", offset, envelope, {"traceparent": parent, "tracestate": "a=b"})
            async for _ in starter.start_all([(None, delivery)]):
                pass
            await wait_until(lambda count=offset: len(seen) > count, "the handler ran")

    assert seen == [{"traceparent": parent, "tracestate": "a=b"} for parent in parents]


async def test_a_newer_record_revises_and_an_older_one_does_nothing(
    deliver: Deliver, subject: Callable[[str], Subject], calls: Calls
) -> None:
    """Payload, moment and priority are those of the newest record of the source."""
    await deliver("a", 5, "old", scheduled_at=LATER, idempotency_key="one")
    await deliver("a", 9, "new", scheduled_at=LATER + timedelta(days=1), priority=1, idempotency_key="one")
    await deliver("a", 7, "late", priority=5)
    message = subject("a")
    await wait_until(lambda: message.has(payload="new", revision=1), "the newest record counts")
    status = await message.status()

    assert (status["sources"], status["priority"]) == ({"t/0": 9}, 1)
    assert status["due_at_epoch"] == pytest.approx((LATER + timedelta(days=1)).timestamp(), abs=0.002)
    assert calls == []


async def test_a_record_without_a_moment_runs_its_message_now(
    deliver: Deliver, subject: Callable[[str], Subject], calls: Calls
) -> None:
    """As it would if the key were new."""
    await deliver("a", 1, "old", scheduled_at=LATER)
    await deliver("a", 2, "new")

    await wait_until(lambda: calls == [(0, "new")], "the handler ran with the newer payload")
    assert await subject("a").has(sources={"t/0": 2})


async def test_the_same_record_ten_times_acts_once(deliver: Deliver, subject: Callable[[str], Subject]) -> None:
    """Alive or finished."""
    outcomes = {(await deliver("a", 5, "first", scheduled_at=LATER)).outcome for _ in range(10)}

    assert StartOutcome.STARTED in outcomes
    assert await subject("a").has(revision=0, payload="first", version=0)


async def test_a_tombstone_stops_its_message(deliver: Deliver, subject: Callable[[str], Subject]) -> None:
    """For good: the record before it, come again, does not bring it back; a newer one does."""
    await deliver("a", 5, "first", scheduled_at=LATER)
    stopped = await deliver("a", 6, TOMBSTONE)
    ended = await subject("a").wait_ended()
    await deliver("a", 5, "first", scheduled_at=LATER)
    tombstone_again = await deliver("a", 6, TOMBSTONE)
    still = await subject("a").wait_ended()
    anew = await deliver("a", 7, "second", scheduled_at=LATER)

    assert (stopped.outcome, ended["state"]) == (StartOutcome.STOPPED, "stopped")
    assert (tombstone_again.outcome, still["state"]) == (StartOutcome.IGNORED, "stopped")
    assert anew.outcome is StartOutcome.STARTED
    await wait_until(lambda: subject("a").has(payload="second", sources={"t/0": 7}), "it lives again")


async def test_a_tombstone_that_comes_again_late_stops_nothing(
    deliver: Deliver, subject: Callable[[str], Subject]
) -> None:
    """Start, delete, start; then a bridge that was killed reads the delete once more."""
    await deliver("a", 5, "first", scheduled_at=LATER)
    await deliver("a", 6, TOMBSTONE)
    await subject("a").wait_ended()
    await deliver("a", 7, "second", scheduled_at=LATER)
    await deliver("a", 6, TOMBSTONE)
    await deliver("a", 8, "third", scheduled_at=LATER)

    await wait_until(lambda: subject("a").has(payload="third", state="active"), "it is alive")


async def test_a_record_behind_a_tombstone_that_nobody_has_heard_begins_its_message_anew(
    client: Client, settings: Settings, serve: Serve, kind: str, encoding: str
) -> None:
    """While no worker is there the message gets both records; the newer one is not lost with the end."""
    seen: list[Any] = []

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Again:
        seen.append(message.payload)
        return Again(after=timedelta(days=1))

    starter = BulkStarter(client, settings, encodings=declare(encoding, kind), revises=True)

    async def deliver_all(*payloads: tuple[int, Any]) -> None:
        for offset, payload in payloads:
            envelope = None if payload is TOMBSTONE else Envelope(kind=kind, id="a", lane="short", payload=payload)
            async for _ in starter.start_all([(None, Delivery(kind, "a", "t/0", offset, envelope))]):
                pass

    async with serve(work, lanes=("short",)):
        await deliver_all((5, "first"))
        await wait_until(lambda: seen == ["first"], "it has run")
    delivering = asyncio.create_task(deliver_all((6, TOMBSTONE), (7, "second")))
    name = Subject(client, Control(client, settings), encoding, kind, "a").handle
    await wait_until(lambda: has_signals(name, 2 if encoding == "solo" else 1), "nobody hears what was taken")
    async with serve(work, lanes=("short",)):
        await delivering
        await wait_until(lambda: seen == ["first", "second"], "the newer record acts")


async def has_signals(workflow: WorkflowHandle[Any, Any], count: int) -> bool:
    """Say whether `count` signals lie in a history behind its last workflow task."""
    kinds = [event.event_type async for event in workflow.fetch_history_events()]
    done = [n for n, kind in enumerate(kinds) if kind == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    return kinds[done[-1] :].count(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED) >= count


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_record_waits_while_its_message_has_as_many_signals_as_the_server_keeps(
    client: Client, settings: Settings, serve: Serve, kind: str
) -> None:
    """Nobody needs to correct it: it is taken as soon as a worker has read the others."""

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(days=1))

    long_task = timedelta(seconds=60)  # which a busy machine may need for ten thousand signals; it is the default
    patient = replace(settings, patience=timedelta(0), workflow_task_timeout=long_task)
    starter = BulkStarter(client, patient, revises=True)

    async def deliver(offset: int) -> Receipt[None]:
        envelope = Envelope(kind=kind, id="a", lane="short", payload=offset, scheduled_at=LATER)
        return await starter.start(Delivery(kind, "a", "t/0", offset, envelope), None)

    async def signal(times: int) -> None:
        for _ in range(times):
            await client.get_workflow_handle(workflow_id(kind, "a")).signal("resume", {})

    await deliver(0)
    await asyncio.gather(*(signal(500) for _ in range(20)))
    refused = await deliver(1)
    async with serve(work, lanes=("short",)):
        taken = await wait_until(lambda: _take(deliver), "it takes a record", seconds=100)

    assert (refused.outcome, taken) == (StartOutcome.FAILED, StartOutcome.REVISED)
    assert "see that it has a worker" in refused.reason


async def _take(deliver: Callable[[int], Awaitable[Receipt[None]]]) -> StartOutcome | None:
    outcome = (await deliver(2)).outcome
    return None if outcome is StartOutcome.FAILED else outcome


async def test_a_tombstone_for_nobody_is_ignored(deliver: Deliver) -> None:
    """There is nothing to stop."""
    assert (await deliver("nobody", 5, TOMBSTONE)).outcome is StartOutcome.IGNORED


async def test_a_finished_notification_is_not_sent_again_for_the_same_record(
    deliver: Deliver, subject: Callable[[str], Subject], calls: Calls
) -> None:
    """Redelivered it does nothing; a newer record with its key starts it anew."""
    await deliver("a", 5, "last")
    await subject("a").wait_ended()
    again = await deliver("a", 5, "last")  # the server may answer it with the start that it made for it before
    other = await deliver("a", 3, "last", source="t/1")
    await wait_until(lambda: len(calls) == 2, "a record of another source is news")
    await subject("a").wait_ended()
    late = await deliver("a", 5, "last")
    newer = await deliver("a", 6, "last")

    assert again.outcome in (StartOutcome.STARTED, StartOutcome.IGNORED)
    assert late.outcome is StartOutcome.IGNORED
    assert (other.outcome, newer.outcome) == (StartOutcome.STARTED, StartOutcome.STARTED)
    await wait_until(lambda: calls == [(0, "last")] * 3, "it was sent once for each record that was new")


@pytest.mark.parametrize("encoding", ["solo"])  # packs are not terminated for the sake of a message
async def test_what_was_terminated_by_hand_stays_so_until_a_newer_record(
    deliver: Deliver, subject: Callable[[str], Subject]
) -> None:
    """Each record that its run was given counts as seen: the one that began it, and those that revised it."""
    await deliver("a", 7, "first", scheduled_at=LATER)
    await deliver("a", 9, "revised", scheduled_at=LATER)
    await deliver("a", 4, "of another partition", source="t/1", scheduled_at=LATER)
    handle = subject("a").handle
    await handle.signal("revise", {"source": "t/0", "offset": "no number", "payload": 1})
    await handle.terminate()
    await deliver("a", 7, "first", scheduled_at=LATER)  # the server may answer it with the start that it made before
    again = [await deliver("a", offset, "old", scheduled_at=LATER) for offset in (6, 8, 9)]
    again.append(await deliver("a", 4, "old", source="t/1", scheduled_at=LATER))

    assert [receipt.outcome for receipt in again] == [StartOutcome.IGNORED] * 4
    assert (await handle.describe()).status is WorkflowExecutionStatus.TERMINATED
    assert (await deliver("a", 10, "second", scheduled_at=LATER)).outcome is StartOutcome.STARTED
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING


@pytest.mark.parametrize("encoding", ["pack"])
async def test_a_revision_for_which_a_pack_has_no_room_is_refused(
    deliver: Deliver, client: Client, settings: Settings, kind: str
) -> None:
    """The sender gets an error, instead of a message that quietly stays as it was."""
    starter = BulkStarter(client, settings, encodings=declare("pack", kind), revises=True)
    large = "x" * 3900
    names = [f"m{n}" for n in range(900)]

    def deliveries(offset: int, payload: str) -> list[tuple[None, Delivery]]:
        envelopes = (Envelope(kind=kind, id=n, lane="short", payload=payload, scheduled_at=LATER) for n in names)
        return [(None, Delivery(kind, e.id, "t/0", offset, e)) for e in envelopes]

    first = [r.outcome async for r in starter.start_all(deliveries(1, "small"))]
    second = [r async for r in starter.start_all(deliveries(2, large))]

    assert set(first) == {StartOutcome.STARTED}
    assert {r.outcome for r in second} == {StartOutcome.REVISED, StartOutcome.REJECTED}
    assert {r.reason.partition(" in pack")[0] for r in second if r.reason} == {"the payload finds no room"}
    assert (await deliver("m0", 3, "small", scheduled_at=LATER)).outcome is StartOutcome.REVISED


async def test_a_server_that_does_not_know_its_namespace_has_not_said_that_a_message_is_missing(
    client: Client, settings: Settings, kind: str
) -> None:
    """As one that has just started: a tombstone is not taken for done, and no packed kind for one that is not."""
    stranger = Client(client.service_client, namespace="nowhere")
    starter = BulkStarter(stranger, replace(settings, patience=timedelta(seconds=1)), revises=True)

    with pytest.raises(ServerNotReady, match="Namespace nowhere is not found"):
        _ = [receipt async for receipt in starter.start_all([(None, Delivery(kind, "a", "t/0", 5))])]
