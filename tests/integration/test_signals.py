"""Signals: every one works in every phase of a message, none is lost, all are applied in order."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError

from activities import Again, Context, Done, Message, Reject, handler
from shared.lanes import task_queue
from shared.messages.signals import (
    SIGNAL_NAMES,
    Pause,
    PullForward,
    Reprioritize,
    Reschedule,
    Resume,
    Revise,
    RunNow,
    Signal,
    Stop,
)
from shared.settings import Settings
from starter.control import Control
from tests.conftest import Begin, Serve, wait_until
from tests.support.subjects import Subject

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

LATER = datetime.now(UTC) + timedelta(hours=2)


@dataclass
class Bench:
    """A handler under the test's control: `gate` holds its calls, `calls` counts them."""

    kind: str
    gate: asyncio.Event
    calls: list[Message]
    behave: str = "again"


@pytest.fixture
async def bench(serve: Serve, kind: str) -> AsyncIterator[Bench]:
    """Workers whose one handler waits for the gate and then comes back in an hour, or rejects."""
    bench = Bench(kind, asyncio.Event(), [])
    bench.gate.set()

    @handler(kind, timeout=timedelta(seconds=25))
    async def steered(message: Message, ctx: Context) -> Again | Reject | Done:
        bench.calls.append(message)
        await bench.gate.wait()
        if bench.behave == "reject":
            return Reject("told to")
        return Again(after=timedelta(hours=1), tolerance=timedelta(0))

    async with serve(steered, lanes=("short",)):
        yield bench
        bench.gate.set()


async def bring_to(phase: str, bench: Bench, begin: Begin) -> Subject:
    """Start a message and bring it to a phase; a running one is held by the gate."""
    if phase == "running":
        bench.gate.clear()

    bench.behave = "reject" if phase == "parked" else "again"
    message = await begin(bench.kind, payload={"n": 0})
    await wait_until(lambda: message.id in {called.id for called in bench.calls}, "the handler was called")
    if phase == "running":
        return message

    decided = {"state": "parked"} if phase == "parked" else {"state": "active", "version": 1}
    await wait_until(lambda: message.has(**decided), "the cycle is decided")
    if phase == "paused":
        await message.send_from_sdk(Pause())

    bench.behave = "again"
    return message


# signal, and what the status shows after it: while asleep, parked and paused; and after the cycle for a running one
EFFECTS: list[tuple[Signal, dict[str, dict[str, Any]]]] = [
    (
        RunNow(),
        {
            "asleep": {"version": 2, "state": "active"},
            "running": {"version": 2, "state": "active"},
            "parked": {"version": 1, "state": "active"},
            "paused": {"version": 1, "state": "paused"},
        },
    ),
    (
        Reschedule(LATER.isoformat()),
        {
            phase: {"due_at_epoch": pytest.approx(LATER.timestamp(), abs=0.01), "state": state}
            for phase, state in (
                ("asleep", "active"),
                ("running", "active"),
                ("parked", "active"),
                ("paused", "paused"),
            )
        },
    ),
    (
        Reprioritize(1),
        {
            "asleep": {"priority": 1},
            "running": {"priority": 1},
            "parked": {"priority": 1, "state": "parked"},
            "paused": {"priority": 1, "state": "paused"},
        },
    ),
    (
        Revise({"n": 1}),
        {
            "asleep": {"payload": {"n": 1}, "revision": 1},
            "running": {"payload": {"n": 1}, "revision": 1},
            "parked": {"payload": {"n": 1}, "state": "parked"},
            "paused": {"payload": {"n": 1}, "state": "paused"},
        },
    ),
    (
        Pause(),
        {
            "asleep": {"state": "paused"},
            "running": {"state": "paused", "version": 1},
            "parked": {"state": "parked"},
            "paused": {"state": "paused"},
        },
    ),
    (
        Resume(),
        {
            "asleep": {"state": "active"},
            "running": {"state": "active"},
            "parked": {"state": "parked"},
            "paused": {"state": "active", "version": 1},
        },
    ),
    (Stop("enough"), {phase: {"state": "stopped"} for phase in ("asleep", "running", "parked", "paused")}),
]


@pytest.mark.parametrize("phase", ["asleep", "parked", "paused"])
async def test_signals_sent_straight_from_the_sdk_work_in_every_phase(bench: Bench, begin: Begin, phase: str) -> None:
    """Each of the seven signals has its documented effect while asleep, parked and paused."""
    steered = [(await bring_to(phase, bench, begin), signal, effects[phase]) for signal, effects in EFFECTS]
    for message, signal, _ in steered:
        await message.send_from_sdk(signal)

    for message, signal, effect in steered:
        await wait_until(functools.partial(_is_applied, message, signal), f"{signal} is applied")
        await wait_until(functools.partial(message.has, **effect), f"{phase}, {signal}: {effect}", seconds=20)


