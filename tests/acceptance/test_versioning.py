"""A change of versions: messages of the baseline go on with today's workers, and back, also by worker versioning."""

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
from examples.ledger import LEDGER_VARIABLE, Entry, Ledger
from shared.lanes import LANES, task_queue
from shared.messages.envelope import Envelope
from shared.messages.signals import Pause, Resume, Revise, RunNow, Signal, Stop
from shared.settings import Settings
from starter.control import Control
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import wait_until
from tests.support.baseline import unpack_code
from tests.support.processes import ROOT
from tests.support.subjects import PACK, Subject

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]  # a minute where the machine is free

BASELINE = "baseline"
TODAY = "today"
BUSY = ("looping", "medium", "moving")
LIVES = {
    "looping": ("short", "again"),
    "medium": ("medium", "again"),
    "moving": ("short", "move"),
    "held": ("medium", "hold"),
    "asleep": ("short", "sleep"),
    "paused": ("short", "sleep"),
    "parked": ("short", "reject"),
}
"""Where each message begins, and what its handler in `tests.support.versioned_lives` does with it."""
PATIENCE = 100.0
CYCLES = 6  # more than a run has: every message continues as new on the way


@dataclass(frozen=True, slots=True)
class Stage:
    """A place for workers of the baseline and of today, and the messages that they take from each other."""

    client: Client
    settings: Settings
    folder: Path
    baseline: Path
    environment: dict[str, str]
    prefix: str
    ledger: Ledger

    @contextlib.asynccontextmanager
    async def worker(self, build: str) -> AsyncGenerator[asyncio.subprocess.Process]:
        """Run a worker of one build until it has drained; the baseline has its own code, and today's handlers."""
        arguments = ("-m", "worker", "--processes", "1", "--drain-seconds", "1")
        folders = {BASELINE: [self.baseline, ROOT], TODAY: [ROOT]}[build]
        path = os.pathsep.join(map(str, folders))
        environment = {**self.environment, "PYTHONPATH": path, "DORMICE_BUILD_ID": build}

        with (self.folder / f"{build}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", *arguments), env=environment, stderr=log, cwd=self.folder
            )

        try:
            yield process
            process.terminate()
            assert await process.wait() == 0, (self.folder / f"{build}.log").read_text()[-3000:]
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def start(self) -> None:
        """Start one message of each life in each encoding."""
        kind = self.environment["VERSIONED_KIND"]
        starter = BulkStarter(self.client, self.settings, encodings={f"{kind}-packed": PACK})
        envelopes = [
            (None, Envelope(kind=kind + suffix, id=f"{self.prefix}-{name}{suffix}", lane=lane, payload=payload))
            for suffix in ("", "-packed")
            for name, (lane, payload) in LIVES.items()
        ]
        async for receipt in starter.start_all(envelopes):
            assert receipt.outcome is StartOutcome.STARTED, receipt

    def subjects(self, *names: str) -> list[Subject]:
        """Give those messages, solo and packed."""
        kind = self.environment["VERSIONED_KIND"]
        control = Control(self.client, self.settings)
        solo = [Subject(self.client, control, "solo", kind, f"{self.prefix}-{name}") for name in names]
        return solo + [Subject(self.client, control, "pack", f"{s.kind}-packed", f"{s.id}-packed") for s in solo]

    async def send(self, subjects: list[Subject], *signals: Signal) -> None:
        """Steer messages, one signal after the other."""
        for signal in signals:
            await asyncio.gather(*(subject.send(signal) for subject in subjects))

    def entries(self, subject: Subject, *, build: str = "", skip: int = 0) -> list[Entry]:
        """Give what was decided on a message by one build's handlers."""
        ours = [e for e in self.ledger.entries[skip:] if e.id == subject.id and e.what != "began"]
        return [e for e in ours if e.note == build] if build else ours

    async def until_done_by(self, build: str, subjects: list[Subject], cycles: int, skip: int) -> None:
        """Wait until one build has done `cycles` cycles of each message since a line of the ledger."""

        def is_done() -> bool:
            return all(len(self.entries(subject, build=build, skip=skip)) >= cycles for subject in subjects)

        await wait_until(is_done, f"{build} has done {cycles} cycles of {[s.id for s in subjects]}", PATIENCE)

    async def until(self, subjects: list[Subject], state: str) -> None:
        """Wait until messages are in a state."""
        for subject in subjects:
            await wait_until(lambda subject=subject: subject.has(state=state), f"{subject.id} is {state}", PATIENCE)

    async def make_current(self, build: str) -> None:
        """Let a version have all tasks, as soon as the server knows its workers on all lanes."""
        await wait_until(lambda: self._polls_all_lanes(build), f"workers of {build} poll all lanes", PATIENCE)
        await self.client.workflow_service.set_worker_deployment_current_version(
            SetWorkerDeploymentCurrentVersionRequest(
                namespace=self.client.namespace, deployment_name=self._deployment, build_id=build, identity="test"
            )
        )

    async def _polls_all_lanes(self, build: str) -> bool:
        return await self.find_queues(build) >= {task_queue(self.settings.task_queue_prefix, lane) for lane in LANES}

    async def find_queues(self, build: str) -> set[str]:
        """Find the task queues that belong to a build's version."""
        version = WorkerDeploymentVersion(deployment_name=self._deployment, build_id=build)
        request = DescribeWorkerDeploymentVersionRequest(namespace=self.client.namespace, deployment_version=version)
        try:
            described = await self.client.workflow_service.describe_worker_deployment_version(request)
        except RPCError:  # its first poll has not come yet
            return set()
        return {queue.name for queue in described.version_task_queues}

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
    prefix = message_id()
    folder = Path(os.environ[LEDGER_VARIABLE]).parent
    environment = os.environ | {
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "DORMICE_TASK_QUEUE_PREFIX": settings.task_queue_prefix,
        "DORMICE_HANDLERS": "tests.support.versioned_lives",
        "VERSIONED_KIND": f"versioned-{prefix}",
    }
    return Stage(client, settings, folder, unpack_code(folder), environment, prefix, ledger)


