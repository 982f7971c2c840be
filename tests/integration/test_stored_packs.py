"""Packs read without a worker: what their histories say is what the packs would answer, or is not claimed."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client

from activities import Again, Context, Done, Message, handler
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import pack_workflow_id
from shared.messages.signals import Reprioritize
from shared.packs.counts import COUNTS_MEMO, read_counts
from shared.settings import Settings
from starter.control import Control
from starter.insight.board.counts import KindCounts
from starter.starting.bulk import BulkStarter
from starter.steering.packs import packs
from starter.steering.packs.packs import Packs
from starter.steering.packs.queries import PackBusy, PackQueries
from starter.steering.selection import Selection
from starter.steering.sender import SignalCounts
from starter.steering.stored import memo_counts
from starter.steering.stored.read_ahead import read_ahead
from starter.steering.stored.stored_pack import read_stored
from tests.conftest import Serve, wait_until
from tests.support.subjects import names

pytestmark = pytest.mark.timeout(120)

MESSAGES = 30
PACK = Pack(packs=3, size=100, coalesce=timedelta(0))
LATER = datetime.now(UTC) + timedelta(hours=5)


async def fill(client: Client, settings: Settings, kind: str, **fields: Any) -> set[str]:
    """Start packed messages, those with an even number in a second chunk of their packs."""
    ids = [f"m{n}" for n in range(MESSAGES)]
    for part in (ids[1::2], ids[::2]):
        starter = BulkStarter(client, settings, encodings={kind: PACK})
        requests = [(None, Envelope(kind=kind, id=id_, lane="short", **fields)) for id_ in part]
        _ = [receipt async for receipt in starter.start_all(requests)]
    return set(ids)


async def test_packs_that_only_sleep_are_listed_and_counted_without_a_worker(
    client: Client, settings: Settings, kind: str, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker has ever run: the list is whole, and the number is "about", however many pages the index has."""
    monkeypatch.setattr(memo_counts, "PAGE_SIZE", 2)
    brief = Settings(task_queue_prefix=settings.task_queue_prefix, patience=timedelta(seconds=1))
    ids = await fill(client, brief, kind, scheduled_at=LATER)
    selection = Selection(kind=kind)
    await wait_until(lambda: is_indexed(client, kind), "all packs are indexed")

    listed = [message async for message in control.list(selection)]
    known = [each async for each in control.list_known(kind)]
    about = await control.estimate(selection)

    assert {message.id for message in listed} == {id_ for id_, _ in known} == ids
    assert all(message.state == "active" and message.due_at is not None for message in listed)
    assert (about.number, about.is_exact, about.uncounted) == (MESSAGES, False, 0)
    assert about.describe() == f"about {MESSAGES} messages"


@pytest.mark.parametrize("asked_max", [0, 200])
async def test_the_board_and_the_page_have_the_same_numbers(
    client: Client, settings: Settings, serve: Serve, kind: str, *, monkeypatch: pytest.MonkeyPatch, asked_max: int
) -> None:
    """By kind and in all, solo messages with packed ones, whether packs are asked or counted by their memos."""
    monkeypatch.setattr(packs, "ASKED_MAX", asked_max)

    @handler(kind, encoding=PACK)
    async def work(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(hours=1))

    async with serve(work, lanes=("short",)):
        await fill(client, settings, kind, scheduled_at=LATER)
        await wait_until(lambda: is_indexed(client, kind), "all packs are indexed")
        counts = KindCounts(client, Packs(client, settings), Selection(kind=kind))
        by_kind = await counts.read()
        totals = await counts.read_totals()

    assert by_kind[kind] == by_kind["all"]
    assert {state: count.number for state, count in totals.items()} == {"active": MESSAGES, "paused": 0, "parked": 0}
    assert [totals[state].number for state in totals] == [by_kind["all"][state].number for state in totals]
    assert [totals[state].is_exact for state in totals] == [by_kind["all"][state].is_exact for state in totals]
    assert totals["active"].is_exact == (asked_max > 0)


async def test_packs_that_a_worker_has_taken_in_are_listed_without_one(
    client: Client, settings: Settings, serve: Serve, kind: str, control: Control
) -> None:
    """They sleep and nobody serves them any more; what a worker writes beside messages changes none."""

    @handler(kind, encoding=PACK)
    async def work(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(hours=1))

    async def are_asleep() -> bool:
        return (await client.count_workflows(f"Kind = '{kind}' AND DueAt IS NOT NULL")).count == PACK.packs

    ids = await fill(client, settings, kind, scheduled_at=LATER)
    async with serve(work, lanes=("short",)):
        await wait_until(are_asleep, "all are taken in")

    assert {message.id async for message in control.list(Selection(kind=kind))} == ids
    assert {id_ async for id_, _ in control.list_known(kind)} == ids


