"""Upserts: one call starts a message, moves and revises it while it is alive, and starts it anew once it has ended."""

import json
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities import Again, Context, Done, Message, handler
from activities.api.handler import Handler
from shared.errors import ConditionUnmet, InvalidEnvelope, MessageNotFound
from shared.messages.envelope import EnvelopeRules
from shared.settings import Settings
from starter.control import Control
from starter.files.load import Load, LoadOptions
from starter.files.rows import RowSource
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import Serve, wait_until
from tests.integration.test_control import registry_of
from tests.support.subjects import Subject, declare

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
SOON = LATER - timedelta(hours=12)
STARTED = StartOutcome.STARTED
REVISED = StartOutcome.REVISED
IGNORED = StartOutcome.IGNORED


@pytest.fixture
def sleeper(kind: str) -> Handler:
    """A handler that is done at the payload "last", else comes back tomorrow."""

    @handler(kind)
    async def sleep(message: Message, ctx: Context) -> Again | Done:
        return Done(message.payload) if message.payload == "last" else Again(after=timedelta(days=1))

    return sleep


@pytest.fixture
async def control(
    client: Client, settings: Settings, serve: Serve, sleeper: Handler, encoding: str
) -> AsyncIterator[Control]:
    """The verbs, while a worker serves the kind in the encoding of this run."""
    async with serve(sleeper, lanes=("short", "medium")):
        yield Control(client, settings, registry_of(sleeper, encoding))


@pytest.fixture
def message(client: Client, control: Control, kind: str, encoding: str) -> Subject:
    """The message of these tests, which is not there yet."""
    return Subject(client, control, encoding, kind, "a")


async def test_it_starts_then_changes_then_starts_anew(control: Control, message: Subject, kind: str) -> None:
    """Payload, lane, priority and moment are always those of the last upsert; nobody must know what there was."""
    wish = {"kind": kind, "id": "a", "lane": "short", "payload": 1, "scheduled_at": LATER}
    first = await control.upsert(wish)
    second = await control.upsert({**wish, "lane": "medium", "payload": 2, "priority": 1, "scheduled_at": SOON})
    status = await message.status()
    third = await control.upsert({"kind": kind, "id": "a", "payload": "last"})
    await message.wait_ended()
    fourth = await control.upsert({**wish, "payload": 4})

    assert [each.outcome for each in (first, second, third, fourth)] == [STARTED, REVISED, REVISED, STARTED]
    assert (status["payload"], status["lane"], status["priority"]) == (2, "medium", 1)
    assert (status["due_at_epoch"], status["revision"], status["version"]) == (SOON.timestamp(), 1, 0)
    await wait_until(lambda: message.has(payload=4, due_at_epoch=LATER.timestamp()), "it has begun anew")


async def test_a_repeated_key_changes_nothing(control: Control, message: Subject, kind: str) -> None:
    """Neither while the message is alive, whatever came between, nor after its end; another key does."""
    wish = {"kind": kind, "id": "a", "payload": 1, "scheduled_at": LATER}
    first = [await control.upsert({**wish, "payload": n, "idempotency_key": f"key {n}"}) for n in (1, 2)]
    again = [await control.upsert({**wish, "payload": n, "idempotency_key": f"key {n}"}) for n in (1, 2)]
    status = await message.status()
    await control.upsert({"kind": kind, "id": "a", "payload": "last", "idempotency_key": "end"})
    await message.wait_ended()
    late = await control.upsert({"kind": kind, "id": "a", "payload": "last", "idempotency_key": "end"})

    assert [each.outcome for each in first] == [STARTED, REVISED]
    assert (status["payload"], status["revision"]) == (2, 1)
    assert late.outcome is IGNORED
    assert (await control.look_up(kind, "a")).state == "done"
    assert [each.outcome for each in again] in ([STARTED, REVISED], [IGNORED, IGNORED])


