"""A change of versions: messages of an older one go on with today's and back, with and without worker versioning."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentVersionRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from activities.idle.capacity import Capacity
from chaos.processes import lay_older_code
from examples.ledger import LEDGER_VARIABLE, Entry, Ledger
from shared.lanes import LANES, task_queue
from shared.messages.signals import Pause, Resume, Revise, RunNow, Signal, Stop
from shared.settings import Settings
from starter.control import Control
from starter.local.embedded import EmbeddedServer
from tests.conftest import wait_until
from tests.processes import ROOT, run_to_end
from tests.subjects import Subject

pytestmark = [pytest.mark.long, pytest.mark.timeout(360)]  # half a minute each where the machine is free

OLDER, TODAY = "older", "today"
BUSY = ("looping", "medium", "moving")
PATIENCE = 150.0
CYCLES = 6  # more than a run has: every message continues as new on the way

BEGIN = """
import os, runpy, sys
import worker.run
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig

def build(*arguments, build_id, **options):
    version = WorkerDeploymentVersion(os.environ["DORMICE_DEPLOYMENT_NAME"], os.environ["DORMICE_BUILD_ID"])
    config = WorkerDeploymentConfig(version, True, VersioningBehavior.AUTO_UPGRADE)
    return Worker(*arguments, deployment_config=config, **options)

if os.environ.get("DORMICE_DEPLOYMENT_NAME"):
    worker.run.Worker = build
runpy.run_module("worker", run_name="__main__", alter_sys=True)
"""
"""How a worker of the older code begins, which knows nothing of deployments yet."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A place for workers of both versions, and the messages that they take from each other."""

    client: Client
    settings: Settings
    folder: Path
    older_path: str
    environment: dict[str, str]
    prefix: str
    ledger: Ledger

    @contextlib.asynccontextmanager
    async def worker(self, code: str) -> AsyncGenerator[asyncio.subprocess.Process]:
        """Run a worker of one version until it has drained."""
        begin = ("-c", BEGIN) if code == OLDER else ("-m", "worker")
        arguments = ("--processes", "1", "--drain-seconds", "1")
        with (self.folder / f"{code}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", *begin, *arguments), env=self._environment(code), stderr=log, cwd=self.folder
            )
        try:
            yield process
            process.terminate()
            assert await process.wait() == 0, (self.folder / f"{code}.log").read_text()[-3000:]
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def start(self, code: str) -> None:
        """Start one message of each life in each encoding with one version's own starter."""
        command = (sys.executable, "-P", "-m", "tests.rolling_lives", f"{self.prefix}-{code}")
        exit_code, out, err = await run_to_end(*command, cwd=self.folder, env=self._environment(code))
        assert (exit_code, out.count(" started ")) == (0, 14), out + err

    def _environment(self, code: str) -> dict[str, str]:
        path = self.older_path if code == OLDER else str(ROOT)
        return {**self.environment, "PYTHONPATH": path, "DORMICE_BUILD_ID": code}

    def subjects(self, code: str, *names: str) -> list[Subject]:
        """Give those messages that one version's starter started, solo and packed."""
        kind, control = self.environment["ROLLING_KIND"], Control(self.client, self.settings)
        solo = [Subject(self.client, control, "solo", kind, f"{self.prefix}-{code}-{name}") for name in names]
        return solo + [Subject(self.client, control, "pack", f"{s.kind}-packed", f"{s.id}-packed") for s in solo]

    async def send(self, subjects: list[Subject], *signals: Signal) -> None:
        """Steer messages, one signal after the other."""
        for signal in signals:
            await asyncio.gather(*(subject.send(signal) for subject in subjects))

    def entries(self, subject: Subject, *, code: str = "", skip: int = 0) -> list[Entry]:
        """Give what was decided on a message by one version's handlers."""
        ours = [e for e in self.ledger.entries[skip:] if e.id == subject.id and e.what != "began"]
        return [e for e in ours if e.note == code] if code else ours

    async def until_done_by(self, code: str, subjects: list[Subject], cycles: int, skip: int) -> None:
        """Wait until one version has done `cycles` cycles of each message since a line of the ledger."""

        def is_done() -> bool:
            return all(len(self.entries(subject, code=code, skip=skip)) >= cycles for subject in subjects)

        await wait_until(is_done, f"{code} has done {cycles} cycles of {[s.id for s in subjects]}", PATIENCE)

    async def until(self, subjects: list[Subject], state: str) -> None:
        """Wait until messages are in a state."""
        for subject in subjects:
            await wait_until(lambda subject=subject: subject.has(state=state), f"{subject.id} is {state}", PATIENCE)

    async def make_current(self, code: str) -> None:
        """Let a version have all tasks, as soon as the server knows its workers on all lanes."""
        await wait_until(lambda: self._polls_all_lanes(code), f"workers of {code} poll all lanes", PATIENCE)
        await self.client.workflow_service.set_worker_deployment_current_version(
            SetWorkerDeploymentCurrentVersionRequest(
                namespace=self.client.namespace, deployment_name=self._deployment, build_id=code, identity="test"
            )
        )

    async def _polls_all_lanes(self, code: str) -> bool:
        version = WorkerDeploymentVersion(deployment_name=self._deployment, build_id=code)
        request = DescribeWorkerDeploymentVersionRequest(namespace=self.client.namespace, deployment_version=version)
        try:
            described = await self.client.workflow_service.describe_worker_deployment_version(request)
        except RPCError:  # its first poll has not come yet
            return False
        return len({queue.name for queue in described.version_task_queues}) == len(LANES)

    @property
    def _deployment(self) -> str:
        return self.environment["DORMICE_DEPLOYMENT_NAME"]


