"""More packed messages than anybody has, for the scenario `packs`: run, repacked, and their server killed."""

import asyncio
import contextlib
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import psutil
from temporalio.client import Client

from bench.harness import database_bytes, fresh_server, kill_program, new_prefix, processor_seconds, report, working
from bench.pack_filling import DAY, HOUR, Filling, Sent, build_starter, start_sorted, to_order
from bench.pack_rhythms import WINDOWS_MAX, follow
from bench.worker_process import Measured, map_versions, number_of, versions_file
from shared.errors import RetryLater
from shared.messages.placement import PACK_WORKFLOW, Layout, pack_workflow_id
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.steering.packs.packs import Packs
from starter.steering.packs.reader import iterate_packs
from starter.steering.repack import repack
from starter.steering.stored.stored_pack import read_stored

PORTION = 2_000_000
"""Messages of a kind of their own each, ready by pack."""

CORES = os.cpu_count() or 1
WINDOW = 60.0
GROWTH = 1.01
"""So many times as many packs does the first kind get."""

CHECKED = 10
"""Packs of each kind whose messages are held against the calls of their handlers."""

ASKED = 20
"""Messages of a pack whose versions are asked for one by one, where the pack can't be read."""

TRIES = 5
AGAIN_SECONDS = 20.0
"""A pack that works while it is read does not show yet what its handlers have just done."""


