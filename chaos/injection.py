"""Injection: carries out a plan's faults on the parts, and records when, on which processes, and for how long."""

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chaos.faults import EVERYTHING, WORKERS, Planned
from chaos.system.disk import Disk
from chaos.system.processes import Part, start_patiently

GROUPED = {"both workers": WORKERS}
STATE_KEEPERS = ("postgres", "server")


@dataclass(slots=True, kw_only=True)
class Injected:
    """A fault that was injected. Times are seconds since the epoch."""

    fault: str
    target: str
    began_at: float
    ended_at: float = 0.0
    """When the target was started again or continued, or the disk had space again."""
    killed: list[int] = field(default_factory=list[int])
    """Ids of the processes that the fault killed."""
    stopped: list[int] = field(default_factory=list[int])
    drained: list[int] = field(default_factory=list[int])
    """Ids of the processes that were asked to end, and had some time for it."""
    note: str = ""


class Injector:
    """Injects faults into the parts of a system, and restarts parts that end by themselves."""

    def __init__(self, parts: Mapping[str, Part], disk: Disk | None, notify: Callable[[str], None]) -> None:
        self._parts = parts
        self._disk = disk
        self._notify = notify
        self.injected: list[Injected] = []
        self.left_out: list[tuple[str, str]] = []
        """Planned faults that were not injected, with the reason."""
        self.ended: list[tuple[str, str]] = []
        """Parts that ended by themselves, with their last output."""

    async def run(self, plan: list[Planned]) -> None:
        """Inject all faults of a plan at their times, and return when the last one is over."""
        began = time.monotonic()
        tasks = list[asyncio.Task[None]]()
        try:
            for planned in plan:
                await asyncio.sleep(max(0.0, began + planned.at - time.monotonic()))
                tasks.append(asyncio.create_task(self._inject(planned)))
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def watch(self) -> None:
        """Restart parts that have ended by themselves, as a service manager does; runs until cancelled."""
        while True:
            for part in self._parts.values():
                if part.is_wanted and not part.lock.locked() and not part.is_alive:
                    async with part.lock:
                        self.ended.append((part.name, time.strftime("%H:%M:%S")))
                        self._notify(f"{part.name} has ended by itself; starting it again")
                        await start_patiently(part, self._notify)
            await asyncio.sleep(0.5)

    async def _inject(self, planned: Planned) -> None:
        parts = self._choose(planned.target)
        if planned.act == "fill":
            await self._fill(planned)
            return

        for part in parts:
            await part.lock.acquire()

        try:
            alive = [part for part in parts if part.is_alive]
            if not alive:
                self.left_out.append((planned.fault, "its target was not running"))
                return
            await self._act(planned, alive)
        finally:
            for part in parts:
                part.lock.release()

    def _choose(self, target: str) -> list[Part]:
        """Give the parts of a target, always in the same order, so that two faults can't block each other."""
        names = GROUPED.get(target, (target,))
        wanted = [part for name, part in self._parts.items() if name in names]
        if target != EVERYTHING:
            return wanted
        return [part for part in self._parts.values() if part.is_wanted or part.is_alive]

    async def _act(self, planned: Planned, parts: list[Part]) -> None:
        done = Injected(fault=planned.fault, target=planned.target, began_at=time.time())
        self.injected.append(done)
        self._notify(f"{planned.fault}: {planned.target}, {planned.seconds:.1f} s")

        if planned.act == "stop":
            for part in parts:
                done.stopped += part.send(signal.SIGSTOP)
            await asyncio.sleep(planned.seconds)
            for part in parts:
                part.send(signal.SIGCONT)
        elif planned.act == "restart":
            for part in parts:
                done.drained += [member.pid for member in part.members]
                await part.end()
                await start_patiently(part, self._notify)
        else:
            for part in parts:
                done.killed += part.send(signal.SIGKILL)
            await asyncio.gather(*(part.note_death() for part in parts))
            await asyncio.sleep(planned.seconds)
            await self._start_all([part for part in parts if part.is_wanted])

        done.ended_at = time.time()

    async def _start_all(self, parts: list[Part]) -> None:
        """Start the parts that store state first, one after the other, and then all parts that need them."""
        for part in parts:
            if part.name in STATE_KEEPERS:
                await start_patiently(part, self._notify)
        others = [part for part in parts if part.name not in STATE_KEEPERS]
        await asyncio.gather(*(start_patiently(part, self._notify) for part in others))

    async def _fill(self, planned: Planned) -> None:
        if self._disk is None:
            self.left_out.append((planned.fault, "this user may not mount a file system of a bounded size"))
            return

        done = Injected(fault=planned.fault, target=planned.target, began_at=time.time())
        self.injected.append(done)
        self._notify(f"{planned.fault}: {planned.target}, {planned.seconds:.1f} s")

        try:
            await self._disk.fill()
            await asyncio.sleep(planned.seconds)
        finally:
            await self._disk.free()

        done.ended_at = time.time()
