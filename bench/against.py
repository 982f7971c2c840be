"""This code against an older revision of it: cycles of packs and of solo messages, on one server, by turns.

`./run bench against REVISION [packs|large|solo]` runs worker processes of both, and each revision starts the messages
that its worker runs. Large are packs of 1,000, a quarter of which is cached; of the others the cache has a tenth.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import against_process
from bench.cycles import CACHE, COLD_DELAY, SECONDS, SLEEPERS
from bench.harness import BadArgument, alternate, choose, fresh_server, report, run_worker
from bench.packs import COLD_DELAY as PACK_DELAY
from bench.packs import CYCLES_COUNT, SIZE, SLOTS
from bench.worker_process import Measured
from starter.local.embedded import EmbeddedServer


class Load(NamedTuple):
    """How many messages, how many in a pack, after how many seconds they come back, and how many workflows are cached.

    More is always due than the machine can do, so the rate is what it can do.
    """

    messages: int
    size: int
    delay: float
    cache: int


LOADS = {
    "packs": Load(CYCLES_COUNT, SIZE, PACK_DELAY, CACHE),
    "large": Load(400_000, 1000, 12.5, 100),
    "solo": Load(SLEEPERS, 1, COLD_DELAY, CACHE),
}
PAIRS = 5
HERE = Path(__file__).parent.parent


async def main(arguments: list[str]) -> None:
    """Compare with the revision named first; of all there are, or of those named after it."""
    if not arguments:
        raise BadArgument("a revision of git is missing; name one, as in ./run bench against HEAD~20")
    revision, *named = arguments
    names = choose(named, LOADS, "load")
    async with checked_out(revision) as folder:
        rows = [row for name in names for row in await _compare(name, folder)]
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


async def _compare(name: str, older: Path) -> list[dict[str, Any]]:
    folders = {"older": older, "this": HERE}
    seen: dict[str, list[Measured]] = {what: [] for what in folders}

    async with fresh_server() as server:
        orders = {what: await _start(server, name, folder) for what, folder in folders.items()}
        for what, folder in folders.items():  # unmeasured: the first round of all is not like the later ones
            await run_worker(server, orders[what], folder)
        for number in range(PAIRS):
            for what, folder in alternate(folders, number).items():
                measured = await run_worker(server, orders[what], folder)
                print(f"{name}, round {number}: {what} {measured.rate:,.0f} cycles/s", file=sys.stderr)
                seen[what].append(measured)

    ratio = median(new.rate / old.rate for old, new in zip(seen["older"], seen["this"], strict=True))
    return [
        {
            "encoding": name,
            "code": what,
            "cycles/s": median(m.rate for m in runs),
            "cpu ms/cycle": median(m.cpu_ms for m in runs),
            "rss MB": max(m.rss_bytes for m in runs) / 1e6,
            "ratio": ratio if what == "this" else 1.0,
        }
        for what, runs in seen.items()
    ]


async def _start(server: EmbeddedServer, name: str, folder: Path) -> str:
    """Let a revision start its messages; gives the order for its worker, as it writes it."""
    load = LOADS[name]
    numbers = {"seconds": SECONDS, "cache": load.cache, "slots": SLOTS}
    wanted = {
        "encoding": "solo" if name == "solo" else "pack",
        "count": load.messages,
        "size": load.size,
        "delay": load.delay,
        "numbers": numbers,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", against_process.__file__, json.dumps(wanted)),
        env={**os.environ, "PYTHONPATH": str(folder), "TEMPORAL_ADDRESS": server.address},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the code in {folder} could not start its messages; what it said is above")

    return output.decode().splitlines()[-1]
