"""Processes: the parts of the system under test, each started as users start it, and killed by process id."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from shared.errors import DormiceError, RetryLater
from starter.local.supervised_process import SupervisedProcess, start_supervised, stop_supervised

ROOT = Path(__file__).parents[2]
END_SECONDS = 12.0
ENV_PREFIXES = ("DORMICE_", "TEMPORAL_", "PYTHONPATH", "SPARK_")


class Part(ABC):
    """One part of the system, which can be started, killed, stopped, continued, and ended for good.

    A fault holds `lock`, so that two faults of one part come one after the other.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self.is_wanted = True
        """Whether the part is restarted when it ends by itself."""

    @property
    @abstractmethod
    def members(self) -> list[psutil.Process]:
        """The part's living processes, without the parent watch that ends them."""

    @abstractmethod
    async def start(self) -> None:
        """Start the part; returns when the program that starts it says so."""

    @abstractmethod
    async def end(self) -> None:
        """End the part in an orderly way."""

    @abstractmethod
    async def note_death(self) -> None:
        """Wait until the killed processes are gone."""

    async def kill(self) -> list[int]:
        """Kill all processes of the part with SIGKILL, and give their ids."""
        ids = self.send(signal.SIGKILL)
        await self.note_death()
        return ids

    def send(self, number: signal.Signals) -> list[int]:
        """Send a signal to all processes of the part, and give their ids."""
        members = self.members
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)
        return [member.pid for member in members]

    @property
    def is_alive(self) -> bool:
        """Whether a process of the part runs."""
        return bool(self.members)


class ProgramPart(Part):
    """A part that is one of dormice's own programs: a worker, the bridge, a Spark driver."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__(name)
        self._command = command
        self._environment = environment
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def members(self) -> list[psutil.Process]:
        """The processes under the parent watch."""
        return [] if self._process is None else find_children(self._process.pid)

    @property
    def is_alive(self) -> bool:
        """Whether the parent watch runs, which ends together with the program."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the program; returns when there is a process to kill, which may still load its modules."""
        command = [sys.executable, "-P", *self._command]
        with self._log.open("ab") as output:
            self._process = await start_supervised(
                command, output.fileno(), {**self._environment, "PYTHONPATH": str(ROOT)}
            )
        while self.is_alive and not self.members:  # noqa: ASYNC110 — there is no event for the parent watch's child
            await asyncio.sleep(0.02)

    async def end(self) -> None:
        """End the program, and let it drain."""
        if self._process is not None:
            await stop_supervised(self._process, END_SECONDS)

    async def note_death(self) -> None:
        """Wait for the parent watch, which ends when its processes are gone."""
        if self._process is not None:
            await self._process.wait()

    async def wait(self) -> int:
        """Wait until the program has ended by itself, and give its exit code."""
        return 0 if self._process is None else await self._process.wait()


class OwnedPart(Part):
    """The embedded server or the broker, whose own class starts them and their parent watch."""

    def __init__(self, name: str, owned: SupervisedProcess) -> None:
        super().__init__(name)
        self._owned = owned

    @property
    def members(self) -> list[psutil.Process]:
        """The processes under the parent watch."""
        found = self._owned.process_id
        return [] if found is None else find_children(found)

    async def start(self) -> None:
        """Start the server or broker, and wait until it answers."""
        await self._owned.start()

    async def end(self) -> None:
        """End the server or broker."""
        await self._owned.stop()

    async def note_death(self) -> None:
        """End the parent watch as well."""
        await self._owned.stop()


def find_children(process_id: int) -> list[psutil.Process]:
    """Give the living descendants of a process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(process_id).children(recursive=True)
        return [process for process in below if _is_alive(process)]
    return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def start_patiently(part: Part, notify: Callable[[str], None], seconds: float = 120.0) -> None:
    """Start a part, and retry on errors, because its disk may be full or its database still recovering."""
    give_up_at = time.monotonic() + seconds
    while True:
        try:
            return await part.start()
        except (DormiceError, OSError) as exc:
            notify(f"{part.name} did not start: {str(exc)[:200]}")
            if time.monotonic() > give_up_at:
                raise RetryLater(f"{part.name} did not start within {seconds:.0f} s: {exc}") from exc
        await asyncio.sleep(1)


def make_environment(**values: str) -> dict[str, str]:
    """Give this process's environment without its settings for dormice and Temporal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIXES)}
    return {**kept, "TEMPORAL_CONFIG_FILE": os.devnull, **values}
