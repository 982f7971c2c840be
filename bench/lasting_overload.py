"""Twice as much due as one worker can do, for half an hour: nothing waits much longer than the rest, no lane is late.

What a worker can do is measured first, with messages that are always overdue. Then so many more are started that twice
as much is due. A call takes 0.2 s, one in a hundred 10 s. A few messages live on another lane, with room of its own.
"""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any

from activities import Again, Context, Done, Message, handler
from activities.registry import Registry
from bench.harness import fresh_server, new_prefix, report
from bench.serving import run_plan
from shared.messages.envelope import Envelope
from shared.settings import Settings
from shared.telemetry.sdk import Telemetry
from starter.insight.doctor.deliveries import fetch_deliveries
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from worker.run import WorkerPlan

MINUTES = 30
TRIAL = "trial"
TRIED = 1_500
TRIED_SECONDS = 60.0
WARM_UP_SECONDS = 20.0
DELAY_SECONDS = 60.0
OTHERS = 30
"""Messages on lane `medium`."""


@dataclass(slots=True)
class Calls:
    """What handlers did: calls by minute, how late they were by lane, and when each message was due last."""

    began_at: float = field(default_factory=time.time)
    by_minute: Counter[int] = field(default_factory=Counter[int])
    late: dict[str, list[float]] = field(default_factory=lambda: {"short": [], "medium": []})
    due: dict[str, float] = field(default_factory=dict[str, float])
    is_trial_over: bool = False

    def note(self, message: Message, ctx: Context, next_due: float) -> None:
        """Note a call that begins."""
        now = time.time()
        self.late[message.lane].append(now - ctx.due_at.timestamp())
        if message.lane == "short":
            self.by_minute[int((now - self.began_at) // 60)] += 1
            self.due[message.id] = next_due

    def begin_anew(self) -> None:
        """Forget what was seen up to now, but not when messages are due."""
        self.began_at = time.time()
        self.by_minute.clear()
        for late in self.late.values():
            late.clear()


async def measure(minutes: float) -> None:
    """Measure what one worker can do, then the overload for so many minutes."""
    calls = Calls()
    settings = Settings(task_queue_prefix=new_prefix())

    @handler("bench", lane="short", timeout=timedelta(seconds=25))
    async def work(message: Message, ctx: Context) -> Again | Done:
        seconds = 10.0 if random.random() < 0.01 else 0.2
        delay = message.payload["delay"]
        calls.note(message, ctx, time.time() + seconds + delay)
        await asyncio.sleep(seconds)
        if calls.is_trial_over and message.id.startswith(TRIAL):
            del calls.due[message.id]
            return Done()
        return Again(after=timedelta(seconds=delay), tolerance=timedelta(0))

    async with fresh_server() as server:
        client = await server.connect()
        plan = WorkerPlan(
            settings=settings,
            registry=Registry([("the bench", work)]),
            lanes=("short", "medium"),
            drain=timedelta(seconds=5),
            telemetry=Telemetry(is_on=False),
        )
        async with run_plan(client, plan):
            starter = BulkStarter(client, settings)
            able = await _measure_ability(starter, calls)
            count = round(2 * able * DELAY_SECONDS)
            await _start(starter, "m", count, DELAY_SECONDS)
            await _start(starter, "other", OTHERS, DELAY_SECONDS, lane="medium")
            # each has to come back once, before any is as late as it will be
            await asyncio.sleep(3 * DELAY_SECONDS)
            calls.begin_anew()
            await asyncio.sleep(minutes * 60)
            row = _sum_up(calls, able, count, minutes)
            found = await fetch_deliveries(server.metrics_url)
    row |= {"taken too long to deliver": found.given_up, "lost deliveries": found.lost}
    report("overload", [row], note="one worker process, calls of 0.2 s, one in a hundred of 10 s", case="lasting")


async def _measure_ability(starter: BulkStarter, calls: Calls) -> float:
    """Give how many cycles a second the worker does of messages that are always overdue; then they end."""
    await _start(starter, TRIAL, TRIED, 1.0)
    await asyncio.sleep(WARM_UP_SECONDS)
    calls.begin_anew()
    await asyncio.sleep(TRIED_SECONDS)
    calls.is_trial_over = True
    return calls.by_minute.total() / TRIED_SECONDS


async def _start(starter: BulkStarter, name: str, count: int, delay: float, lane: str = "short") -> None:
    envelopes = (Envelope(kind="bench", id=f"{name}-{n}", lane=lane, payload={"delay": delay}) for n in range(count))
    async for receipt in starter.start_all((None, envelope) for envelope in envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt


def _sum_up(calls: Calls, able: float, count: int, minutes: float) -> dict[str, Any]:
    now = time.time()
    whole = [calls.by_minute[minute] for minute in range(int(minutes))]
    late = sorted(calls.late["short"])
    waiting = max((now - due for due in calls.due.values()), default=0.0)

    return {
        "messages": count,
        "can run/s": round(able, 1),
        "due/s": round(count / DELAY_SECONDS, 1),
        "cycles/s": round(len(late) / (minutes * 60), 1),
        "of best minute": round(sum(whole) / len(whole) / max(whole), 2),
        "late p50 s": round(median(late), 1),
        "late most s": round(late[-1], 1),
        "waits longest s": round(waiting, 1),
        "most of median": round(max(late[-1], waiting) / median(late), 2),
        "other lane late most s": round(max(calls.late["medium"]), 1),
    }