async def measure_crowd(count: int, seconds: float = HOUR, delay: float = 16 * HOUR) -> None:
    """Fill beside a worker on each core, and run; in the middle kill the server, while a kind is being repacked."""
    queues = new_prefix()
    size = min(PORTION, count)
    kinds = [
        Filling(
            prefix=f"{queues}-{number}",
            queues=queues,
            first=number * size,
            count=size,
            size=1000,
            delay=delay,
            due_in=delay / 96,
            due_spread=delay,
            coalesce=delay / 16,
        )
        for number in range(count // size)
    ]
    rows: list[dict[str, Any]] = []

    async with _running(kinds) as crowd:
        notes = [await crowd.fill()]
        await crowd.follow(seconds / 2 - WINDOW, rows)
        repacking = asyncio.create_task(crowd.repack_first())
        await crowd.follow(WINDOW, rows)
        notes.append(await crowd.kill_server())
        await crowd.follow(seconds / 2, rows)
        await asyncio.wait([repacking], timeout=seconds / 2)
        is_repacked = repacking.done()
        repacking.cancel()  # nothing happens to one that is done
        notes += [await repacking if is_repacked else "the repack did not end in time", await crowd.check(is_repacked)]

    for note in notes:
        print(note)

    rhythm = f"mean delay {delay / HOUR:.2g} h, tolerance {kinds[0].coalesce:.0f} s; {CORES} workers"
    note = f"{'; '.join(notes)}; packs of 1,000, {len(kinds)} kinds, {rhythm}"
    report("packs", rows, note=note, case=f"crowd {count} {seconds:g} {delay:g}")


@contextlib.asynccontextmanager
async def _running(kinds: Sequence[Filling]) -> AsyncGenerator["_Crowd"]:
    with versions_file(sum(filling.count for filling in kinds)) as versions:
        order = to_order(
            kinds[0],
            kinds=tuple(filling.prefix for filling in kinds),
            seconds=WINDOW,
            windows=WINDOWS_MAX,
            versions=versions,
        )
        async with fresh_server() as server, contextlib.AsyncExitStack() as stack:
            workers = [await stack.enter_async_context(working(server, order)) for _ in range(CORES)]
            yield _Crowd(server, await server.connect(), kinds, workers, map_versions(versions))


@dataclass(frozen=True, slots=True)
class _Crowd:
    server: EmbeddedServer
    client: Client
    kinds: Sequence[Filling]
    workers: list[list[Measured]]
    versions: "memoryview[int]"
    """The version that each message should run next, by its number; 0 before its first."""

    async def fill(self) -> str:
        """Send all that has been made ready by pack before; say what it took."""
        count = sum(filling.count for filling in self.kinds)
        waited = time.monotonic()
        with ProcessPoolExecutor(CORES, multiprocessing.get_context("spawn")) as pool:
            ready = await asyncio.gather(
                *(asyncio.wrap_future(pool.submit(Filling.sort_by_pack, filling)) for filling in self.kinds)
            )

        print(f"{count:,} are ready by pack after {time.monotonic() - waited:,.0f} s", flush=True)
        server_cpu = processor_seconds(self.server)
        sent = list[Sent]()

        for number, filling in enumerate(self.kinds, 1):
            took = await start_sorted(self.client, filling, ready.pop(0))
            assert not took.failed, took
            sent.append(took)
            print(f"{number * filling.count:,}: {filling.count / took.seconds:,.0f}/s", self._look(), flush=True)

        whole = Sent(sum(took.seconds for took in sent), sum(took.cpu_seconds for took in sent), failed=0)
        said = whole.describe(count, processor_seconds(self.server) - server_cpu)
        return f"{said}; {await self._count_taken_in():,} packs taken in by then; {self._look()}"

    async def _count_taken_in(self) -> int:
        """Count the packs whose messages a worker has taken in: the index knows when those are due."""
        packs = f"WorkflowType = '{PACK_WORKFLOW}' AND ExecutionStatus = 'Running'"
        return (await self.client.count_workflows(f"{packs} AND DueAt IS NOT NULL")).count

    def _look(self) -> str:
        assert self.server.process_id is not None
        watch = psutil.Process(self.server.process_id)
        memory = sum(process.memory_info().rss for process in (watch, *watch.children())) / 1e6
        workers = sum(windows[-1].rss_bytes for windows in self.workers if windows) / 1e6
        left = shutil.disk_usage(self.server.options.data).free / 1e6
        disk = database_bytes(self.server) / 1e6
        return f"server {memory:,.0f} MB, workers {workers:,.0f} MB, disk {disk:,.0f} MB ({left:,.0f} left)"

    async def follow(self, seconds: float, rows: list[dict[str, Any]]) -> None:
        """Note a row for each minute."""
        before = len(rows)
        await follow(
            self.server,
            self.workers,
            round(seconds / WINDOW),
            lambda row: rows.append(row | {"minute": before + row["minute"]}),
        )

    async def repack_first(self) -> str:
        """Move the first kind to more packs, as often as it takes."""
        first = self.kinds[0]
        began = time.monotonic()
        attempts = 1
        packs = max(round(first.packs * GROWTH), first.packs + 1)
        settings = Settings(task_queue_prefix=first.queues)

        while True:
            try:
                await repack(self.client, settings, first.prefix, packs, _print_packs)
            except RetryLater as exc:
                print(f"repack: {exc}", flush=True)
                attempts += 1
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                took = time.monotonic() - began
                return f"repacked {first.packs:,} to {packs:,} packs in {took:,.0f} s and {attempts} attempts"

    async def kill_server(self) -> str:
        """Kill the server and its one history shard, and start it again."""
        await kill_program(self.server)
        began = time.monotonic()
        await self.server.start()
        return f"server killed, ready again {time.monotonic() - began:.1f} s after its start"

    async def check(self, is_repacked: bool) -> str:  # noqa: FBT001 — called by one function
        """Hold the messages of some packs of each kind against what their handlers have noted.

        The first kind is left out unless it `is_repacked`: who belongs where is then being changed.
        """
        seen = _Checked()
        for filling in self.kinds if is_repacked else self.kinds[1:]:
            seen = seen.add(await self._check_kind(filling))
            print(f"{filling.prefix}: {seen}", flush=True)

        run = sum(map(bool, self.versions))
        return (
            f"{seen.messages:,} messages of {seen.packs:,} packs were held against the calls of their handlers: "
            f"{seen.missing} missing, {seen.strange} strange, {seen.stale} stale, the latest {seen.latest:.0f} s "
            f"beyond its tolerance; {run:,} of all have run, {await self._count_taken_in():,} packs are taken in"
        )

    async def _check_kind(self, filling: Filling) -> "_Checked":
        layout = await build_starter(self.client, filling).find_layout(filling.prefix, "short")
        assert layout is not None
        members = await asyncio.to_thread(filling.sort_by_pack, layout.packs)
        picked = random.sample(range(layout.packs), min(CHECKED, layout.packs))
        checked = _Checked()
        for index in picked:
            checked = checked.add(await self._check_pack(filling, layout, index, members[index].tolist()))
        return checked

    async def _check_pack(self, filling: Filling, layout: Layout, index: int, members: list[int]) -> "_Checked":
        """Read a pack until its messages are those that it should have, each as its handler has left it."""
        checked = await self._compare(filling, layout, index, members)
        for _ in range(TRIES - 1):
            if not checked.missing + checked.strange + checked.stale:
                break
            await asyncio.sleep(AGAIN_SECONDS)
            checked = await self._compare(filling, layout, index, members)
        return checked

    async def _compare(self, filling: Filling, layout: Layout, index: int, members: list[int]) -> "_Checked":
        before = {number: self.versions[number] for number in members}
        found = await self._read(filling, layout, index, members)
        stale = sum(
            not before[number] <= version <= self.versions[number]
            for number, (version, _) in found.items()
            if number in before and version is not None
        )
        latest = max((time.time() - due - filling.coalesce for _, due in found.values()), default=-DAY)
        missing = len(before.keys() - found.keys())
        strange = len(found.keys() - before.keys())

        return _Checked(1, len(members), missing, strange, stale, latest)

    async def _read(
        self, filling: Filling, layout: Layout, index: int, members: list[int]
    ) -> "dict[int, tuple[int | None, float]]":
        """Give the version that runs next, as far as it is known, and the due moment of a pack's messages, by number.

        Of a pack that only a worker can read, the versions of some messages are asked for.
        """
        stored = await read_stored(self.client, pack_workflow_id(layout.kind, index))
        if stored.state is not None and stored.is_current:
            return {number_of(each.id): (each.version, each.due_at) for each in stored.state.messages.alive()}

        packs = Packs(self.client, Settings(task_queue_prefix=filling.queues))
        found: dict[int, tuple[int | None, float]] = {}

        async for _, messages in packs.reader.read_each(iterate_packs([(layout, index)]), [{}]):
            found |= {number_of(each.id): (None, each.due_at.timestamp()) for each in messages if each.due_at}

        for number in random.sample(members, min(ASKED, len(members))):
            status = await packs.status(layout, index, f"{filling.prefix}-{number}")
            if status is not None:
                found[number] = status["version"], status["due_at_epoch"]

        return found


def _print_packs(packs: int) -> None:
    print(f"repack: {packs:,} packs", flush=True)


class _Checked(NamedTuple):
    """Packs and messages that were read, how many of them are not as they should be, and the lateness of the latest.

    A stale one has a version that its handler has not left it with, a strange one belongs to another pack.
    """

    packs: int = 0
    messages: int = 0
    missing: int = 0
    strange: int = 0
    stale: int = 0
    latest: float = -DAY

    def add(self, other: "_Checked") -> "_Checked":
        """Give what both have seen."""
        return _Checked(
            self.packs + other.packs,
            self.messages + other.messages,
            self.missing + other.missing,
            self.strange + other.strange,
            self.stale + other.stale,
            max(self.latest, other.latest),
        )
