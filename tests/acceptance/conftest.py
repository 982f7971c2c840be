"""The installed program, run as people and scripts run it, against the session's server."""

import asyncio
import contextlib
import json
import os
import site
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import find_free_port, kill_supervised, start_supervised
from tests.conftest import wait_until
from tests.support.fork_server import run_forked

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("dormice")


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run of the program left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as one JSON document."""
        (line,) = self.lines
        return line


Run = Callable[..., Awaitable[Ran]]
Spawn = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
def environment(server: EmbeddedServer, settings: Settings) -> dict[str, str]:
    """The environment in which the program meets the session's server and this test's task queues."""
    return {
        **os.environ,
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "DORMICE_TASK_QUEUE_PREFIX": settings.task_queue_prefix,
        "DORMICE_PATIENCE": f"{settings.patience.total_seconds()}s",
        "DORMICE_HANDLERS": "tests.support.handlers",
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture
async def spawn(environment: dict[str, str], tmp_path: Path) -> AsyncGenerator[Spawn]:
    """Start the program in a folder of this test's own; what still runs at the end of the test is killed."""
    spawned: list[asyncio.subprocess.Process] = []

    async def spawn(*arguments: str, **changes: Any) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        options: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "env": environment, "cwd": tmp_path}
        process = await asyncio.create_subprocess_exec(str(PROGRAM), *arguments, **options | changes)
        spawned.append(process)
        return process

    yield spawn
    for process in spawned:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture(scope="session")
async def fork_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """The address of a process that has imported the program."""
    folder = tmp_path_factory.mktemp("fork")
    address = folder / "socket"
    command = [sys.executable, "-P", "-m", "tests.support.fork_server", str(address)]
    process = await start_supervised(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    await wait_until(address.exists, "the program is imported")
    yield address
    await kill_supervised(process)


@pytest.fixture
def run(fork_server: Path, environment: dict[str, str], tmp_path: Path) -> Run:
    """Run the program to its end, in a process that is forked from one with all imports done."""

    async def run(*arguments: str, stdin: str | bytes = b"", **variables: str) -> Ran:
        with contextlib.ExitStack() as stack:
            given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            given.write(stdin.encode() if isinstance(stdin, str) else stdin)
            given.seek(0)
            files = (given.fileno(), out.fileno(), err.fileno())
            code = await run_forked(fork_server, arguments, {**environment, **variables}, tmp_path, files)
            return Ran(code, *(_read_again(file) for file in (out, err)))

    return run


def _read_again(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@pytest.fixture
def metrics_address(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where worker processes of this test publish their metrics; the next port is free as well."""
    port = find_free_port()
    while not _is_free(port + 1):
        port = find_free_port()
    address = f"127.0.0.1:{port}"
    monkeypatch.setenv("DORMICE_TELEMETRY_PROMETHEUS", address)
    return address


def _is_free(port: int) -> bool:
    with socket.socket() as taking:
        try:
            taking.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def install_all_but(missing: str, folder: Path) -> Path:
    """Fill a folder with the packages that are installed here, without one of them."""
    folder.mkdir()
    for path in (path for place in site.getsitepackages() for path in Path(place).iterdir()):
        if path.name != missing:
            (folder / path.name).symlink_to(path)
    return folder
