"""An outbox: rows that an application commits become messages once, in order, and none blocks another."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client

from activities import Again, Context, Done, Message, handler
from activities.api.handler import Handler
from cluster.postgres import Postgres
from shared.settings import Settings
from starter.control import Control
from starter.extras.outbox.outbox import Outbox
from starter.starting.receipts import StartOutcome
from tests.conftest import Serve, wait_until
from tests.support.databases import run_postgres
from tests.support.outboxes import TableUnderTest, insert_row, run_outbox
from tests.support.subjects import PACK

Run = Callable[[], AbstractAsyncContextManager[Outbox]]
Calls = list[tuple[str, int, Any]]

LATER = datetime.now(UTC) + timedelta(days=300)


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """A PostgreSQL of this module's own."""
    with run_postgres() as running:
        yield running


@pytest.fixture
def rows(database: Postgres, kind: str) -> TableUnderTest:
    """An empty table of this test's own."""
    return TableUnderTest.make(database, kind.replace("-", "_"))


@pytest.fixture
def calls() -> Calls:
    """What the handler of `work` was called with: id, version and payload."""
    return []


@pytest.fixture
def work(kind: str, encoding: str, calls: Calls) -> Handler:
    """A handler that is done at payload "last", else comes back tomorrow."""

    @handler(kind, encoding=PACK if encoding == "pack" else None)
    async def work(message: Message, ctx: Context) -> Again | Done:
        calls.append((message.id, message.version, message.payload))
        return Done(message.payload) if message.payload == "last" else Again(after=timedelta(days=1))

    return work


@pytest.fixture
async def served(serve: Serve, work: Handler) -> AsyncIterator[Handler]:
    """The handler, with a worker that calls it."""
    async with serve(work, lanes=("short",)):
        yield work


@pytest.fixture
def run(client: Client, settings: Settings, rows: TableUnderTest, served: Handler) -> Run:
    """Run an outbox of the table, for messages that a worker serves."""
    return lambda: run_outbox(client, settings, rows, served)


async def wait_empty(rows: TableUnderTest) -> None:
    """Wait until no row is left."""
    await wait_until(lambda: not rows.read(), "no row is left")


async def test_rows_start_upsert_and_stop_messages(
    run: Run, control: Control, rows: TableUnderTest, kind: str, calls: Calls
) -> None:
    """With the fields of an envelope; nothing but a commit tells the outbox, and nothing is left of a row."""
    later: dict[str, Any] = {"kind": kind, "scheduled_at": LATER, "tenant": "acme", "priority": 2}
    async with run():
        rows.insert({"kind": kind, "id": "a", "payload": {"n": 1}}, later | {"id": "b"}, later | {"id": "c"})
        await wait_until(lambda: calls, "a runs")
        rows.insert(
            {"action": "upsert", "kind": kind, "id": "b", "payload": "sooner"},
            {"action": "stop", "kind": kind, "id": "c"},
            {"action": "upsert", "kind": kind, "id": "d", "payload": "new"},
        )
        await wait_until(lambda: len(calls) == 3, "b and d run")
        await wait_empty(rows)

    assert calls[0] == ("a", 0, {"n": 1})
    assert sorted(calls[1:]) == [("b", 0, "sooner"), ("d", 0, "new")]
    status = (await control.show(kind, "b")).status or {}
    assert (status["tenant"], status["priority"]) == ("acme", 3)


async def test_a_row_that_comes_again_does_nothing(run: Run, rows: TableUnderTest, kind: str, calls: Calls) -> None:
    """As when an outbox is killed between the server's answer and its own commit; also after the message's end."""
    again: list[dict[str, Any]] = [
        {"seq": 10, "action": "start", "kind": kind, "id": "started", "payload": "last"},
        {"seq": 11, "action": "upsert", "kind": kind, "id": "upserted", "payload": "last"},
    ]
    async with run() as outbox:
        for _ in range(3):
            rows.insert(*again)
            await wait_empty(rows)
            await wait_until(lambda: len(calls) == 2, "each runs once")
        rows.insert({"seq": 12, "action": "upsert", "kind": kind, "id": "started", "payload": "anew"})
        await wait_until(lambda: len(calls) == 3, "a newer row begins it anew")
        rows.insert(again[0])
        await wait_empty(rows)

    payloads = sorted((name, payload) for name, _, payload in calls)
    assert payloads == [("started", "anew"), ("started", "last"), ("upserted", "last")]
    assert outbox.counts[StartOutcome.FAILED] == outbox.counts[StartOutcome.REJECTED] == 0