@pytest.fixture
def stage(
    server: EmbeddedServer,
    client: Client,
    settings: Settings,
    ledger: Ledger,
    message_id: Callable[[], str],
) -> Stage:
    """Nobody works yet."""
    prefix, folder = message_id(), Path(os.environ[LEDGER_VARIABLE]).parent
    environment = os.environ | {
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "DORMICE_TASK_QUEUE_PREFIX": settings.task_queue_prefix,
        "DORMICE_WORKFLOW_TASK_TIMEOUT": "5s",
        "DORMICE_HANDLERS": "tests.rolling_lives",
        "ROLLING_KIND": f"rolling-{prefix}",
    }
    older_path = lay_older_code(folder)
    assert older_path
    return Stage(client, settings, folder, older_path, environment, prefix, ledger)


async def settle_in(stage: Stage, code: str) -> None:
    """Start messages with one version and bring each into the phase that its name says."""
    await stage.start(code)
    await stage.until_done_by(code, stage.subjects(code, *BUSY, "asleep", "paused"), 1, 0)
    await stage.send(stage.subjects(code, "paused"), Pause())
    await stage.until(stage.subjects(code, "paused"), "paused")
    await stage.until(stage.subjects(code, "parked"), "parked")


async def go_on(stage: Stage, code: str, of: str) -> None:
    """See messages that one version has settled in, in all phases, through some cycles of another."""
    skip = len(stage.ledger.entries)
    await stage.until_done_by(code, stage.subjects(of, *BUSY), CYCLES, skip)
    skip = len(stage.ledger.entries)
    await stage.send(stage.subjects(of, "asleep"), RunNow())
    await stage.send(stage.subjects(of, "paused"), RunNow(), Resume())
    await stage.send(stage.subjects(of, "parked"), Revise("sleep"), RunNow())
    await stage.until_done_by(code, stage.subjects(of, "asleep", "paused", "parked"), 1, skip)


async def end_all(stage: Stage, *codes: str) -> None:
    """Stop every message, and see that no version of any was left out or decided twice."""
    everybody = [s for c in codes for s in stage.subjects(c, *BUSY, "held", "asleep", "paused", "parked")]
    await stage.send(everybody, Stop())
    for ended in await asyncio.gather(*(subject.wait_ended() for subject in everybody)):
        assert ended["state"] == "stopped"
    for subject in everybody:
        versions = [e.version for e in stage.entries(subject) if e.what == "again"]
        assert len(versions) == len(set(versions)), f"{subject.id}: {versions}"
        began = {e.version for e in stage.ledger.entries if e.id == subject.id}
        assert began == set(range(max(began) + 1)), f"{subject.id}: {sorted(began)}"


async def test_messages_of_an_older_version_finish_on_todays_and_go_back(stage: Stage) -> None:
    """Workers are replaced: messages asleep, at work, parked, paused or between runs go on with whatever code there is.

    What today's code has begun behind a patch waits for it while older code is back, and goes on then.
    """
    async with stage.worker(OLDER):
        await settle_in(stage, OLDER)
    async with stage.worker(TODAY):
        (stage.folder / "ledger.open").touch()
        await go_on(stage, TODAY, of=OLDER)
        await stage.until_done_by(TODAY, stage.subjects(OLDER, "held"), 1, 0)
        await settle_in(stage, TODAY)
    async with stage.worker(OLDER):  # rolled back
        await go_on(stage, OLDER, of=OLDER)
        skip = len(stage.ledger.entries)
        await stage.until_done_by(OLDER, stage.subjects(OLDER, *BUSY, "held"), 1, skip)
    async with stage.worker(TODAY):
        await go_on(stage, TODAY, of=TODAY)
        await end_all(stage, OLDER, TODAY)


async def test_with_worker_versioning_the_current_version_alone_gets_messages(stage: Stage) -> None:
    """Workers of both versions stay: changing the current one moves every message over, and back, also mid handler."""
    stage.environment["DORMICE_DEPLOYMENT_NAME"] = stage.settings.task_queue_prefix
    async with stage.worker(OLDER), stage.worker(TODAY) as today:
        await stage.make_current(OLDER)
        await settle_in(stage, OLDER)
        # the older worker counts for twenty seconds of each minute: so seldom does it send heartbeats
        assert identity_of(today) not in await find_counted(stage)
        await stage.make_current(TODAY)
        await wait_until(lambda: says_who_is_current(stage), "today's worker tells that it gets tasks", PATIENCE)
        assert await find_counted(stage) == {identity_of(today)}
        (stage.folder / "ledger.open").touch()
        await go_on(stage, TODAY, of=OLDER)
        await stage.make_current(OLDER)  # rolled back
        await go_on(stage, OLDER, of=OLDER)
        await end_all(stage, OLDER)


async def find_counted(stage: Stage) -> set[str]:
    """Find the worker processes of the short lane that count as capacity."""
    return await Capacity(stage.client, task_queue(stage.settings.task_queue_prefix, "short")).find_identities()


def identity_of(process: asyncio.subprocess.Process) -> str:
    """Give the name under which the SDK reports a worker of a process."""
    return f"{process.pid}@{socket.gethostname()}"


def says_who_is_current(stage: Stage) -> bool:
    """Tell whether today's worker has told that it got nothing at first, and then that it does."""
    log = (stage.folder / f"{TODAY}.log").read_text()
    return "this build gets no tasks" in log and "this build gets tasks" in log.partition("gets no tasks")[2]