@pytest.mark.parametrize(("signal", "effects"), EFFECTS, ids=[SIGNAL_NAMES[type(s)] for s, _ in EFFECTS])
async def test_a_signal_sent_to_a_running_message_has_its_effect(
    bench: Bench, begin: Begin, signal: Signal, effects: dict[str, dict[str, Any]]
) -> None:
    """It is applied while the handler works, and what it asks for holds when the handler has ended."""
    message = await bring_to("running", bench, begin)
    await message.send_from_sdk(signal)
    await wait_until(lambda: _is_applied(message, signal), "the signal is applied")
    assert await message.has(state="running"), "its handler is still at work"
    bench.gate.set()

    await wait_until(lambda: message.has(**effects["running"]), f"{effects['running']}", seconds=20)


async def _is_applied(message: Subject, signal: Signal) -> bool:
    found = await message.status()
    if found["why"] == "stopped as soon as its handler has ended: enough":
        return True
    return any(decision["what"] == SIGNAL_NAMES[type(signal)] for decision in found["decisions"])


async def test_two_hundred_signals_around_continue_as_new_are_all_applied_in_order(
    serve: Serve, begin: Begin, kind: str
) -> None:
    """A message that continues as new every second gets 200 numbered revisions or more, and loses none.

    It is asked for its status all the time meanwhile: the SDK ends a task early then, with its result but not its end.
    """

    @handler(kind)
    async def busy(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(seconds=1), tolerance=timedelta(0))

    async with serve(busy, lanes=("short",), cycles_per_run=1, sandbox=False):  # a sandbox for every cycle is slow
        message = await begin(kind, payload=-1)
        first_run = (await message.handle.describe()).run_id
        for name in message.neighbours(30):  # enough cycles a second for a new run of the pack every second
            await begin(kind, name)
        asking = asyncio.create_task(_ask_for_ever(message))
        offset = -1
        while offset < 199 or (await message.handle.describe()).run_id == first_run:
            offset += 1
            await message.send_from_sdk(Revise(offset, source="topic/0", offset=offset))
            if offset % 10 == 0:
                await message.send_from_sdk(RunNow())
        asking.cancel()  # the server keeps one query for a run that has not begun yet, and would keep this one's

        # an older offset would have been ignored, so as many revisions and the last payload prove the order
        all_applied = functools.partial(message.has, revision=offset + 1, payload=offset)
        await wait_until(all_applied, "all revisions, the last one in force")
        await message.send_from_sdk(Stop())
        assert (await message.wait_ended())["state"] == "stopped"


async def _ask_for_ever(message: Subject) -> None:
    while True:
        await message.status()
        await asyncio.sleep(0.02)


async def test_a_redelivered_or_older_revision_does_nothing(bench: Bench, begin: Begin) -> None:
    """Revisions out of order: the newest offset of each source wins, repeats are ignored."""
    message = await bring_to("asleep", bench, begin)
    for source, offset in (("t/0", 5), ("t/0", 3), ("t/0", 5), ("t/1", 1), ("t/0", 6), ("t/0", 4)):
        await message.send_from_sdk(Revise(f"{source}@{offset}", source=source, offset=offset))

    await wait_until(lambda: message.has(revision=3, payload="t/0@6"), "only newer offsets were applied")
    assert (await message.status())["sources"] == {"t/0": 6, "t/1": 1}


@pytest.mark.parametrize("encoding", ["solo"])  # what is packed has no task of its own to be ahead of others with
async def test_reprioritize_changes_the_priority_that_the_server_has(
    bench: Bench, begin: Begin, control: Control
) -> None:
    """From control and straight from the SDK alike: the server's own priority of the run follows the message's."""
    message = await bring_to("asleep", bench, begin)
    await control.reprioritize(message.kind, message.id, 2)
    await wait_until(lambda: _server_priority_is(control, message, 2), "the server has priority 2")
    await message.send_from_sdk(Reprioritize(5))

    await wait_until(lambda: _server_priority_is(control, message, 5), "the server has priority 5")


async def _server_priority_is(control: Control, message: Subject, priority: int) -> bool:
    return (await control.show(message.kind, message.id)).priority == priority


