"""A process under measurement: batches of 500 through the activity, by turns with bare tasks; prints JSON."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from statistics import median
from typing import Any

import uvloop
from temporalio.testing import ActivityEnvironment

from activities import Again, Context, Message, handler
from activities.admission.gates import Gates
from activities.admission.limits import Limits
from activities.calls.batch import BatchDispatch
from activities.calls.dispatch import Dispatch
from activities.http.client import HttpClient
from activities.registry import Registry
from shared.messages.message import Decision, MessageState
from shared.packs.entry import Entry, to_entry
from shared.settings import Settings
from shared.telemetry.sdk import Telemetry
from worker.process import tune_memory

SIZE = 500


class OpenGates(Gates):
    """Gates that nobody closes: what is measured here has no server to read them from."""

    async def keep_fresh(self, now: float) -> None:
        """Take all gates for open, for ever."""
        self.fresh_until = now + timedelta(days=1).total_seconds()


async def measure(io_seconds: float, rounds: int) -> dict[str, float]:
    """Give the processor microseconds of a batch per message that it ran, and of a bare task that sleeps as long."""

    @handler("bench")
    async def bench(message: Message, ctx: Context) -> Again:  # noqa: ARG001 — the shape of every handler
        nonlocal ran
        ran += 1
        if io_seconds:
            await asyncio.sleep(io_seconds)
        return Again(after=timedelta(seconds=10), tolerance=timedelta(seconds=1))

    async def sleep_alone() -> None:
        if io_seconds:
            await asyncio.sleep(io_seconds)

    ran = 0
    settings = Settings()
    environment = ActivityEnvironment()
    async with HttpClient(settings) as http:
        dispatch = Dispatch(
            Registry([("bench", bench)]),
            settings,
            http.get_session,
            OpenGates("bench"),
            Limits("bench"),
            Telemetry(is_on=False),
        )
        batches = BatchDispatch(dispatch)
        tune_memory()
        batch: list[float] = []
        bare: list[float] = []
        for _ in range(rounds):
            call = _make_call()
            ran = 0
            batch.append(await _time(lambda call=call: environment.run(batches.run_batch, call)) / SIZE)
            assert ran == SIZE, "there is a slot for each message"
            tasks = (asyncio.create_task(sleep_alone()) for _ in range(SIZE))
            bare.append(await _time(lambda tasks=tasks: asyncio.gather(*tasks)) / SIZE)
    return {"batch": median(batch), "bare": median(bare)}


async def _time(run: Callable[[], Awaitable[Any]]) -> float:
    began = time.process_time()
    await run()
    return 1e6 * (time.process_time() - began)


def _make_call() -> dict[str, Any]:
    now = time.time()
    older = {"batch": 1, "reached": now}  # what revisions read that knew no tokens
    return older | {
        "kind": "bench",
        "lane": "short",
        "token": f"run/{now}",
        "pack_lane": "short",
        "spread": [0.3, 1.0],
        "left_run": "",
        "begun_at": now,
        "entries": [_make_entry(n, now - 0.5) for n in range(SIZE)],
    }


def _make_entry(number: int, due_at: float) -> Entry:
    """Make a message that has run before and has a payload of 60 bytes, read from JSON as the activity gets it."""
    last = Decision(due_at - 10, 6, "again", due_at, "")
    payload = {"delay": 10.0, "url": "https://example.org/feeds/12345678901"}
    state = MessageState("bench", f"bench-{number}", "short", due_at, due_at - 5, due_at + 1, payload, 7)
    return json.loads(json.dumps(to_entry(state._replace(decisions=(last,)), "short")))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure(float(sys.argv[1]), int(sys.argv[2])))))
