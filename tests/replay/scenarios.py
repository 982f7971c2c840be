"""Lives of messages that are recorded once and replayed for ever: each walks through different commands.

`python -m tests.replay.scenarios [NAME ...]` runs them on a new embedded server and writes histories and fingerprints.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from activities import Again, Context, Done, Message, Reject, handler
from activities.api.handler import Handler
from activities.registry import Registry
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import layout_workflow_id, pack_workflow_id
from shared.messages.signals import (
    SIGNAL_NAMES,
    Pause,
    PullForward,
    PullMany,
    Reprioritize,
    Reschedule,
    Resume,
    Revise,
    RunNow,
    Signal,
    Stop,
    to_epoch,
    write_steering,
)
from shared.settings import Settings
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from tests.replay.runs import fingerprint, follow_runs, wait_at_rest
from worker.run import WorkerPlan, run_workers

HERE = Path(__file__).parent
HISTORIES = HERE / "histories"
FINGERPRINTS = HERE / "fingerprints.json"
SETTINGS = Settings(
    task_queue_prefix="replay",
    cycles_per_run=2,
    compress_packs=True,
    sandbox=True,
    workflow_task_timeout=timedelta(seconds=10),
)
IDLE_RUN = ["record marker"]  # what each run begins with; one that does nothing more shows nothing
HOUR = timedelta(hours=1)
QUERY_TIMEOUT = timedelta(seconds=5)
LOST = (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED)  # a query on a busy server, to be asked again
AWHILE = timedelta(seconds=2)  # more than the second that the server leaves between two runs


@handler("replay", max_attempts=2, backoff=timedelta(seconds=1))
async def act(message: Message, ctx: Context) -> Again | Done | Reject:
    """Do what the payload lists for this version, the last entry for all later ones."""
    steps: list[str] = message.payload
    match steps[min(message.version, len(steps) - 1)]:
        case "again":
            return Again(after=AWHILE, tolerance=timedelta(0))
        case "sleep":
            return Again(after=HOUR, earliest=timedelta(0), tolerance=timedelta(0))
        case "medium":
            return Again(after=AWHILE, lane="medium", tolerance=timedelta(0))
        case "fail" if ctx.attempt == 1:
            raise RuntimeError("once")
        case "reject":
            return Reject("unfit")
        case _:
            return Done()


PACK = Pack(packs=1, size=50, coalesce=timedelta(0))
SUFFIXES = ("", "-now", "-again")
"""Of recorded lives, of those that are compared with them, and of those that are lived a second time."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The message that a life is about, in a workflow of its own or in a pack."""

    client: Client
    kind: str
    id: str
    lane: str
    is_packed: bool

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        """The workflow that it lives in."""
        name = pack_workflow_id(self.kind, 0) if self.is_packed else f"{self.kind}:{self.id}"
        return self.client.get_workflow_handle(name)

    async def send(self, signal: Signal) -> None:
        """Steer it."""
        wire = write_steering([self.id], signal, "") if self.is_packed else signal
        await self.handle.signal(SIGNAL_NAMES[type(signal)], wire)

    async def until(self, **expected: Any) -> None:
        """Wait until its status shows the expected values."""
        while True:
            try:
                found = await self.status()
            except RPCError as exc:
                if exc.status not in LOST:
                    raise
            else:
                if all(found[key] == value for key, value in expected.items()):
                    return
            await asyncio.sleep(0.1)

    async def status(self) -> dict[str, Any]:
        """Ask itself."""
        arguments = [self.id] if self.is_packed else []
        return await self.handle.query("status", args=arguments, rpc_timeout=QUERY_TIMEOUT)

    async def start(self, steps: dict[str, list[str]]) -> str:
        """Start messages of its kind in one call; gives the run that they began."""
        encodings = {self.kind: PACK} if self.is_packed else {}
        envelopes = [(i, Envelope(kind=self.kind, id=i, lane=self.lane, payload=todo)) for i, todo in steps.items()]
        starter = BulkStarter(self.client, SETTINGS, encodings=encodings)
        receipts = [receipt async for receipt in starter.start_all(envelopes)]
        return receipts[0].run_id


Life = Callable[[Subject], Awaitable[None]]


async def loop(_: Subject) -> None:
    """Three versions; nothing happens from outside."""


async def steered(message: Subject) -> None:
    """Every signal once, each applied before the next is sent."""
    await message.until(version=1)
    await message.send(Pause())
    await message.until(state="paused")
    await message.send(Resume())
    await message.until(state="active")
    await message.send(Reprioritize(1))
    await message.until(priority=1)
    later = (datetime.now(UTC) + 2 * HOUR).isoformat()
    await message.send(Reschedule(later))
    await message.until(due_at_epoch=to_epoch(later))
    await message.send(Revise(["sleep"], source="topic/0", offset=1))
    await message.until(revision=1)
    await message.send(RunNow())
    await message.until(version=2)
    due_at = datetime.fromtimestamp((await message.status())["due_at_epoch"], UTC)
    await message.send(PullForward(due_at.isoformat()))
    await message.until(version=3)
    await message.send(Stop())


async def parked(message: Subject) -> None:
    """Rejected, repaired, replayed."""
    await message.until(state="parked")
    await message.send(Revise(["done"]))
    await message.until(revision=1)
    await message.send(RunNow())


