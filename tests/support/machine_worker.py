"""The worker process of the state machine of tests/integration/test_state_machine.py, ended by SIGKILL at any moment.

Its handler does what a message's payload says, and its clock follows the messages' own, which time skipping moves: the
machine writes the offset into a file.
"""

import asyncio
import contextlib
import json
import multiprocessing
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from activities import Again, Context, Done, Message, Pack, Reject, handler
from activities.registry import Registry
from examples.ledger import Entry, Ledger
from shared.settings import Settings
from shared.temporal.connect import connect
from worker.lanes.profiles import PROFILES
from worker.run import WorkerPlan, run_workers

PACK = Pack(packs=2, coalesce=timedelta(0))
STICKY_TIMEOUT = timedelta(seconds=1)
"""How long a task may wait for a worker that was killed."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The files by which the machine and its workers know of each other."""

    path: Path

    @property
    def ledger(self) -> Ledger:
        """The calls of handlers; `note` is the payload."""
        return Ledger(self.path / "ledger.jsonl")

    @property
    def barrier(self) -> Path:
        """A file for as long as handlers are to wait with their outcome."""
        return self.path / "barrier"

    def write_clocks(self, offsets: dict[str, float]) -> None:
        """Say by how many seconds the clock of each message is ahead."""
        written = self.path / "clocks.new"
        written.write_text(json.dumps(offsets))
        written.rename(self.path / "clocks.json")

    def read_clock(self, message_id: str) -> float:
        """Give a message's own time, in seconds since the epoch."""
        return time.time() + json.loads((self.path / "clocks.json").read_text())[message_id]


def make_handlers(folder: Folder, kinds: dict[str, Pack | None]) -> Registry:
    """Make a handler for each kind, with its encoding."""

    async def act(message: Message, ctx: Context) -> Again | Done | Reject:
        payload: dict[str, Any] = message.payload
        due = ctx.due_at.timestamp()
        folder.ledger.append(
            Entry(
                what="began",
                id=f"{message.kind}:{message.id}",
                version=message.version,
                attempt=ctx.attempt,
                at=time.time(),
                due_at=due,
                lane=message.lane,
                note=json.dumps(payload, sort_keys=True),
            )
        )

        while folder.barrier.exists():  # noqa: ASYNC110 — another process removes it
            await asyncio.sleep(0.02)

        match payload["do"]:
            case "done":
                return Done(message.version)
            case "reject":
                return Reject("its payload says so")
            case _:
                now = max(due, folder.read_clock(f"{message.kind}:{message.id}"))
                at = datetime.fromtimestamp(now, UTC) + timedelta(hours=payload["hours"])
                return Again(
                    at=at,
                    earliest=timedelta(0) if payload["may_be_pulled"] else at,
                    tolerance=timedelta(0),
                    payload={**payload, "cycles": payload["cycles"] + 1},
                )

    found = (handler(kind, encoding=encoding)(act) for kind, encoding in kinds.items())
    return Registry([("the machine", each) for each in found])


def run_worker(address: str, settings: Settings, folder: Folder, kinds: dict[str, Pack | None]) -> None:
    """Serve the short lane until this process is killed, or the one that began it ends."""
    with asyncio.Runner() as runner:
        runner.run(_serve(address, settings, make_handlers(folder, kinds)))


async def _serve(address: str, settings: Settings, registry: Registry) -> None:
    stopping = asyncio.Event()
    parent = multiprocessing.parent_process()
    assert parent is not None
    asyncio.get_running_loop().add_reader(parent.sentinel, stopping.set)
    client = await connect(settings, {"TEMPORAL_ADDRESS": address})
    plan = WorkerPlan(
        settings=settings,
        registry=registry,
        lanes=("short",),
        drain=timedelta(0),
        profiles={"short": replace(PROFILES["short"], sticky_timeout=STICKY_TIMEOUT)},
    )

    with contextlib.suppress(asyncio.CancelledError):
        await run_workers(client, plan, stopping)


class KilledWorker:
    """A worker process that is begun from a process which has imported everything, and ended with SIGKILL."""

    def __init__(self, address: str, settings: Settings, folder: Folder, kinds: dict[str, Pack | None]) -> None:
        self._arguments = (address, settings, folder, kinds)
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        """Begin the process; it serves some moments later."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._process = context.Process(target=run_worker, args=self._arguments, daemon=True)
        self._process.start()

    def kill(self) -> None:
        """End the process by its id, in the middle of whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
