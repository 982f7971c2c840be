"""The own tests of kafka-message-scheduler, with a bridge and a worker of dormice in the place of its runner."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.local.kafka.broker import BrokerOptions, EmbeddedBroker, run_broker
from starter.local.supervised_process import find_free_port
from tests.acceptance.conftest import Run, Spawn
from tests.conftest import wait_until
from tests.scheduler_runner import KIND_VARIABLE
from tests.support.records import producing
from tests.support.topics import create_topic, read_records

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "tests" / "scheduler_runner"
MODULE = "github.com/etf1/kafka-message-scheduler@v0.0.9"
SUM = "h1:pPhOVD7wl7+xw7sadmdTSMNot/OkhLjyNHsn+BG14V0="
PAGE = (ROOT / "docs" / "moving-in.md").read_text("utf-8")
SECTION = PAGE.partition("## From a Kafka scheduler")[2].partition("\n## ")[0]
COMMAND = re.compile(r"^ *(?:\$|>  ) (dormice .*?)(?: &&)?$", re.MULTILINE)
BUILD_SECONDS = 600
RUN_SECONDS = 420

pytestmark = pytest.mark.xdist_group("scheduler")  # its programs are built once, in one of the suite's processes

RUNS = {
    "^TestDefaultKafkaRunner$": "solo",
    "^TestDefaultKafkaRunner_resilience$": "pack",
    "^TestDefaultKafkaRunner_yaml_configuration$": "pack",
    "^TestDefaultKafkaRunner_issue30$": "solo",
    "^TestDefaultKafkaRunner_issue31$/^case_#0$": "pack",
    "^TestDefaultKafkaRunner_issue31$/^case_#1$": "pack",
    "^TestDefaultKafkaRunner_issue31$/^case_#2$": "solo",
}
"""All tests of its file, and in which encoding each of them runs."""


@pytest.fixture(scope="module")
async def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with its program, `old-scheduler`, and its tests, `runner.test`, with two files of the module replaced.

    Those are the runner, and the broker's address.
    """
    if (go := shutil.which("go")) is None:
        pytest.skip("go is not installed")

    folder = tmp_path_factory.mktemp("scheduler") / "source"
    known = json.loads(await _run([go, "mod", "download", "-json", MODULE], folder.parent, BUILD_SECONDS))
    assert known["Sum"] == SUM
    shutil.copytree(known["Dir"], folder)

    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)

    await _run([go, "build", "-o", "old-scheduler", "./cmd/kafka"], folder, BUILD_SECONDS)
    (folder / "runner" / "kafka" / "handler.go").unlink()
    shutil.copy(SHIM / "runner.go", folder / "runner" / "kafka" / "runner.go")
    shutil.copy(SHIM / "helper.go", folder / "internal" / "helper" / "helper.go")
    await _run([go, "test", "-c", "-o", "runner.test", "./runner/kafka"], folder, BUILD_SECONDS)

    return folder


