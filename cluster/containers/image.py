"""What the image must be: without rights, read-only, and with workers that are healthy, drain and lose nothing."""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from temporalio.client import Client

from cluster.containers.engine import USER, Engine
from shared.errors import Misconfigured
from shared.messages.envelope import Envelope
from shared.messages.placement import MESSAGE_WORKFLOW
from shared.settings import Settings
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.local.terminal import echo_err
from starter.starting.bulk import BulkStarter

MESSAGES = 1000
DELAY_SECONDS = 5
READY_SECONDS = 60
END_SECONDS = 60

LOOK = """\
import os, stat
def can_write(path):
    try:
        with open(path, "w"):
            return True
    except OSError:
        return False
print("user", os.getuid(), os.getgid())
print("writable", *[path for path in ("/opt/dormice/new", "/etc/new", "/tmp/new") if can_write(path)])
files = (os.path.join(folder, name) for folder, _, names in os.walk("/opt/dormice") for name in names)
modes = ((path, os.lstat(path).st_mode) for path in files)
print("open", *[path for path, mode in modes if mode & stat.S_IWOTH and not stat.S_ISLNK(mode)])
"""
EXPECTED = f"user {USER} {USER}\nwritable /tmp/new\nopen\n"


async def check_image(engine: Engine, image: str) -> None:
    """Run the image and check it; raises Misconfigured with the first thing that is wrong."""
    with engine.command_to_run(image, ["python", "-c", LOOK], {}) as command:
        said = await _run_to_end(command)

    if said != EXPECTED:
        raise Misconfigured(f"the image is not as it should be: it says {said!r} instead of {EXPECTED!r}; mend it")
    echo_err("its user is not root, writes to /tmp alone, and no file of it is open to everybody")

    with tempfile.TemporaryDirectory(prefix="dormice-containers-") as folder:
        options = EmbeddedOptions(data=Path(folder), port=find_free_port(), ui_port=None)
        async with run_embedded(options) as server:
            await _check_worker(engine, image, server)


async def _check_worker(engine: Engine, image: str, server: EmbeddedServer) -> None:
    settings = Settings()
    client = await server.connect(settings)

    async with _worker(engine, image, server.address) as worker:
        echo_err("a worker is ready")
        await _start_messages(client, settings)
        await asyncio.sleep(DELAY_SECONDS)
        worker.terminate()
        code = await asyncio.wait_for(worker.wait(), END_SECONDS)

    if code != 0:
        raise Misconfigured(f"a worker that was told to end has ended with code {code}; it should drain with code 0")
    if await _count_done(client, patience=timedelta(seconds=0.5)) == MESSAGES:
        raise Misconfigured("all messages were done before the worker was told to end; raise DELAY_SECONDS")
    echo_err("it has drained in the middle of the messages")

    async with _worker(engine, image, server.address) as worker:
        done = await _count_done(client, patience=timedelta(seconds=END_SECONDS))
        worker.terminate()
        await asyncio.wait_for(worker.wait(), END_SECONDS)

    if done != MESSAGES:
        raise Misconfigured(f"{done} of {MESSAGES} messages are done; none may be lost")
    echo_err(f"another one has done the rest: {done} of {MESSAGES} are done")


@contextlib.asynccontextmanager
async def _worker(engine: Engine, image: str, address: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a worker of the image for the length of an `async with` block, from when it is ready."""
    port = find_free_port()
    health = ("--health-port", str(port))
    command = ["dormice", "worker", "--processes", "1", "--wait-for-server", "--drain-seconds", "10", *health]
    variables = {"TEMPORAL_ADDRESS": address, "TEMPORAL_CONFIG_FILE": os.devnull}

    with engine.command_to_run(image, command, variables) as running:
        process = await asyncio.create_subprocess_exec(*running)
        try:
            await _wait_until_ready(process, port)
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _wait_until_ready(process: asyncio.subprocess.Process, port: int) -> None:
    for _ in range(READY_SECONDS * 2):
        if process.returncode is not None:
            raise Misconfigured(f"a worker has ended with code {process.returncode} at its start; read what it said")
        if await asyncio.to_thread(_is_ready, port):
            return
        await asyncio.sleep(0.5)
    raise Misconfigured(f"a worker was not ready within {READY_SECONDS} s; read what it said")


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=4) as answer:
            return answer.status == 200
    except (URLError, OSError):
        return False


async def _start_messages(client: Client, settings: Settings) -> None:
    """Start messages that come back once: at the drain some are asleep, some at work and some done."""
    starter = BulkStarter(client, settings)
    payload = {"delay": DELAY_SECONDS, "cycles": 2}
    requests = (
        (number, Envelope(kind="echo", id=str(number), lane="short", payload=payload)) for number in range(MESSAGES)
    )
    async for _ in starter.start_all(requests):
        pass


async def _count_done(client: Client, *, patience: timedelta) -> int:
    """Count the messages that have ended, until all have, or none has for this long: one that is lost never does."""
    query = f"WorkflowType = '{MESSAGE_WORKFLOW}' AND ExecutionStatus = 'Completed'"
    done = 0
    deadline = time.monotonic() + patience.total_seconds()
    while done < MESSAGES and time.monotonic() <= deadline:
        await asyncio.sleep(0.5)
        found = (await client.count_workflows(query)).count
        if found > done:
            done = found
            deadline = time.monotonic() + patience.total_seconds()

    return done


async def _run_to_end(command: Sequence[str]) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return said.decode()
