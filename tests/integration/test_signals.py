"""Signals: every one works in every phase of a message, none is lost, all are applied in order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from activities import Again, Context, Done, Message, Reject, handler
from shared.lanes import task_queue
from shared.settings import Settings
from shared.signals import (
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
from starter.control import Control
from tests.conftest import Serve, Start, wait_until

LATER = datetime.now(UTC) + timedelta(hours=2)


@dataclass
class Bench:
    """A handler under the test's control: `gate` holds its calls, `calls` counts them."""

    gate: asyncio.Event
    calls: list[Message]
    behave: str = "again"


@pytest.fixture
async def bench(serve: Serve) -> AsyncIterator[Bench]:
    """Workers whose one handler waits for the gate and then comes back in an hour, or rejects."""
    bench = Bench(asyncio.Event(), [])
    bench.gate.set()

    @handler("steered", timeout=timedelta(seconds=25))
    async def steered(message: Message, ctx: Context) -> Again | Reject | Done:
        bench.calls.append(message)
        await bench.gate.wait()
        if bench.behave == "reject":
            return Reject("told to")
        return Again(after=timedelta(hours=1), tolerance=timedelta(0))

    async with serve(steered, lanes=("short",)):
        yield bench
        bench.gate.set()


async def status(message: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    """Ask the message itself."""
    return await message.query("status", result_type=dict[str, Any])


async def has(message: WorkflowHandle[Any, Any], **expected: Any) -> bool:
    """Tell whether the message's status shows all the expected values."""
    found = await status(message)
    return all(found[key] == value for key, value in expected.items())


async def bring_to(phase: str, bench: Bench, start: Start) -> WorkflowHandle[Any, Any]:
    """Start a message and bring it to a phase; a running one is held by the gate."""
    if phase == "running":
        bench.gate.clear()
    if phase == "parked":
        bench.behave = "reject"
    message = await start("steered", payload={"n": 0})
    await wait_until(lambda: bench.calls, "the handler was called")
    if phase == "running":
        return message
    await wait_until(lambda: has(message, state="parked" if phase == "parked" else "active"), "the cycle is decided")
    if phase == "paused":
        await message.signal("pause", Pause())
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


@pytest.mark.parametrize("phase", ["asleep", "running", "parked", "paused"])
@pytest.mark.parametrize(("signal", "effects"), EFFECTS, ids=[SIGNAL_NAMES[type(s)] for s, _ in EFFECTS])
async def test_a_signal_sent_straight_from_the_sdk_works_in_every_phase(
    bench: Bench, start: Start, phase: str, signal: Signal, effects: dict[str, dict[str, Any]]
) -> None:
    """Each of the seven signals has its documented effect while asleep, running, parked and paused."""
    message = await bring_to(phase, bench, start)
    await message.signal(SIGNAL_NAMES[type(signal)], signal)
    await wait_until(lambda: _is_applied(message, signal), "the signal is applied")
    bench.gate.set()

    await wait_until(lambda: has(message, **effects[phase]), f"{phase}: {effects[phase]}", seconds=20)


async def _is_applied(message: WorkflowHandle[Any, Any], signal: Signal) -> bool:
    decisions = (await message.query("explain", result_type=dict[str, Any]))["decisions"]
    is_applied = any(d["what"] == SIGNAL_NAMES[type(signal)] for d in decisions)
    return is_applied or await has(message, waiting_signals=1)  # one that came while the handler runs waits for it


async def test_two_hundred_signals_around_continue_as_new_are_all_applied_in_order(
    client: Client, serve: Serve, start: Start
) -> None:
    """A message that continues as new every cycle, a second apart, takes 200 numbered revisions without losing one.

    It is asked for its status all the time meanwhile: the SDK ends a task early then, with its result but not its end.
    """

    @handler("busy")
    async def busy(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(seconds=1), tolerance=timedelta(0))

    async with serve(busy, lanes=("short",), cycles_per_run=1, sandbox=False):  # a sandbox for every cycle is slow
        message = await start("busy", payload=-1)
        first_run = (await message.describe()).run_id
        asking = asyncio.create_task(_ask_for_ever(message))
        for offset in range(200):
            await message.signal("revise", Revise(offset, source="topic/0", offset=offset))
            if offset % 10 == 0:
                await message.signal("run_now", RunNow())

        # an older offset would have been ignored, so 200 revisions and the last payload prove the order
        await wait_until(lambda: has(message, revision=200, payload=199), "200 revisions, the last one in force")
        assert (await message.describe()).run_id != first_run
        await message.signal("stop", Stop())
        await message.result()
        asking.cancel()


async def _ask_for_ever(message: WorkflowHandle[Any, Any]) -> None:
    while True:
        await status(message)
        await asyncio.sleep(0.02)


async def test_a_redelivered_or_older_revision_does_nothing(bench: Bench, start: Start) -> None:
    """Revisions out of order: the newest offset of each source wins, repeats are ignored."""
    message = await bring_to("asleep", bench, start)
    for source, offset in (("t/0", 5), ("t/0", 3), ("t/0", 5), ("t/1", 1), ("t/0", 6), ("t/0", 4)):
        await message.signal("revise", Revise(f"{source}@{offset}", source=source, offset=offset))

    await wait_until(lambda: has(message, revision=3, payload="t/0@6"), "only newer offsets were applied")
    assert (await status(message))["sources"] == {"t/0": 6, "t/1": 1}


async def test_reprioritize_changes_the_priority_that_the_server_has(
    bench: Bench, start: Start, control: Control
) -> None:
    """From control and straight from the SDK alike: the server's own priority of the run follows the message's."""
    message = await bring_to("asleep", bench, start)
    kind, _, name = message.id.partition(":")
    await control.reprioritize(kind, name, 2)
    await wait_until(lambda: _server_priority_is(control, kind, name, 2), "the server has priority 2")
    await message.signal("reprioritize", Reprioritize(5))

    await wait_until(lambda: _server_priority_is(control, kind, name, 5), "the server has priority 5")


async def _server_priority_is(control: Control, kind: str, name: str, priority: int) -> bool:
    return (await control.show(kind, name)).priority == priority


async def test_pull_forward_obeys_the_expected_moment_and_the_earliest(
    serve: Serve, start: Start, control: Control, message_id: Callable[[], str]
) -> None:
    """Nothing runs before `earliest`; a pull that expected another due time is ignored; the right one runs at once."""

    @handler("eager")
    async def eager(message: Message, ctx: Context) -> Again:
        earliest = timedelta(0) if message.payload == "open" else timedelta(minutes=30)
        return Again(after=timedelta(hours=1), earliest=earliest, tolerance=timedelta(0))

    async with serve(eager, lanes=("short",)):
        for payload, shift, version in (("open", 0, 2), ("open", 60, 1), ("closed", 0, 1)):
            message = await start("eager", message_id(), payload=payload)
            await wait_until(lambda: has(message, version=1), "the first cycle is decided")  # noqa: B023 — awaited here
            due_at = datetime.fromtimestamp((await status(message))["due_at_epoch"] + shift, UTC)
            await message.signal("pull_forward", PullForward(due_at.isoformat()))
            await message.signal("revise", Revise("seen"))
            await wait_until(lambda: has(message, payload="seen", version=version), f"{payload} {shift}")  # noqa: B023
            await message.signal("stop", Stop())


async def test_a_revision_during_the_last_cycle_is_not_lost(serve: Serve, start: Start) -> None:
    """A handler that is done with the old payload runs once more for the payload that came meanwhile."""
    called, gate = asyncio.Event(), asyncio.Event()
    seen: list[Any] = []

    @handler("last")
    async def last(message: Message, ctx: Context) -> Done:
        seen.append(message.payload)
        called.set()
        await gate.wait()
        return Done()

    async with serve(last, lanes=("short",)):
        message = await start("last", payload="old")
        await called.wait()
        await message.signal("revise", Revise("new"))
        await wait_until(lambda: has(message, payload="new"), "the revision is in")
        gate.set()
        await message.result()

    assert seen == ["old", "new"]


async def test_another_lane_means_another_task_queue(serve: Serve, start: Start) -> None:
    """A message revised to another lane goes on there, with its version, and is indexed there."""
    lanes: list[str] = []

    @handler("mover")
    async def mover(message: Message, ctx: Context) -> Again | Done:
        lanes.append(message.lane)
        if message.lane == "long":
            return Done(message.version)
        return Again(after=timedelta(seconds=1), lane="medium" if message.lane == "short" else None)

    async with serve(mover):
        message = await start("mover")
        await wait_until(lambda: "medium" in lanes, "the handler moved it to medium")
        await message.signal("revise", Revise(None, lane="long"))
        await message.result()
        attributes = (await message.describe()).search_attributes

    assert lanes[0] == "short"
    assert lanes[-1] == "long"
    assert attributes["Lane"] == ["long"]


async def test_an_input_that_is_no_message_fails_the_workflow_with_a_sentence(
    client: Client, settings: Settings, serve: Serve, message_id: Callable[[], str]
) -> None:
    """A workflow started by hand with a wrong input ends at once and says why, instead of retrying for ever."""
    async with serve(lanes=("short",)):
        queue = task_queue(settings.task_queue_prefix, "short")
        with pytest.raises(WorkflowFailureError) as caught:
            await client.execute_workflow("message", {"kind": "x"}, id=message_id(), task_queue=queue)

    assert "start messages with dormice" in str(caught.value.cause)