@pytest.fixture
async def own_broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A broker that lets a group wait for its members as Kafka does by default: the tests count on that."""
    properties = {"group.initial.rebalance.delay.ms": "3000"}
    async with run_broker(BrokerOptions(data=tmp_path, port=find_free_port(), extra_properties=properties)) as broker:
        yield broker


@pytest.mark.long
@pytest.mark.timeout(BUILD_SECONDS + 2 * RUN_SECONDS)
async def test_the_runners_own_tests_pass(
    programs: Path, server: EmbeddedServer, own_broker: EmbeddedBroker, settings: Settings
) -> None:
    """Target, history and tombstones, late schedules with and without grace, and runners that come and go.

    They run beside each other, because most of their time they sleep; but they wait for fixed times, which a busy
    machine does not always keep. So one that failed runs once more, by itself.
    """

    async def run(number: int, test: str, encoding: str) -> str:
        name = f"{settings.task_queue_prefix}-{number}-{encoding}"
        environment = {
            **os.environ,
            "RUNNER_COMMAND": f"{sys.executable} -m starter",
            "RUNNER_BROKER": own_broker.address,
            KIND_VARIABLE: name,
            "GROUP_ID": name,
            "PYTHONPATH": str(ROOT),
            "TEMPORAL_ADDRESS": server.address,
            "DORMICE_KAFKA_SERVERS": own_broker.address,
            "DORMICE_HANDLERS": "tests.scheduler_runner",
            "DORMICE_TASK_QUEUE_PREFIX": name,
        }
        command = [str(programs / "runner.test"), "-test.v", "-test.run", test]
        return await _run(command, ROOT, RUN_SECONDS, environment)

    runs = list(enumerate(RUNS.items()))
    beside = await asyncio.gather(*(run(number, *each) for number, each in runs), return_exceptions=True)
    said = [
        text if isinstance(text, str) else await run(len(RUNS) + number, *each)
        for text, (number, each) in zip(beside, runs, strict=True)
    ]

    assert [text.count("--- PASS: TestDefaultKafkaRunner") for text in said] == [1, 1, 1, 1, 2, 2, 2]


@pytest.mark.long
@pytest.mark.timeout(BUILD_SECONDS + RUN_SECONDS)
async def test_moving_in_loses_nothing_and_sends_nothing_twice(
    programs: Path, own_broker: EmbeddedBroker, environment: dict[str, str], spawn: Spawn, *, run: Run, tmp_path: Path
) -> None:
    """Its scheduler and dormice take turns at one topic, by the commands of docs/moving-in.md, forth and back."""
    today = f"{datetime.now(UTC):%Y-%m-%dT00:00:00Z}"
    shown = [line.replace("2026-11-21T00:00:00Z", today) for line in COMMAND.findall(SECTION)]
    close, bridge, status, open_gate, dead_letters, count, show, close_again = (shlex.split(line)[1:] for line in shown)
    kafka = {"DORMICE_KAFKA_SERVERS": own_broker.address}
    options: dict[str, Any] = {"env": {**environment, **kafka}, "stdout": DEVNULL, "stderr": DEVNULL}
    topics = Topics(own_broker.address)
    for name in ("schedules", "history", "target"):
        await create_topic(own_broker.address, name, 2)

    async def say(arguments: list[str]) -> str:
        ran = await run(*arguments, **kafka)
        assert ran.code == 0, ran.err
        return ran.out + ran.err

    async def is_idle(*more: str) -> bool:
        return "(Stable): 0 records to go" in (await run(*status, *more, **kafka)).err

    async def count_alive() -> int:
        return int(re.findall(r"[0-9]+", await say(count))[0])

    before = await count_alive()
    await spawn("worker", "--lane", "short", "--processes", "1", **options)
    async with _scheduler(programs, own_broker, tmp_path):
        await topics.send("days ago", -2 * 86400)
        await topics.send("vid1-online", 86400)
        await topics.send("by the old one", 10)
        await topics.wait_for("by the old one")
        await say(close)
        bridging = await spawn(*bridge, **options)
        await topics.send("meanwhile", 3)
        await topics.wait_for("meanwhile")

    await wait_until(is_idle, "the bridge has read all")
    assert await say(dead_letters) == "no dead letter matches\n"
    assert "due " in await say(show)

    async def is_here() -> bool:
        return await count_alive() == before + 1

    await wait_until(is_here, "what is pending is here")
    again = await spawn(*bridge, "--group", "proof", **options)
    await wait_until(lambda: is_idle("--group", "proof"), "all is read once more")
    await _end(again)
    assert await count_alive() == before + 1

    await say(open_gate)
    await topics.send("by the new one", 3)
    await topics.wait_for("by the new one")
    await wait_until(is_idle, "its tombstone is read")
    await say(close_again)
    await _end(bridging)
    async with _scheduler(programs, own_broker, tmp_path):
        await topics.send("by the old one again", 10)
        await topics.wait_for("by the old one again")

    sent = ["by the old one", "meanwhile", "by the new one", "by the old one again"]
    assert sorted(await topics.read("target")) == sorted(sent)
    assert sorted(await topics.read("history")) == sorted(sent)


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of the scheduler; a schedule's value is its key."""

    address: str

    async def send(self, key: str, seconds: float) -> None:
        """Send a schedule that is due after some seconds."""
        headers = {"scheduler-epoch": f"{time.time() + seconds:.0f}", "scheduler-target-topic": "target"}
        encoded = [(name, text.encode()) for name, text in headers.items()]
        async with producing(self.address) as producer:
            await producer.send_and_wait("schedules", key.encode(), key=key.encode(), headers=encoded)

    async def read(self, topic: str) -> list[str]:
        """Give the values of a topic."""
        found = [each for number in (0, 1) for each in await read_records(self.address, topic, number)]
        return [each.value.decode() for each in found]

    async def wait_for(self, value: str) -> None:
        """Wait until a value has been sent and is in the history."""

        async def is_sent() -> bool:
            return value in await self.read("target") and value in await self.read("history")

        await wait_until(is_sent, f"{value} is sent")


@contextlib.asynccontextmanager
async def _scheduler(programs: Path, broker: EmbeddedBroker, folder: Path) -> AsyncGenerator[None]:
    """Run the scheduler itself for the length of a `with` block, with the partitioner of its producers."""
    (folder / "scheduler.yaml").write_text("kafka.producer.configuration:\n  partitioner: murmur2_random\n")
    variables = {
        "CONFIGURATION_FILE": "scheduler.yaml",
        "BOOTSTRAP_SERVERS": broker.address,
        "SERVER_ADDR": f"127.0.0.1:{find_free_port()}",
        "METRICS_ADDR": f"127.0.0.1:{find_free_port()}",
    }
    process = await asyncio.create_subprocess_exec(
        programs / "old-scheduler", cwd=folder, env={**os.environ, **variables}, stdout=DEVNULL, stderr=DEVNULL
    )

    try:
        yield
        await _end(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    await process.wait()


async def _run(command: list[str], folder: Path, seconds: float, environment: dict[str, str] | None = None) -> str:
    """Run a program and what it starts, give what it printed, and fail with that if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdin=DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            out, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):  # what a failed test has left running
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    assert process.returncode == 0, f"{command}: {out.decode(errors='replace')[-20_000:]}"
    return out.decode(errors="replace")