async def test_a_condition_that_does_not_hold_changes_nothing(control: Control, message: Subject, kind: str) -> None:
    """It says how the message is instead; one that holds is as no condition."""
    wish = {"kind": kind, "id": "a", "payload": 1, "scheduled_at": LATER}
    await control.upsert(wish)
    with pytest.raises(ConditionUnmet, match=f"{kind}:a is at version 0 and due .* UTC, not at version 3; nothing"):
        await control.upsert({**wish, "payload": 2}, if_version=3)
    with pytest.raises(ConditionUnmet, match=f"not due before {SOON.date()}"):
        await control.upsert({**wish, "payload": 2}, if_due_before=SOON)
    unchanged = await message.status()
    receipt = await control.upsert(
        {**wish, "payload": 3}, if_version=0, if_due_before=LATER + timedelta(milliseconds=1)
    )

    assert (unchanged["payload"], unchanged["revision"], unchanged["due_at_epoch"]) == (1, 0, LATER.timestamp())
    assert receipt.outcome is REVISED
    assert await message.has(payload=3, revision=1)


async def test_a_condition_starts_nothing(control: Control, message: Subject, kind: str) -> None:
    """What is not alive, because it never was or because it has ended, meets none."""
    with pytest.raises(MessageNotFound):
        await control.upsert({"kind": kind, "id": "a"}, if_due_before=LATER)
    await control.upsert({"kind": kind, "id": "a", "payload": "last"})
    await message.wait_ended()
    with pytest.raises(MessageNotFound):
        await control.upsert({"kind": kind, "id": "a", "payload": 1}, if_version=0)

    assert (await control.look_up(kind, "a")).state == "done"


async def test_it_says_why_a_changed_message_does_not_run(control: Control, message: Subject, kind: str) -> None:
    """A paused one keeps what it was given until it is resumed; wrong fields are refused as at a start."""
    await control.upsert({"kind": kind, "id": "a", "scheduled_at": LATER})
    await control.pause(kind, "a")
    await wait_until(lambda: message.has(state="paused"), "it is paused")
    receipt = await control.upsert({"kind": kind, "id": "a", "payload": 2})

    assert receipt.reason.startswith(f"{kind}:a is paused and keeps the new due time; it runs once 'dormice resume")
    assert await message.has(payload=2, state="paused")
    with pytest.raises(InvalidEnvelope, match="priority: is 9; give a whole number"):
        await control.upsert({"kind": kind, "id": "a", "priority": 9})


async def test_a_file_is_upserted_once_until_it_changes(
    control: Control,
    client: Client,
    settings: Settings,
    message: Subject,
    tmp_path: Path,
    *,
    kind: str,
    encoding: str,
) -> None:
    """So an interrupted load is run again as ever; a row with a key of its own counts by that, and keeps its body."""
    file = tmp_path / "rows.jsonl"
    rows: list[dict[str, Any]] = [
        {"kind": kind, "id": "a", "payload": 1, "scheduled_at": LATER.isoformat()},
        {"kind": kind, "id": "b", "payload": 1, "scheduled_at": LATER.isoformat(), "idempotency_key": "b"},
    ]

    async def load() -> tuple[int, int, int]:
        starter = BulkStarter(client, settings, encodings=declare(encoding, kind), revises=True)
        rules = EnvelopeRules({kind: "short"})
        with RowSource(str(file)) as source:
            loading = Load(source, LoadOptions(rules=rules, rejects=tmp_path / "rejects", upserts=True))
            await loading.run(starter)
        summary = loading.summary
        return summary.started, summary.revised, summary.rejected + summary.failed

    def write() -> None:
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    write()
    assert await load() == (2, 0, 0)
    await load()
    assert await message.has(revision=0)
    rows[0]["payload"] = rows[1]["payload"] = 2
    write()
    os.utime(file, ns=(0, 0))  # a clock may be too coarse to show that it was changed
    assert (await load())[2] == 1
    assert json.loads((tmp_path / "rejects").read_text())["field"] == "idempotency_key"
    assert await message.has(payload=2, revision=1)
    other: Callable[..., Any] = Subject(client, control, encoding, kind, "b").has
    assert await other(payload=1, revision=0)