async def test_a_start_leaves_what_is_known_and_an_upsert_begins_it_anew(
    run: Run, rows: TableUnderTest, kind: str, calls: Calls
) -> None:
    """A second start changes nothing, whether the message is alive or has been stopped."""
    name = {"kind": kind, "id": "a"}
    rows.insert(
        {**name, "payload": "first"},
        {**name, "payload": "ignored"},
        {**name, "action": "stop"},
        {**name, "payload": "ignored"},
        {**name, "action": "upsert", "payload": "anew"},
    )
    async with run():
        await wait_empty(rows)
        await wait_until(lambda: [payload for _, _, payload in calls][-1:] == ["anew"], "it has begun anew")

    assert {payload for _, _, payload in calls} <= {"first", "anew"}


async def test_rows_of_a_message_are_applied_in_their_order_by_several_outboxes(
    run: Run, control: Control, rows: TableUnderTest, kind: str
) -> None:
    """Whoever takes which: each message ends as its last row says."""
    names = [f"m{number}" for number in range(20)]
    last = {name: number % 3 == 0 for number, name in enumerate(names)}
    for step in range(4):
        rows.insert(
            *({"action": "upsert", "kind": kind, "id": name, "payload": step, "scheduled_at": LATER} for name in names)
        )
    rows.insert(*({"action": "stop", "kind": kind, "id": name} for name in names if last[name]))
    async with run(), run():
        await wait_empty(rows)
    statuses = [(await control.show(kind, name)).status or {} for name in names]

    assert [status["phase"] for status in statuses] == ["stopped" if last[name] else "active" for name in names]
    assert {status["payload"] for status in statuses if status["phase"] == "active"} == {3}


async def test_a_row_that_can_not_be_taken_blocks_none_and_waits_for_its_correction(
    run: Run, rows: TableUnderTest, kind: str, calls: Calls
) -> None:
    """It keeps its problem; later rows of its own message wait behind it, and all are taken once it is corrected."""
    first, *_ = rows.insert(
        {"kind": "nobody's", "id": "a"},
        {"kind": kind, "id": "b", "payload": "bad", "lane": "slow"},
        {"kind": kind, "id": "b", "payload": "behind", "action": "upsert"},
        {"kind": kind, "id": "c", "payload": "fine"},
        {"kind": kind, "id": "d", "scheduled_at": "infinity"},
        {"kind": kind, "id": "e", "payload": "x" * 50_000},
    )
    async with run() as outbox:
        await wait_until(lambda: calls == [("c", 0, "fine")], "the row without a problem has run")
        await wait_until(
            lambda: len(rows.read()) == 5 and rows.read("failed_at")[-1] != (None,), "the others are marked"
        )
        problems = rows.read("problem")
        with rows.connect() as application:
            application.execute(f"UPDATE {rows.table} SET lane = NULL WHERE lane = 'slow'".encode())  # noqa: S608
        await wait_until(lambda: ("b", 1, "behind") in calls or ("b", 0, "behind") in calls, "b runs, and what follows")
        await wait_until(lambda: len(rows.read()) == 3, "both rows are gone")

    said = [problem or "" for (problem,) in problems]
    assert said[0].startswith('kind: is "nobody\'s"; use lower-case letters')
    assert said[1].startswith("lane: is 'slow'; use one of short, medium, long")
    assert said[2] == ""
    assert said[3].startswith("scheduled_at: is 'infinity', not RFC 3339")
    assert said[4].startswith("payload: is 50002 bytes, the limit is 4096")
    assert outbox.counts[StartOutcome.REJECTED] == 4
    assert rows.read()[0] == (first,)


async def test_a_transaction_that_is_rolled_back_starts_nothing(
    run: Run, rows: TableUnderTest, kind: str, calls: Calls
) -> None:
    """The row and the application's own change stand or fall together."""
    async with run():
        with rows.connect() as application:
            application.execute("BEGIN")
            insert_row(application, rows.table, {"kind": kind, "id": "never"})
            rows.insert({"kind": kind, "id": "committed"})
            await wait_until(lambda: calls, "the other one runs")
            application.execute("ROLLBACK")
        rows.insert({"kind": kind, "id": "later"})
        await wait_until(lambda: len(calls) == 2, "and one that came later")
        await wait_empty(rows)

    assert [name for name, _, _ in calls] == ["committed", "later"]
