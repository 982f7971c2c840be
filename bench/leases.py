"""How much of a limit of calls at once is used, while messages of its keys wait: packed and solo, short calls and long.

What is right is `at_once` calls at work for each key. It is measured until nine tenths of the messages have begun,
because the last ones have nobody behind them. In `1000-of-10ms` most of those that wait are told when to ask again
before any call has ended, by a guess of 0.1 s a call.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from activities import Context, Done, Message, Pack, handler
from activities.api.limit import Limit
from activities.registry import Registry
from bench.harness import choose, fresh_server, new_prefix, report
from bench.serving import run_plan
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.starting.bulk import BulkStarter
from worker.run import WorkerPlan

AT_ONCE = 2
BEGUN_SHARE = 0.9
PATIENCE_SECONDS = 120.0
PACK = Pack(packs=2, size=1000, coalesce=timedelta(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """So many messages, spread over some keys; each call takes some seconds."""

    seconds: float
    messages: int
    keys: int = 1
    encoding: Pack | None = PACK


CASES = {
    "1000-of-1ms": Case(seconds=0.001, messages=1000),
    "1000-of-10ms": Case(seconds=0.01, messages=1000),
    "600-of-50ms": Case(seconds=0.05, messages=600),
    "20-keys": Case(seconds=0.05, messages=1000, keys=20),
    "200-of-200ms": Case(seconds=0.2, messages=200),
    "100-of-500ms": Case(seconds=0.5, messages=100),
    "solo": Case(seconds=0.05, messages=200, encoding=None),
}


@dataclass(slots=True)
class Calls:
    """When calls began and ended, in seconds of the monotonic clock."""

    expected: int
    spans: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    are_over: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, began: float) -> None:
        """Note a call that ends now."""
        self.spans.append((began, time.monotonic()))
        if len(self.spans) == self.expected:
            self.are_over.set()

    def find_use(self, places: int, begun: int) -> float:
        """Give the share of the places that was used until so many calls had begun."""
        spans = sorted(self.spans)
        first, _ = spans[0]
        until, _ = spans[min(begun, len(spans)) - 1]
        used = sum(min(end, until) - begin for begin, end in spans if begin < until)
        return used / (places * (until - first)) if until > first else 1.0


async def main(arguments: list[str]) -> None:
    """Measure all cases, or those that are named."""
    async with fresh_server() as server:
        client = await server.connect()
        rows = [await _measure(client, name, CASES[name]) for name in choose(arguments, CASES)]
    report("leases", rows, note=f"{AT_ONCE} at once for each key, one worker process", case=" ".join(arguments))


async def _measure(client: Client, name: str, case: Case) -> dict[str, Any]:
    calls = Calls(case.messages)
    settings = Settings(task_queue_prefix=new_prefix())
    kind = f"bench-{name}"
    limit = Limit(key=lambda message: message.payload, at_once=AT_ONCE)

    @handler(kind, encoding=case.encoding, limit=limit)
    async def work(message: Message, ctx: Context) -> Done:  # noqa: ARG001 — the shape of a handler
        began = time.monotonic()
        await asyncio.sleep(case.seconds)
        calls.note(began)
        return Done()

    encodings = {} if case.encoding is None else {kind: case.encoding}
    starter = BulkStarter(client, settings, encodings=encodings)
    envelopes = (
        Envelope(kind=kind, id=f"m{n}", lane="short", payload=f"key-{n % case.keys}") for n in range(case.messages)
    )
    async for _ in starter.start_all((None, envelope) for envelope in envelopes):
        pass

    began = time.monotonic()
    registry = Registry([("the bench", work)])
    plan = WorkerPlan(settings=settings, registry=registry, lanes=("short",), drain=timedelta(seconds=5))
    async with run_plan(client, plan):
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await calls.are_over.wait()
    return {
        "case": name,
        "messages": case.messages,
        "seconds a call": case.seconds,
        "called": len(calls.spans),
        "all after s": time.monotonic() - began,
        "used": calls.find_use(AT_ONCE * case.keys, round(BEGUN_SHARE * case.messages)),
    }
