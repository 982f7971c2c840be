"""Part `bloat`: the same messages come back again and again, each cycle a change in the store, which grows with it."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from bench.peers.contestants import Contestant
from bench.peers.processes import fill, running
from bench.pollers.calls import Calls
from bench.pollers.stores import Reading, Store, run_stage

DELAY = (2.0, 3.0)
"""More comes back than any of them can run."""

WARMUP_SECONDS = 3.0
SAMPLES = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """How many calls had been made at a moment, and what the store had used by then."""

    at: float
    calls: int
    reading: Reading


async def measure_bloat(
    contestant: Contestant, messages: int, seconds: float, *, is_held: bool = False
) -> dict[str, Any]:
    """Let messages come back for so many seconds, beside a transaction left open where the store `is_held`."""
    async with run_stage(contestant, messages, DELAY) as (store, calls, order):
        await fill(order)
        async with store.held() if is_held else contextlib.nullcontext(), running("serve", order):
            samples = [sample async for sample in _take_samples(contestant, store, calls, seconds)]
    condition = ", beside an open transaction" if is_held else ""
    return {"who": contestant.title + condition, "messages": messages} | _describe(samples)


async def _take_samples(contestant: Contestant, store: Store, calls: Calls, seconds: float) -> AsyncGenerator[Sample]:
    """Look at calls and store at even intervals, from the first calls on."""
    while not calls.read_on():  # noqa: ASYNC110 — another process makes them
        await asyncio.sleep(0.1)

    await asyncio.sleep(WARMUP_SECONDS)
    began = time.monotonic()
    for number in range(SAMPLES + 1):
        await asyncio.sleep(began + number * seconds / SAMPLES - time.monotonic())
        at = time.monotonic()
        count = calls.read_on()
        sample = Sample(at - began, count, await store.read())
        print(f"{contestant.name}: {sample}", file=sys.stderr)
        yield sample


def _describe(samples: list[Sample]) -> dict[str, Any]:
    first, second, *_, second_last, last = samples
    used = last.reading.since(first.reading)
    cycles = max(1, last.calls - first.calls)

    return {
        "cycles/s first": _rate(first, second),
        "last": _rate(second_last, last),
        "cycles": cycles,
        "MB first": _megabytes(first.reading),
        "MB last": _megabytes(last.reading),
        "of it index": last.reading.index_bytes / 1e6,
        "dead rows": max(sample.reading.dead_rows for sample in samples),
        "log B/cycle": used.log_bytes / cycles,
        "store's cpu ms/cycle": 1000 * used.cpu_seconds / cycles,
    }


def _rate(before: Sample, after: Sample) -> float:
    return (after.calls - before.calls) / (after.at - before.at)


def _megabytes(reading: Reading) -> float:
    return (reading.table_bytes + reading.index_bytes) / 1e6
