"""Repair: what stands still because its workflow's task fails goes on, with its signals, and few calls made again."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client

from activities import Again, Context, Message, handler
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import pack_workflow_id, workflow_id
from shared.packs.names import AWAIT_CALLS
from shared.settings import Settings
from starter.control import Control
from starter.starting.bulk import BulkStarter
from starter.steering.status.failing_workflows import find_standstill, repair
from tests.conftest import Serve, wait_until
from tests.subjects import declare

pytestmark = pytest.mark.timeout(120)

HOUR = timedelta(hours=1)
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
    keys, ended, may_end = Counter[str](), Counter[str](), asyncio.Event()

    @handler(kind, lane="medium")
    async def work(message: Message, ctx: Context) -> Again:
        keys[ctx.idempotency_key] += 1
        if message.id == "slow":
            await may_end.wait()
        ended[message.id] += 1
        return Again(after=HOUR)

    name = pack_workflow_id(kind, 0) if encoding == "pack" else workflow_id(kind, "slow")
    later = datetime.now(UTC) + HOUR
    wishes = [Envelope(kind=kind, id=name, lane="medium") for name in ("slow", "quick")]
    wishes.append(Envelope(kind=kind, id="asleep", lane="medium", scheduled_at=later))
    starter = BulkStarter(client, settings, encodings=declare(encoding, kind, Pack(packs=1, coalesce=timedelta(0))))
    async with serve(work, lanes=("medium",), sandbox=False):
        assert len([receipt async for receipt in starter.start_all((None, wish) for wish in wishes)]) == len(wishes)
        await wait_until(lambda: ended["quick"] and sum(keys.values()) == 2, "one has finished, one is at work")
        if encoding == "pack":
            await wait_until(lambda: _is_answered(client, name), "its batch has answered")
        monkeypatch.setattr(BROKEN[encoding], fail)
        await client.get_workflow_handle(name).signal("reprioritize", {"ids": ["slow"], "priority": 1})
        failing = await wait_until(lambda: find_standstill(client, name), "its task fails")

        await repair(client, failing)
        monkeypatch.undo()
        may_end.set()

        async def has_gone_on() -> bool:
            status = (await control.show(kind, "slow")).status
            return status is not None and (status["version"], status["priority"]) == (1, 1)

        await wait_until(has_gone_on, "it has had its cycle, and the signal its effect")

    again = 1 if encoding == "pack" else 2
    assert keys == {f"{kind}:slow:0": again, f"{kind}:quick:0": 1}


async def _is_answered(client: Client, pack: str) -> bool:
    pending = (await client.get_workflow_handle(pack).describe()).raw_description.pending_activities
    return [activity.activity_type.name for activity in pending] == [AWAIT_CALLS]
