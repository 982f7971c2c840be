"""Worker and bridge processes for tests, started from the checkout and always ended by their id."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import psutil

from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.local.kafka.broker import EmbeddedBroker
from starter.local.supervised_process import SupervisedProcess

ROOT = Path(__file__).parents[2]


@contextlib.asynccontextmanager
async def worker_process(
    server: EmbeddedServer, settings: Settings, *arguments: str, handlers: str = "tests.support.handlers"
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run `python -m worker` with handlers that keep a ledger against a server; ended with SIGKILL if still alive."""
    with (server.options.data / "worker.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "worker",
            *("--processes", "1", "--drain-seconds", "3", *arguments),
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "TEMPORAL_ADDRESS": server.address,
                "DORMICE_HANDLERS": handlers,
                "DORMICE_TASK_QUEUE_PREFIX": settings.task_queue_prefix,
                "DORMICE_SANDBOX": str(settings.sandbox),
            },
        )

    async with _ending(process):
        yield process


def bridge_process(
    server: EmbeddedServer, broker: EmbeddedBroker, settings: Settings, topic: str, *arguments: str
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run `dormice bridge` on a topic, as a member of the group of its name; ended with SIGKILL if still alive."""
    command = ("bridge", topic, "--group", topic, *arguments)
    return _intake_process(server, settings, command, DORMICE_KAFKA_SERVERS=broker.address)


@contextlib.asynccontextmanager
async def frontier_process(
    server: EmbeddedServer, settings: Settings, *arguments: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """Run `dormice frontier` and give it with its address once it listens; ended with SIGKILL if still alive.

    With `--listen` among the arguments it is given at once.
    """
    if "--listen" in arguments:
        async with _intake_process(server, settings, ("frontier", *arguments)) as process:
            yield process, arguments[arguments.index("--listen") + 1]
        return

    log = server.options.data / "frontier.log"
    begin = log.stat().st_size if log.exists() else 0

    async with _intake_process(server, settings, ("frontier", "--listen", "127.0.0.1:0", *arguments)) as process:
        while (found := re.search(r"interface at (\S+)", log.read_text()[begin:])) is None:
            assert process.returncode is None, log.read_text()[begin:]
            await asyncio.sleep(0.05)
        yield process, found[1]


def outbox_process(
    server: EmbeddedServer, settings: Settings, dsn: str, *arguments: str
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run `dormice outbox` on a database; ended with SIGKILL if still alive."""
    return _intake_process(server, settings, ("outbox", *arguments), DORMICE_OUTBOX_DSN=dsn)


@contextlib.asynccontextmanager
async def _intake_process(
    server: EmbeddedServer, settings: Settings, command: Sequence[str], **variables: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    with (server.options.data / f"{command[0]}.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "starter", *command),
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "TEMPORAL_ADDRESS": server.address,
                "TEMPORAL_CONFIG_FILE": os.devnull,
                "DORMICE_HANDLERS": "tests.support.handlers",
                "DORMICE_PATIENCE": f"{settings.patience.total_seconds()}s",
                "DORMICE_TASK_QUEUE_PREFIX": settings.task_queue_prefix,
                **variables,
            },
        )

    async with _ending(process):
        yield process


@contextlib.asynccontextmanager
async def _ending(process: asyncio.subprocess.Process) -> AsyncGenerator[None]:
    """Kill a process at the end of a `with` block, if it is still alive."""
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def ending_family(process: asyncio.subprocess.Process) -> AsyncGenerator[None]:
    """Kill a process and all that it has started at the end of a `with` block, also what outlives it."""
    family = [psutil.Process(process.pid)]
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += family[0].children(recursive=True)
        if process.returncode is None:
            process.kill()
        await process.communicate()
        for member in family[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()


async def run_to_end(*command: str, cwd: Path, env: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a program to its end; gives its exit code, output and talk."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, env=env, stdout=pipe, stderr=pipe)
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def kill(server: SupervisedProcess) -> None:
    """Kill the program of a server or broker, which ends its parent watch as well; returns when both are gone."""
    assert server.process_id is not None
    for child in psutil.Process(server.process_id).children():
        child.kill()
    await server.stop()


async def kill_and_restart(server: EmbeddedServer) -> None:
    """Kill the server program and start it again on its data."""
    await kill(server)
    await server.start()


def is_gone(family: Iterable[psutil.Process]) -> bool:
    """Tell whether all of them have ended; what nobody has waited for yet has ended too."""
    return not any(map(_is_alive, family))


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
