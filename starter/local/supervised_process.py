"""Processes that end when this one does, and what a server on this machine needs for itself: a port and a folder."""

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Self

from shared.errors import InvalidSetting, Misconfigured

STOP_SECONDS = 15.0
LISTENING_PORTS = range(10_240, 32_768)
"""Below the ports that Linux and macOS give to outgoing connections, which could take one before a server listens."""


async def start_supervised(
    command: Sequence[str],
    output: int | None = None,
    env: Mapping[str, str] | None = None,
    keep: int | None = None,
    errors: int | None = None,
) -> asyncio.subprocess.Process:
    """Start a command under a parent watch; its process group is its own, so Ctrl-C does not reach it.

    Its standard error goes to `output`, too, unless `errors` is another file. `keep` is a file descriptor that stays
    open until the command has ended, even if this process ends earlier.
    """
    stderr = output if errors is None else errors
    pass_fds = () if keep is None else (keep,)
    return await asyncio.create_subprocess_exec(
        # -P: a folder named like our packages in the working folder must not be imported
        *(sys.executable, "-P", "-m", "starter.local.parent_watch", *command),
        stdin=asyncio.subprocess.PIPE,
        stdout=output,
        stderr=stderr,
        env=env,
        start_new_session=True,
        pass_fds=pass_fds,
    )


async def stop_supervised(process: asyncio.subprocess.Process, seconds: float) -> int:
    """Ask a supervised process to end, kill it after `seconds`; gives its exit code."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            if process.stdin is not None:
                process.stdin.close()  # the parent watch kills its child before it goes
            await process.wait()

    return process.returncode or 0


async def kill_supervised(process: asyncio.subprocess.Process) -> None:
    """Kill a supervised process and its parent watch; one that has ended already is no error."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the parent watch leads its own process group
    await process.wait()


@contextlib.asynccontextmanager
async def run_supervised(
    command: Sequence[str],
    log: Path,
    env: Mapping[str, str] | None = None,
    keep: int | None = None,
    stop_seconds: float = STOP_SECONDS,
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a command for the length of a `with` block; its output goes to a new file."""
    with log.open("wb") as output:
        process = await start_supervised(command, output.fileno(), env, keep)
    try:
        yield process
    finally:
        await stop_supervised(process, stop_seconds)


class SupervisedProcess(ABC):
    """A server on a loopback port, as a supervised process that may be started again and again."""

    def __init__(self, name: str, port: int, log: Path, lock: int | None) -> None:
        """Take what users call it, where it answers and logs, and a file that stays open while the process lives."""
        self._name = name
        self._port = port
        self._log = log
        self._lock = lock
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """Where clients connect, on loopback only."""
        return f"127.0.0.1:{self._port}"

    @property
    def process_id(self) -> int | None:
        """Process id of the parent watch, None while it is down."""
        return None if self._process is None else self._process.pid

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the process and wait until it answers; raises Misconfigured with the last line of its log."""
        begin = self._log.stat().st_size if self._log.exists() else 0
        is_ready = False
        try:
            is_ready = await self._begin()
        finally:
            if not is_ready:
                await self.stop()

        if not is_ready:
            said = last_line(self._log.read_bytes()[begin:].decode(errors="replace"))
            raise Misconfigured(f"the embedded {self._name} did not start; read {self._log}: {said}")

    async def stop(self) -> None:
        """End the process; returns when it is gone."""
        if self._process is not None:
            await stop_supervised(self._process, STOP_SECONDS)
            self._process = None

    async def wait(self) -> int:
        """Wait until the process ends, by itself or not; gives its exit code."""
        return 0 if self._process is None else await self._process.wait()

    @abstractmethod
    async def _begin(self) -> bool:
        """Start the process and say whether it answers."""

    async def _launch(self, command: Sequence[str]) -> asyncio.subprocess.Process:
        with self._log.open("ab") as output:
            self._process = await start_supervised(command, output.fileno(), keep=self._lock)
        return self._process

    async def _serves(self, command: Sequence[str], is_ready: Callable[[], Awaitable[bool]], seconds: float) -> bool:
        process = await self._launch(command)
        return await wait_until_ready(self._port, is_ready, lambda: process.returncode is None, seconds)


async def wait_until_ready(
    port: int, is_ready: Callable[[], Awaitable[bool]], is_running: Callable[[], bool], seconds: float
) -> bool:
    """Wait until a server on a loopback port is ready, or has ended, or the time is over; says whether it is ready."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and is_running():
        # a client's failed attempt is slow, or logged; a plain socket answers at once
        if is_answered(port) and await is_ready():
            return True
        await asyncio.sleep(0.05)
    return False


def last_line(text: str) -> str:
    """Give the last line of a program's output that is not indented: the indented ones are stack traces."""
    said = [line for line in text.splitlines() if line and not line[0].isspace()]
    return said[-1][:300] if said else "it says nothing"


@contextlib.contextmanager
def lock_folder(data: Path) -> Generator[int]:
    """Lock the folder: two servers on one file would each believe that they own its messages."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = os.open(data / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as exc:
        raise InvalidSetting(f"--data: {data} can't be used ({exc.strerror}); choose another folder") from exc

    try:
        if not has_locked(lock):
            flaw = f"--data: {data} is in use by another server"
            raise InvalidSetting(f"{flaw}; stop that one, wait until it has ended, or choose another")
        yield lock
    finally:
        os.close(lock)


def has_locked(file: int) -> bool:
    """Lock an open file until it is closed; says False when another process has the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find_free_port() -> int:
    """Give a loopback port that is free now, and that the kernel gives to no outgoing connection."""
    while True:
        port = secrets.choice(LISTENING_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def check_free(name: str, port: int, without: str = "") -> None:
    """Raise InvalidSetting when another program has the loopback port that option `name` asks for.

    `without` is the option that does without what would answer there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            taken = f"--{name}: port {port} is taken by another program ({exc.strerror})"
            remedy = f"stop that one or choose another with --{name}"
            if without:
                remedy = f"stop that one, choose another with --{name}, or leave it out with --{without}"
            raise InvalidSetting(f"{taken}; {remedy}") from exc


def is_answered(port: int) -> bool:
    """Say whether a loopback port accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0