async def joined(message: Subject) -> None:
    """Another one comes into its pack, has its life there and leaves."""
    await message.until(version=1)
    other = replace(message, id="b")
    await other.start({"b": ["again", "done"]})
    await other.until(state="done")
    await message.send(Stop())


async def pulled(message: Subject) -> None:
    """Its pack is to run one message ahead of time, and gets that signal twice."""
    await message.until(version=1)
    now = datetime.now(UTC)
    pull = PullMany(1, now.timestamp(), (now + 2 * HOUR).timestamp(), "pull")
    for _ in range(2):
        await message.handle.signal(SIGNAL_NAMES[PullForward], asdict(pull))
        await message.until(version=2)
    await message.send(Stop())


async def spread(message: Subject) -> None:
    """Another one leaves, because the kind has two packs now."""
    await message.until(version=1)
    await message.handle.signal("spread", {"packs": 2})
    while True:
        overview = await message.handle.query("overview", result_type=dict[str, Any])
        if overview["asleep"] == 1:
            break
        await asyncio.sleep(0.1)
    await message.send(Stop())


LIVES: dict[str, tuple[str, list[str], Life]] = {
    "loop": ("short", ["again", "again", "done"], loop),
    "loop_medium": ("medium", ["again", "fail", "done"], loop),
    "lane_move": ("short", ["medium", "again", "done"], loop),
    "failing": ("short", ["fail", "done"], loop),
    "parked": ("short", ["reject"], parked),
    "steered": ("short", ["sleep"], steered),
}
MANY = {f"m{n}": ["again", "again", "done"] for n in range(40)}  # enough cycles for another run, and compressed bytes
PACK_LIVES: dict[str, tuple[str, dict[str, list[str]], Life]] = {
    "pack_loop": ("short", MANY, loop),
    "pack_loop_medium": ("medium", {"a": ["again", "fail", "done"], "b": ["again", "done"]}, loop),
    "pack_lane_move": ("short", {"a": ["medium", "again", "done"]}, loop),
    "pack_parked": ("short", {"a": ["reject"]}, parked),
    "pack_steered": ("short", {"a": ["sleep"]}, steered),
    "pack_pulled": ("short", {"a": ["sleep"]}, pulled),
    "pack_joined": ("short", {"a": ["sleep"]}, joined),
    "pack_spread": ("short", {"a": ["sleep"], "e": ["sleep"]}, spread),  # of two packs, e belongs to the second
}


async def live(client: Client, name: str, suffix: str = "") -> list[WorkflowHistory]:
    """Let messages live the named life and give the histories of the runs they lived in, first to last."""
    if name in PACK_LIVES:
        return await _live_packed(client, name, suffix)
    lane, steps, life = LIVES[name]
    message = Subject(client, "replay", name + suffix, lane, is_packed=False)
    run_id = await message.start({message.id: steps})
    histories: dict[str, WorkflowHistory] = {}
    following = asyncio.create_task(follow_runs(message.handle, client, run_id, histories))
    try:
        await life(message)
        await following
    finally:
        following.cancel()
    return list(histories.values())


async def _live_packed(client: Client, name: str, suffix: str) -> list[WorkflowHistory]:
    lane, steps, life = PACK_LIVES[name]
    kind = f"replay-{name}{suffix}"
    message = Subject(client, kind, next(iter(steps)), lane, is_packed=True)
    run_id = await message.start(steps)
    histories: dict[str, WorkflowHistory] = {}
    following = asyncio.create_task(follow_runs(message.handle, client, run_id, histories))
    try:
        await life(message)
        last = await wait_at_rest(message.handle, histories)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        for workflow_id in (layout_workflow_id(kind), *(pack_workflow_id(kind, n) for n in range(2))):
            with contextlib.suppress(RPCError):  # most have one pack
                await client.get_workflow_handle(workflow_id).terminate()
    return [*histories.values(), *([last] if fingerprint([last])[0] != IDLE_RUN else [])]


def _handlers() -> Iterable[Handler]:
    yield act
    for name in PACK_LIVES:
        for suffix in SUFFIXES:
            yield replace(act, kind=f"replay-{name}{suffix}")


async def serve_lives(client: Client, stopping: asyncio.Event) -> None:
    """Run the workers that these lives need."""
    plan = WorkerPlan(
        settings=SETTINGS, registry=Registry(("replay", h) for h in _handlers()), drain=timedelta(seconds=2)
    )
    await run_workers(client, plan, stopping)


async def record(names: Iterable[str]) -> None:
    """Live the named lives on a fresh server and write them down."""
    HISTORIES.mkdir(exist_ok=True)
    fingerprints: dict[str, list[list[str]]] = json.loads(FINGERPRINTS.read_text())
    stopping = asyncio.Event()
    with tempfile.TemporaryDirectory() as folder:
        options = EmbeddedOptions(data=Path(folder), port=find_free_port(), ui_port=None, slim=False)
        async with run_embedded(options) as server:
            client = await server.connect()
            serving = asyncio.create_task(serve_lives(client, stopping))
            try:
                for name in names:
                    histories = await live(client, name)
                    fingerprints[name] = fingerprint(histories)
                    for number, history in enumerate(histories):
                        text = history.to_json().replace(f"@{socket.gethostname()}", "@host")
                        (HISTORIES / f"{name}-{number}.json").write_text(text + "\n")
            finally:
                stopping.set()
                await serving
    FINGERPRINTS.write_text(json.dumps(fingerprints, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or (*LIVES, *PACK_LIVES)))
    sys.stdout.flush()
    os._exit(0)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
