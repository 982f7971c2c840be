"""This code against an older revision of it: cycles of packs and of solo messages, on one server, by turns.

`./run bench against REVISION [packs|large|solo]` runs worker processes of both; messages of each are started by this
code. Large are packs of 1,000, a quarter of which is cached; of the others the cache has a tenth.
"""

import asyncio
import contextlib
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.cycles import CACHE, COLD_DELAY, SECONDS, SLEEPERS
from bench.harness import alternate, fill, fresh_server, new_prefix, report, run_worker
from bench.pack_filling import SPREAD, Filling, start_packs
from bench.packs import COLD_DELAY as PACK_DELAY
from bench.packs import CYCLES_COUNT, SIZE, SLOTS
from bench.worker_process import Measured, Order
from starter.local.embedded import EmbeddedServer

USUAL = (CYCLES_COUNT, SIZE, PACK_DELAY, CACHE)
"""How many messages, how many in a pack, after how many seconds they come back, and how many packs are cached."""
LARGE = (400_000, 1000, 12.5, 100)
PAIRS = 5
HERE = Path(__file__).parent.parent


async def main(arguments: list[str]) -> None:
    """Compare with the revision named first; of all there are, or of those named after it."""
    if not arguments:
        print("against: name a revision of git, for example: ./run bench against HEAD~20")
        return
    revision, *encodings = arguments
    async with checked_out(revision) as folder:
        rows = [row for name in encodings or ["packs", "large", "solo"] for row in await _compare(name, folder)]
    note = f"ratio = this code / {revision}, median of {PAIRS} pairs on one server; 5 ms of I/O a call"
    report("against", rows, note=note, case=revision)


@contextlib.asynccontextmanager
async def checked_out(revision: str) -> AsyncGenerator[Path]:
    """Have a revision in a folder of its own for the length of a `with` block."""
    with tempfile.TemporaryDirectory(prefix="dormice-bench-") as parent:
        folder = Path(parent, "older")
        await _git("worktree", "add", "--detach", str(folder), revision)
        try:
            yield folder
        finally:
            await _git("worktree", "remove", "--force", str(folder))


async def _git(*arguments: str) -> None:
    await asyncio.to_thread(subprocess.run, ["git", "-C", str(HERE), *arguments], check=True, capture_output=True)


async def _compare(encoding: str, older: Path) -> list[dict[str, Any]]:
    folders = {"older": older, "this": HERE}
    seen: dict[str, list[Measured]] = {what: [] for what in folders}
    async with fresh_server() as server:
        orders = {what: await _fill(server, encoding, is_older=what == "older") for what in folders}
        for what, folder in folders.items():  # unmeasured: the first round of all is not like the later ones
            await run_worker(server, orders[what], folder)
        for number in range(PAIRS):
            for what, folder in alternate(folders, number).items():
                seen[what].append(await run_worker(server, orders[what], folder))
    ratio = median(new.rate / old.rate for old, new in zip(seen["older"], seen["this"], strict=True))
    return [
        {
            "encoding": encoding,
            "code": what,
            "cycles/s": median(m.rate for m in runs),
            "cpu ms/cycle": median(m.cpu_ms for m in runs),
            "rss MB": max(m.rss_bytes for m in runs) / 1e6,
            "ratio": ratio if what == "this" else 1.0,
        }
        for what, runs in seen.items()
    ]


async def _fill(server: EmbeddedServer, encoding: str, *, is_older: bool) -> Order:
    client = await server.connect()
    order = Order(what="dormice", prefix=new_prefix(), seconds=SECONDS, cache=CACHE, slots=SLOTS)
    if encoding == "solo":
        await fill(client, "dormice", order.prefix, SLEEPERS, COLD_DELAY)
        return order
    count, size, delay, cache = LARGE if encoding == "large" else USUAL
    is_compressed = not is_older  # an older revision may not read it
    filling = Filling(
        prefix=order.prefix, count=count, size=size, delay=delay, coalesce=1.0, is_compressed=is_compressed
    )
    await start_packs(client, filling, filling.envelopes())
    return replace(order, what="pack", spread=SPREAD, tolerance=1.0, cache=cache, is_compressed=is_compressed)