async def is_indexed(client: Client, kind: str) -> bool:
    """Tell whether the index has all packs of a kind."""
    return (await client.count_workflows(f"Kind = '{kind}' AND WorkflowType = 'pack'")).count == PACK.packs


async def test_the_call_that_starts_a_pack_writes_its_counts(client: Client, settings: Settings, kind: str) -> None:
    """The memo counts the first chunk, and says that more may have come."""
    brief = Settings(task_queue_prefix=settings.task_queue_prefix, patience=timedelta(seconds=1))
    await fill(client, brief, kind, scheduled_at=LATER)

    memos = [await client.get_workflow_handle(pack_workflow_id(kind, n)).describe() for n in range(PACK.packs)]
    found = [read_counts((await memo.memo())[COUNTS_MEMO]) for memo in memos]

    assert all(counts is not None and counts.is_first for counts in found)
    assert sum(counts.alive for counts in found if counts is not None) == MESSAGES / 2
    assert all(counts.lanes["short"].next_due == int(LATER.timestamp()) for counts in found if counts is not None)


async def test_a_history_claims_no_more_than_it_says(
    client: Client, settings: Settings, serve: Serve, kind: str, control: Control
) -> None:
    """Batches that end nothing leave the ids known; when one has ended messages, a list and the pack agree on it."""
    calls: list[str] = []

    @handler(kind, encoding=PACK)
    async def work(message: Message, ctx: Context) -> Again | Done:
        calls.append(message.id)
        return Done() if message.payload == "ends" else Again(after=timedelta(hours=1))

    async with serve(work, lanes=("short",)):
        ids = await fill(client, settings, kind)
        await wait_until(lambda: len(calls) >= MESSAGES, "all have run")
        names = [pack_workflow_id(kind, n) for n in range(PACK.packs)]
        stored = [await read_stored(client, name) for name in names]
        for pack in stored:
            assert not pack.knows_ids or {id_ for id_, _ in pack.list_known()} <= ids
        starter = BulkStarter(client, settings, encodings={kind: PACK})
        await starter.start(Envelope(kind=kind, id="last", lane="short", payload="ends"), None)
        await wait_until(lambda: "last" in calls, "it has run")

        async def is_over() -> bool:
            return (await control.look_up(kind, "last")).state == "done"

        await wait_until(is_over, "it has ended")
        known = {each async for each in control.list_known(kind)}
        listed = {message.id: message.due_at async for message in control.list(Selection(kind=kind))}

    assert known == {(id_, "active") for id_ in ids} | {("last", "done")}
    assert listed.keys() == ids
    assert all(due is not None and due > datetime.now(UTC) + timedelta(minutes=30) for due in listed.values())


async def test_a_pack_that_is_busy_is_read_again_after_the_others(
    client: Client, settings: Settings, serve: Serve, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails no command, although it did not answer the first time; asked are packs whose messages were steered."""

    @handler(kind, encoding=PACK)
    async def work(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(hours=1))

    asked: list[bool] = []
    ask = PackQueries.ask

    async def ask_later(self: PackQueries, *arguments: Any, is_patient: bool = True) -> dict[str, Any]:
        asked.append(is_patient)
        if not is_patient and asked.count(False) == 1:
            raise PackBusy("a batch is at work")
        return await ask(self, *arguments, is_patient=is_patient)

    monkeypatch.setattr(PackQueries, "ask", ask_later)
    async with serve(work, lanes=("short",)):
        ids = await fill(client, settings, kind)
        control = Control(client, settings)
        await wait_until(lambda: has_run(control, kind), "all have run")
        await control.send_to_each(names(*((kind, id_) for id_ in ids)), Reprioritize(1), SignalCounts())
        asked.clear()
        assert {message.id async for message in control.list(Selection(kind=kind))} == ids

    assert asked.count(True) == 1


async def has_run(control: Control, kind: str) -> bool:
    """Tell whether all messages wait for their next run."""
    soon = datetime.now(UTC) + timedelta(minutes=1)
    dues = [message.due_at async for message in control.list(Selection(kind=kind))]
    return len(dues) == MESSAGES and all(due is not None and due > soon for due in dues)


async def test_reading_ahead_keeps_the_order_and_ends_with_the_first_error() -> None:
    """However long each takes; at most so many are under way at once, and the first alone."""
    under_way = 0
    maximum = [0]

    async def numbers() -> AsyncIterator[int]:
        for number in range(40):
            yield number

    async def read(number: int) -> int:
        nonlocal under_way
        under_way += 1
        maximum.append(max(maximum[-1], under_way))
        await asyncio.sleep(0 if number % 3 else 0.01)
        under_way -= 1
        if number == 30:
            raise ValueError("broken")
        return -number

    reading = read_ahead(numbers(), read, 8)
    assert [await anext(reading) for _ in range(30)] == [(n, -n) for n in range(30)]
    with pytest.raises(ValueError, match="broken"):
        await anext(reading)
    assert (maximum[1], maximum[-1]) == (1, 8)