async def test_pull_forward_obeys_the_expected_moment_and_the_earliest(serve: Serve, begin: Begin, kind: str) -> None:
    """Nothing runs before `earliest`; a pull that expected another due time is ignored; the right one runs at once."""

    @handler(kind)
    async def eager(message: Message, ctx: Context) -> Again:
        earliest = timedelta(0) if message.payload == "open" else timedelta(minutes=30)
        return Again(after=timedelta(hours=1), earliest=earliest, tolerance=timedelta(0))

    async with serve(eager, lanes=("short",)):
        for payload, shift, version in (("open", 0, 2), ("open", 60, 1), ("closed", 0, 1)):
            message = await begin(kind, payload=payload)
            await wait_until(lambda: message.has(version=1), "the first cycle is decided")  # noqa: B023 — awaited here
            due_at = datetime.fromtimestamp((await message.status())["due_at_epoch"] + shift, UTC)
            await message.send_from_sdk(PullForward(due_at.isoformat()))
            await message.send_from_sdk(Revise("seen"))
            await wait_until(lambda: message.has(payload="seen", version=version), f"{payload} {shift}")  # noqa: B023 — awaited here
            await message.send_from_sdk(Stop())


@pytest.mark.parametrize("lane", ["short", "medium"])
async def test_a_revision_during_the_last_cycle_is_not_lost(serve: Serve, begin: Begin, kind: str, lane: str) -> None:
    """A handler that is done with the old payload runs once more for the payload that came meanwhile."""
    called = asyncio.Event()
    gate = asyncio.Event()
    seen: list[Any] = []

    @handler(kind, timeout=timedelta(seconds=25))
    async def last(message: Message, ctx: Context) -> Done:
        seen.append(message.payload)
        called.set()
        await gate.wait()
        return Done()

    async with serve(last, lanes=("short", "medium")):
        message = await begin(kind, lane=lane, payload="old")
        await called.wait()
        await message.send_from_sdk(Revise("new"))
        await wait_until(lambda: _is_applied(message, Revise("new")), "the revision has come")
        gate.set()
        assert (await message.wait_ended())["state"] == "done"

    assert seen == ["old", "new"]


async def test_another_lane_means_another_task_queue(serve: Serve, begin: Begin, kind: str) -> None:
    """The handler of a message revised to another lane runs there, with its version; a packed one stays in its pack."""
    lanes: list[str] = []

    @handler(kind)
    async def mover(message: Message, ctx: Context) -> Again | Done:
        lanes.append(activity.info().task_queue.rpartition("-")[2])
        assert message.lane == lanes[-1]
        if message.lane == "long":
            return Done(message.version)
        return Again(after=timedelta(seconds=1), lane="medium" if message.lane == "short" else None)

    async with serve(mover):
        message = await begin(kind)
        await wait_until(lambda: "medium" in lanes, "the handler moved it to medium")
        await message.send_from_sdk(Revise(None, lane="long"))
        await message.wait_ended()
        attributes = (await message.handle.describe()).search_attributes
        assert await message.has(lane="long")

    assert lanes[0] == "short"
    assert lanes[-1] == "long"
    assert attributes["Lane"] == ["short" if message.is_packed else "long"]


@pytest.mark.parametrize("workflow", ["message", "pack"])
async def test_an_input_that_is_no_message_fails_the_workflow_with_a_sentence(
    client: Client, settings: Settings, serve: Serve, message_id: Callable[[], str], workflow: str
) -> None:
    """A workflow started by hand with a wrong input ends at once and says why, instead of retrying for ever."""
    async with serve(lanes=("short",)):
        queue = task_queue(settings.task_queue_prefix, "short")
        with pytest.raises(WorkflowFailureError) as caught:
            await client.execute_workflow(workflow, {"kind": "x"}, id=message_id(), task_queue=queue)

    assert "start messages with dormice" in str(caught.value.cause)


async def test_a_message_takes_signals_without_end(bench: Bench, begin: Begin) -> None:
    """Also those that change nothing: when the server suggests it, the message goes on in another run.

    It suggests so after 4,096 events, or 4 MB, which are there sooner.
    """
    message = await bring_to("paused", bench, begin)
    first = (await message.handle.describe()).run_id

    async def send(times: int) -> None:
        for _ in range(times):
            await message.send_from_sdk(Pause("x" * 60_000))

    async def is_in_another_run() -> bool:
        return (await message.handle.describe()).run_id != first

    await asyncio.gather(*(send(10) for _ in range(10)))
    await wait_until(is_in_another_run, "it goes on in another run")

    assert await message.has(state="paused", version=1)
