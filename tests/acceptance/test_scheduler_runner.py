"""The own tests of kafka-message-scheduler, with a bridge and a worker of dormice in the place of its runner."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.local.kafka.broker import BrokerOptions, EmbeddedBroker, run_broker
from starter.local.supervised_process import find_free_port
from tests.scheduler_runner import KIND_VARIABLE

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "tests" / "scheduler_runner"
MODULE = "github.com/etf1/kafka-message-scheduler@v0.0.9"
SUM = "h1:pPhOVD7wl7+xw7sadmdTSMNot/OkhLjyNHsn+BG14V0="
BUILD_SECONDS, RUN_SECONDS = 600, 420

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
async def runner_test(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tests as a program, built from its module with two files replaced: the runner, and the broker's address."""
    if (go := shutil.which("go")) is None:
        pytest.skip("go is not installed")
    folder = tmp_path_factory.mktemp("scheduler") / "source"
    known = json.loads(await _run([go, "mod", "download", "-json", MODULE], folder.parent, BUILD_SECONDS))
    assert known["Sum"] == SUM
    shutil.copytree(known["Dir"], folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    (folder / "runner" / "kafka" / "handler.go").unlink()
    shutil.copy(SHIM / "runner.go", folder / "runner" / "kafka" / "runner.go")
    shutil.copy(SHIM / "helper.go", folder / "internal" / "helper" / "helper.go")
    await _run([go, "test", "-c", "-o", "runner.test", "./runner/kafka"], folder, BUILD_SECONDS)
    return folder / "runner.test"


@pytest.fixture
async def own_broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A broker that lets a group wait for its members as Kafka does by default: the tests count on that."""
    properties = {"group.initial.rebalance.delay.ms": "3000"}
    async with run_broker(BrokerOptions(data=tmp_path, port=find_free_port(), extra_properties=properties)) as broker:
        yield broker


@pytest.mark.long
@pytest.mark.timeout(BUILD_SECONDS + RUN_SECONDS)
async def test_the_runners_own_tests_pass(
    runner_test: Path, server: EmbeddedServer, own_broker: EmbeddedBroker, settings: Settings
) -> None:
    """Target, history and tombstones, late schedules with and without grace, and runners that come and go.

    They run beside each other, because most of their time they sleep.
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
        command = [str(runner_test), "-test.v", "-test.run", test]
        return await _run(command, ROOT, RUN_SECONDS, environment)

    said = await asyncio.gather(*(run(number, *each) for number, each in enumerate(RUNS.items())))

    assert [text.count("--- PASS: TestDefaultKafkaRunner") for text in said] == [1, 1, 1, 1, 2, 2, 2]


async def _run(command: list[str], folder: Path, seconds: float, environment: dict[str, str] | None = None) -> str:
    """Run a program and what it starts, give what it printed, and fail with that if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
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
