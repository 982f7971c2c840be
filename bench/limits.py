"""Limits per key: 10,000 keys, and one with 100,000 messages, all packed: the fullest minute, and the share used."""

import asyncio
import bisect
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from bench.harness import choose, fresh_server, new_prefix, noting, report
from bench.limited_handlers import HOT, KINDS, MANY, MINUTE, PER_MINUTE
from examples.ledger import Entry
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome

KEYS = {HOT: 1, MANY: 10_000}
MESSAGES = {MANY: 80_000, HOT: 100_000}
MEASURED_SECONDS = 120.0  # less than it takes to call all messages of any key
WINDOW = MINUTE.total_seconds()
WARM_UP_SECONDS = 75.0  # while all messages ask for the first time, the worker is too busy to be in time


async def main(arguments: list[str]) -> None:
    """Measure each kind on a server of its own, or only the one that is named (many or hot)."""
    kinds = {kind.rpartition("-")[2]: kind for kind in KEYS}
    note = "all due at once, in 40 packs; one worker process; calls counted by a ledger that the handlers keep"
    for name in choose(arguments, kinds):
        report("limits", [await _measure(kinds[name])], note=note, case=name)


async def _measure(kind: str) -> dict[str, Any]:
    async with fresh_server() as server:
        prefix = new_prefix()
        started = await _start(server, prefix, kind)
        async with noting(server, prefix, DORMICE_HANDLERS="bench.limited_handlers") as ledger:
            while not ledger.entries:  # noqa: ASYNC110 — another process keeps it
                await asyncio.sleep(0.5)
            begun = time.time()
            await asyncio.sleep(WARM_UP_SECONDS + MEASURED_SECONDS)
            entries = [entry for entry in ledger.entries if entry.what == "began"]

    first = begun + WARM_UP_SECONDS
    inside = [entry for entry in entries if first <= entry.at < first + MEASURED_SECONDS]
    allowed = KEYS[kind] * PER_MINUTE[kind] * MEASURED_SECONDS / WINDOW
    per_key = _group(entries)

    return {
        "kind": kind,
        "messages": started,
        "keys": KEYS[kind],
        "limit a minute": PER_MINUTE[kind],
        "most in a minute": max(_count_max(moments) for moments in per_key),
        "share used": len(inside) / allowed,
        "calls/s": len(inside) / MEASURED_SECONDS,
        "called twice": len(entries) - len({entry.id for entry in entries}),
    }


def _group(entries: list[Entry]) -> list[list[float]]:
    by_key: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        by_key[entry.id.partition("-")[0]].append(entry.at)
    return list(by_key.values())


def _count_max(moments: list[float]) -> int:
    moments.sort()
    return max(bisect.bisect_right(moments, at + WINDOW) - n for n, at in enumerate(moments))


async def _start(server: EmbeddedServer, prefix: str, kind: str) -> int:
    encodings = {each.kind: each.encoding for each in KINDS if isinstance(each.encoding, Pack)}
    starter = BulkStarter(await server.connect(), Settings(task_queue_prefix=prefix), encodings=encodings)

    def requests() -> Iterator[tuple[None, Envelope]]:
        for number in range(MESSAGES[kind]):
            key = number % KEYS[kind]
            yield None, Envelope(kind=kind, id=f"{key}-{number}", lane="short", payload=key)

    count = 0
    async for receipt in starter.start_all(requests()):
        assert receipt.outcome is StartOutcome.STARTED, receipt
        count += 1
    return count