async def settle_in(stage: Stage, build: str) -> None:
    """Start messages that one build takes, and bring each into the phase that its name says."""
    await stage.start()
    await stage.until_done_by(build, stage.subjects(*BUSY, "asleep", "paused"), 1, 0)
    await stage.send(stage.subjects("paused"), Pause())
    await stage.until(stage.subjects("paused"), "paused")
    await stage.until(stage.subjects("parked"), "parked")


async def go_on(stage: Stage, build: str) -> None:
    """See messages in all phases through some cycles of a build."""
    skip = len(stage.ledger.entries)
    await stage.until_done_by(build, stage.subjects(*BUSY), CYCLES, skip)
    skip = len(stage.ledger.entries)
    await stage.send(stage.subjects("asleep"), RunNow())
    await stage.send(stage.subjects("paused"), RunNow(), Resume())
    await stage.send(stage.subjects("parked"), Revise("sleep"), RunNow())
    await stage.until_done_by(build, stage.subjects("asleep", "paused", "parked"), 1, skip)


async def end_all(stage: Stage) -> None:
    """Stop every message, and see that no version of any was left out, decided twice or called twice."""
    everybody = stage.subjects(*LIVES)
    await stage.send(everybody, Stop())
    for ended in await asyncio.gather(*(subject.wait_ended() for subject in everybody)):
        assert ended["state"] == "stopped"
    for subject in everybody:
        versions = [e.version for e in stage.entries(subject) if e.what == "again"]
        assert len(versions) == len(set(versions)), f"{subject.id}: {versions}"
        began = [e.version for e in stage.ledger.entries if e.id == subject.id and e.what == "began"]
        assert sorted(began) == list(range(max(began) + 1)), f"{subject.id}: {sorted(began)}"


async def test_messages_of_the_baseline_go_on_with_todays_workers_and_back(stage: Stage) -> None:
    """Workers are replaced, rolled back and replaced again: messages asleep, at work, parked and paused go on."""
    async with stage.worker(BASELINE):
        await settle_in(stage, BASELINE)
        (stage.folder / "ledger.open").touch()
        await stage.until_done_by(BASELINE, stage.subjects("held"), 1, 0)

    async with stage.worker(TODAY):
        await go_on(stage, TODAY)

    async with stage.worker(BASELINE):  # rolled back
        await go_on(stage, BASELINE)

    async with stage.worker(TODAY):
        await go_on(stage, TODAY)
        await end_all(stage)


async def test_with_worker_versioning_the_current_version_alone_gets_messages(stage: Stage) -> None:
    """Workers of both versions stay: changing the current one moves every message over, and back, also mid handler.

    A call in flight stays where it is, and its pack hears of its end; a process's own queue belongs to no version.
    """
    stage.environment["DORMICE_DEPLOYMENT_NAME"] = stage.settings.task_queue_prefix

    async with stage.worker(BASELINE), stage.worker(TODAY) as today:
        await stage.make_current(BASELINE)
        await settle_in(stage, BASELINE)
        await wait_until(lambda: says_it_waits(stage), "today's worker tells that it gets no tasks", PATIENCE)
        # the first worker counts for twenty seconds of each minute: so seldom does it send heartbeats
        assert identity_of(today) not in await find_counted(stage)
        await stage.make_current(TODAY)
        await wait_until(lambda: says_who_is_current(stage), "today's worker tells that it gets tasks", PATIENCE)
        assert await find_counted(stage) == {identity_of(today)}
        await go_on(stage, TODAY)
        (stage.folder / "ledger.open").touch()
        await stage.until_done_by(BASELINE, stage.subjects("held"), 1, 0)
        await stage.until_done_by(TODAY, stage.subjects("held"), 1, 0)
        await stage.make_current(BASELINE)  # rolled back
        await go_on(stage, BASELINE)
        assert len(await stage.find_queues(BASELINE)) == len(LANES)
        await end_all(stage)


async def find_counted(stage: Stage) -> set[str]:
    """Find the worker processes of the short lane that count as capacity."""
    return await Capacity(stage.client, task_queue(stage.settings.task_queue_prefix, "short")).find_identities()


def identity_of(process: asyncio.subprocess.Process) -> str:
    """Give the name under which the SDK reports a worker of a process."""
    return f"{process.pid}@{socket.gethostname()}"


def says_it_waits(stage: Stage) -> bool:
    """Tell whether today's worker has told that it gets nothing; it looks for the first time when it can."""
    return "this build gets no tasks" in (stage.folder / f"{TODAY}.log").read_text()


def says_who_is_current(stage: Stage) -> bool:
    """Tell whether today's worker has told that it got nothing at first, and then that it does."""
    log = (stage.folder / f"{TODAY}.log").read_text()
    return "this build gets no tasks" in log and "this build gets tasks" in log.partition("gets no tasks")[2]
