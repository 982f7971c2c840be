"""Lives of messages and packs on the real server: each walks through other commands, signals, faults and calls.

All are lived side by side, because most of each is waiting.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
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
from starter.starting.bulk import BulkStarter
from tests.replay.runs import follow_runs, wait_at_rest
from worker.run import WorkerPlan, run_workers

PREFIX = "replay"
HOUR = timedelta(hours=1)
QUERY_TIMEOUT = timedelta(seconds=5)
LOST = (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED)  # a query on a busy server, to be asked again
AWHILE = timedelta(seconds=2)  # more than the second that the server leaves between two runs

OPENINGS: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""What calls of the step "wait" wait for, by kind."""


@handler("replay", max_attempts=2, backoff=timedelta(seconds=1), timeout=timedelta(seconds=28))
async def act(message: Message, ctx: Context) -> Again | Done | Reject:
    """Do what the payload lists for this version, the last entry for all later ones."""
    steps: list[str] = message.payload
    match steps[min(message.version, len(steps) - 1)]:
        case "again":
            return Again(after=AWHILE, tolerance=timedelta(0))
        case "wait":
            await OPENINGS[message.kind].wait()
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
        starter = BulkStarter(self.client, _make_settings(self.kind.partition("-")[0]), encodings=encodings)
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


async def steered_at_work(message: Subject) -> None:
    """Signals come while its handler works; they count once it has ended."""
    await message.until(state="running")
    await message.send(Reprioritize(1))
    await message.send(Pause())
    await message.send(Revise(["done"]))
    await message.until(priority=1, revision=1, state="running")
    OPENINGS[message.kind].set()
    await message.until(state="paused")
    await message.send(RunNow())
    await message.send(Resume())


async def in_flight(message: Subject) -> None:
    """Its pack continues as new while calls are in flight; then they are steered, stopped, and one leaves the pack."""
    first = (await message.handle.describe()).run_id
    while True:
        run_id = (await message.handle.describe()).run_id
        overview = await message.handle.query("overview", result_type=dict[str, Any])
        if run_id != first and overview["running"]:
            break
        await asyncio.sleep(0.1)

    await message.send(Revise(["done"]))
    for other, signal in (("h", Stop()), ("i", Pause()), ("j", RunNow())):
        await replace(message, id=other).send(signal)
    await message.until(revision=1, state="running")
    await message.handle.signal("spread", {"packs": 2})
    OPENINGS[message.kind].set()
    other = replace(message, id="i")
    await other.until(state="paused")
    await other.send(Resume())


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
    "steered_at_work": ("short", ["wait"], steered_at_work),
}
MANY = {f"m{n}": ["again", "again", "done"] for n in range(40)}  # enough cycles for another run
WAITING = {name: ["wait", "done"] for name in "ghijk"}  # of two packs, k belongs to the second
PACK_LIVES: dict[str, tuple[str, dict[str, list[str]], Life]] = {
    "pack_loop": ("short", MANY, loop),
    "pack_loop_medium": ("medium", {"a": ["again", "fail", "done"], "b": ["again", "done"]}, loop),
    "pack_lane_move": ("short", {"a": ["medium", "again", "done"]}, loop),
    "pack_parked": ("short", {"a": ["reject"]}, parked),
    "pack_steered": ("short", {"a": ["sleep"]}, steered),
    "pack_pulled": ("short", {"a": ["sleep"]}, pulled),
    "pack_joined": ("short", {"a": ["sleep"]}, joined),
    "pack_in_flight": ("short", WAITING | MANY, in_flight),
    "pack_spread": ("short", {"g": ["sleep"], "k": ["sleep"]}, spread),  # of two packs, k belongs to the second
}


async def live(client: Client, name: str, prefix: str = PREFIX) -> list[WorkflowHistory]:
    """Let messages live the named life and give the histories of the runs they lived in, first to last.

    `prefix` is that of the workers and of their kinds.
    """
    if name in PACK_LIVES:
        return await _live_packed(client, name, prefix)

    lane, steps, life = LIVES[name]
    message = Subject(client, f"{prefix}-{name}", "a", lane, is_packed=False)
    run_id = await message.start({message.id: steps})
    histories: dict[str, WorkflowHistory] = {}
    following = asyncio.create_task(follow_runs(message.handle, client, run_id, histories))
    try:
        await life(message)
        await following
    finally:
        following.cancel()
    return list(histories.values())


async def _live_packed(client: Client, name: str, prefix: str) -> list[WorkflowHistory]:
    lane, steps, life = PACK_LIVES[name]
    kind = f"{prefix}-{name}"
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

    return [*histories.values(), last]


def _make_settings(prefix: str) -> Settings:
    return Settings(task_queue_prefix=prefix, cycles_per_run=2, sandbox=True)


def _make_handlers(prefix: str) -> Iterable[Handler]:
    for name in (*LIVES, *PACK_LIVES):
        yield replace(act, kind=f"{prefix}-{name}")


async def serve_lives(client: Client, stopping: asyncio.Event, prefix: str = PREFIX) -> None:
    """Run the workers that these lives need."""
    plan = WorkerPlan(
        settings=_make_settings(prefix),
        registry=Registry((prefix, h) for h in _make_handlers(prefix)),
        drain=timedelta(seconds=2),
    )
    await run_workers(client, plan, stopping)
