"""Repair: what stands still because its workflow's task fails goes on, with its signals, and few calls made again."""

import asyncio
import contextlib
import pydoc
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from activities import Again, Context, Message, handler
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import pack_workflow_id, workflow_id
from shared.messages.signals import Reprioritize
from shared.packs.entry import ID
from shared.packs.names import AWAIT_CALLS
from shared.settings import Settings
from starter.control import Control
from starter.starting.bulk import BulkStarter
from starter.steering.status.failing_workflows import FailingWorkflow, find_standstill
from starter.steering.status.repairs import RepairResult, list_signals_since, repair
from tests.conftest import Serve, wait_until
from tests.support.subjects import declare
from workflows.packs.state import PackState

pytestmark = pytest.mark.timeout(120)

HOUR = timedelta(hours=1)
LATER = "2031-01-01T00:00:00Z"
BROKEN = {"solo": "workflows.message_workflow.MessageWorkflow.take", "pack": "workflows.packs.state.PackState.steer"}
"""What takes a signal in, to be broken on purpose."""


def fail(*_: Any, **__: Any) -> None:
    """Stand for what a bad release does with a signal."""
    raise RuntimeError("what a bad release says")


async def test_repair_calls_only_what_was_under_way_again_and_that_once(  # noqa: PLR0917 — fixtures
    client: Client,
    settings: Settings,
    serve: Serve,
    control: Control,
    kind: str,
    encoding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under the same idempotency key; a pack asks for calls that its worker still has in flight. The signal counts."""
    keys = Counter[str]()
    ended = Counter[str]()
    may_end = asyncio.Event()

    @handler(kind, lane="medium")
    async def work(message: Message, ctx: Context) -> Again:
        keys[ctx.idempotency_key] += 1
        if message.id == "slow":
            await may_end.wait()
        ended[message.id] += 1
        return Again(after=HOUR)

    name = pack_workflow_id(kind, 0) if encoding == "pack" else workflow_id(kind, "slow")
    later = datetime.now(UTC) + HOUR
    requests = [Envelope(kind=kind, id=name, lane="medium") for name in ("slow", "quick")]
    requests.append(Envelope(kind=kind, id="asleep", lane="medium", scheduled_at=later))
    starter = BulkStarter(client, settings, encodings=declare(encoding, kind, Pack(packs=1, coalesce=timedelta(0))))
    async with serve(work, lanes=("medium",), sandbox=False):
        assert len([receipt async for receipt in starter.start_all((None, wish) for wish in requests)]) == len(requests)
        await wait_until(lambda: ended["quick"] and sum(keys.values()) == 2, "one has finished, one is at work")
        if encoding == "pack":
            await wait_until(lambda: _is_answered(client, name), "its batch has answered")
        monkeypatch.setattr(BROKEN[encoding], fail)
        await client.get_workflow_handle(name).signal("reprioritize", {"ids": ["slow"], "priority": 1})
        failing = await wait_until(lambda: find_standstill(client, name), "its task fails")

        monkeypatch.undo()
        await repair(client, failing)
        may_end.set()

        async def has_gone_on() -> bool:
            status = (await control.show(kind, "slow")).status
            return status is not None and (status["version"], status["priority"]) == (1, 1)

        await wait_until(has_gone_on, "it has had its cycle, and the signal its effect")

    again = 1 if encoding == "pack" else 2
    assert keys == {f"{kind}:slow:0": again, f"{kind}:quick:0": 1}


async def test_repair_leaves_out_the_one_signal_that_does_the_harm(  # noqa: PLR0917 — fixtures
    client: Client,
    settings: Settings,
    serve: Serve,
    control: Control,
    kind: str,
    encoding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a release that can't bear it still at work; those that came before and after it have their effect."""

    @handler(kind)
    async def rest(message: Message, ctx: Context) -> Again:
        return Again(after=HOUR)

    name = pack_workflow_id(kind, 0) if encoding == "pack" else workflow_id(kind, "a")
    where, _, method = BROKEN[encoding].rpartition(".")
    workflow_class = pydoc.locate(where)
    sound = getattr(workflow_class, method)

    def take(owner: Any, *given: Any) -> None:
        if any(isinstance(each, Reprioritize) for each in given):
            fail()
        sound(owner, *given)

    starter = BulkStarter(client, settings, encodings=declare(encoding, kind, Pack(packs=1, coalesce=timedelta(0))))
    async with serve(rest, lanes=("short",), sandbox=False):
        await starter.start(Envelope(kind=kind, id="a", lane="short"), None)
        await wait_until(lambda: _has(control, kind, version=1), "it sleeps")
    monkeypatch.setattr(workflow_class, method, take)
    handle = client.get_workflow_handle(name)
    await handle.signal("reschedule", {"ids": ["a"], "due_at": LATER})
    await handle.signal("reprioritize", {"ids": ["a"], "priority": 1})
    async with serve(rest, lanes=("short",), sandbox=False):
        failing = await wait_until(lambda: find_standstill(client, name), "its task fails")
        await handle.signal("pause", {"ids": ["a"], "reason": "kept"})

        repaired = await repair(client, failing)

        assert repaired == RepairResult(repaired.run_id, ["reschedule", "pause"], ["reprioritize"])
        await wait_until(lambda: _has(control, kind, state="paused", priority=3), "the others had their effect")
        assert "2031-01-01" in str((await control.show(kind, "a")).status)


@pytest.mark.long
async def test_repair_leaves_out_the_signal_with_which_a_pack_began(
    client: Client, settings: Settings, serve: Serve, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack that could not do its first task begins anew, and takes in whatever else was sent to it."""
    ran = Counter[str]()

    @handler(kind, encoding=Pack(packs=1, coalesce=timedelta(0)))
    async def rest(message: Message, ctx: Context) -> Again:
        ran[message.id] += 1
        return Again(after=HOUR)

    sound = PackState.admit

    def admit(pack: PackState, chunk: dict[str, Any], now: float) -> None:
        if chunk["entries"][0][ID] == "bad":
            fail()
        sound(pack, chunk, now)

    monkeypatch.setattr(PackState, "admit", admit)
    starter = BulkStarter(client, settings, encodings=declare("pack", kind, Pack(packs=1, coalesce=timedelta(0))))
    async with serve(rest, lanes=("short",), sandbox=False):
        starting = [asyncio.create_task(starter.start(Envelope(kind=kind, id="bad", lane="short"), None))]
        name = pack_workflow_id(kind, 0)
        failing = await wait_until(lambda: _find_standstill(client, name), "its first task fails")
        starting.append(asyncio.create_task(starter.start(Envelope(kind=kind, id="good", lane="short"), None)))
        await wait_until(lambda: _has_signals(client, failing, 2), "the other is there too")

        repaired = await repair(client, failing)

        assert (repaired.kept, repaired.left_out) == (["admit"], ["admit"])
        await wait_until(lambda: ran["good"], "the other runs")
        for task in starting:
            task.cancel()
    assert ran["bad"] == 0


async def _find_standstill(client: Client, name: str) -> FailingWorkflow | None:
    with contextlib.suppress(RPCError):  # it has yet to begin
        return await find_standstill(client, name)
    return None


async def _has_signals(client: Client, failing: FailingWorkflow, count: int) -> bool:
    return len(await list_signals_since(client, failing)) == count


async def _has(control: Control, kind: str, **fields: Any) -> bool:
    status = (await control.show(kind, "a")).status or {}
    return all(status.get(name) == value for name, value in fields.items())


async def _is_answered(client: Client, pack: str) -> bool:
    pending = (await client.get_workflow_handle(pack).describe()).raw_description.pending_activities
    return [activity.activity_type.name for activity in pending] == [AWAIT_CALLS]
