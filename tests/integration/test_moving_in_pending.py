"""The export for the way back: what is at work when its kind is paused is waited for."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta

from activities import Again, Context, Message, handler
from starter.control import Control
from tests.conftest import Serve, Start
from tests.moving_in import Move


async def test_the_export_waits_for_a_handler_at_work(
    move: Callable[..., Move], start: Start, control: Control, serve: Serve, kind: str
) -> None:
    """Nothing may be exported before its handler has returned: what it does counts, and so does its next due time."""
    moving, began, may_end = move("The way back"), asyncio.Event(), asyncio.Event()

    @handler(kind)
    async def run(message: Message, ctx: Context) -> Again:
        began.set()
        await may_end.wait()
        return Again(after=timedelta(hours=1), payload={"calls": 1})

    async with serve(run, lanes=("short",)):
        await start(kind, "a")
        await began.wait()
        await control.pause(kind, "a")
        export = moving.run("python -m examples.moving_in.pending export reminder --to pending.jsonl")
        exporting = asyncio.create_task(export)
        await asyncio.wait([exporting], timeout=3)
        has_waited = not exporting.done()
        may_end.set()
        await exporting

    (line,) = (moving.folder / "pending.jsonl").read_text().splitlines()
    assert has_waited
    assert json.loads(line)["id"] == "a"
    assert json.loads(line)["payload"] == {"calls": 1}
