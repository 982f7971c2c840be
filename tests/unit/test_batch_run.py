"""Batches in a worker process: when they answer, with what, and that no version is called twice while it is at work."""

import asyncio
import json
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities import Again, Context, Done, Message, handler
from activities.admission.gates import Gates
from activities.admission.limits import Limits
from activities.calls import batch, batch_calls, batch_run
from activities.calls.batch import BatchDispatch
from activities.calls.batch_run import BatchRun
from activities.calls.calls_in_flight import CallsInFlight
from activities.calls.dispatch import Dispatch
from activities.calls.slots import CallSlots
from activities.registry import Registry
from activities.testing.context import give_or_refuse
from shared.keepers.gates import GateClosure
from shared.lanes import LANES
from shared.messages.message import MessageState
from shared.packs.cycle import STILL_IN_FLIGHT
from shared.packs.entry import Entry, to_entry
from shared.settings import Settings
from shared.telemetry.sdk import Telemetry
from tests.conftest import wait_until

NOW = 1_795_291_200.0
SLOTS = 20
AT_ONCE = timedelta(seconds=0.05)
LONG = timedelta(seconds=50)

T = TypeVar("T")


class Stage:
    """A worker process without its server: handlers that do what a payload says, and that a test lets end."""

    def __init__(self, slots: int = SLOTS, **options: Any) -> None:
        self.openings: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.calls = Counter[str]()
        self.attempts: list[int] = []
        self.gates = Gates("test")
        self.gates.fresh_until = math.inf  # there is no server to read closings from
        self.settings = Settings(handlers_at_once=slots)
        self.dispatch = Dispatch(
            Registry([("the test", handler("feed", **options)(self._act))]),
            self.settings,
            give_or_refuse(None),
            self.gates,
            Limits("test"),
            Telemetry(is_on=False),
        )
        self.in_flight = CallsInFlight(CallSlots(slots))
        self.environment = ActivityEnvironment()

    async def _act(self, message: Message, ctx: Context) -> Again | Done:
        self.calls[message.id] += 1
        self.attempts.append(ctx.attempt)

        match message.payload:
            case "wait":
                await self.openings[message.id].wait()
            case "cancel":
                raise asyncio.CancelledError
            case "deaf":
                await self._ignore_cancellation(message.id)
            case "large":
                return Again(after=timedelta(minutes=1), reason="r" * 250)
            case _:
                pass

        return Again(after=timedelta(minutes=1))

    async def _ignore_cancellation(self, message_id: str) -> None:
        while not self.openings[message_id].is_set():
            try:
                await self.openings[message_id].wait()
            except asyncio.CancelledError:
                continue

    def begin(self, *entries: Entry, tries_before: int = 0) -> BatchRun:
        """Make the run of a batch."""
        return BatchRun(self.dispatch, self.in_flight, write(*entries), tries_before)

    async def free_slots(self) -> int:
        """Tell how many calls could begin now."""
        return await self.in_flight.slots.take(10_000)

    async def run(self, body: Callable[[], Awaitable[T]]) -> T:
        """Do something as an activity."""
        return await self.environment.run(body)


def entry(message_id: str, payload: Any = None, **fields: Any) -> Entry:
    """Make the entry of a message; its payload says what its handler does."""
    return to_entry(MessageState("feed", message_id, "short", NOW, NOW, payload=payload, **fields), "short")


def write(*entries: Entry) -> dict[str, Any]:
    """Give what a pack asks a worker for."""
    return {
        "kind": "feed",
        "lane": "short",
        "token": "t",
        "pack_lane": "short",
        "spread": [0.5, 0.0],
        "entries": list(entries),
        "begun_at": NOW,
        "left_run": "",
    }


def tell(results: Sequence[Any]) -> list[str]:
    """Say of each result what it is."""
    return ["decided" if isinstance(r, list) else r["verdict"] if isinstance(r, dict) else str(r) for r in results]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long enough that only what a test lets happen ends a wait; each test shortens what it is about."""
    monkeypatch.setattr(batch_run, "GATHER", LONG)
    monkeypatch.setattr(batch_run, "HOLD", LONG)


async def test_quick_calls_are_answered_together() -> None:
    """Each has its result, and nothing is left in the process."""
    stage = Stage()
    run = stage.begin(entry("a"), entry("b"), entry("c", version=7))
    await stage.run(run.begin)

    assert tell(run.give(range(3))) == ["decided"] * 3
    assert (run.is_at_work, run.is_slow, len(stage.in_flight)) == (False, False, 0)
    assert await stage.free_slots() == SLOTS


async def test_the_first_result_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as GATHER: calls that end soon after each other cost their pack one answer, however short HOLD is."""
    monkeypatch.setattr(batch_run, "HOLD", AT_ONCE)
    stage = Stage()
    run = stage.begin(entry("a"), entry("b", "wait"))
    waiting = asyncio.create_task(stage.run(run.begin))
    await wait_until(lambda: stage.calls["b"], "both have begun")
    stage.openings["b"].set()
    await waiting

    assert tell(run.give(range(2))) == ["decided"] * 2


async def test_a_result_is_owed_until_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that drains waits a while for packs to ask, also when the slow call has ended by then."""
    monkeypatch.setattr(batch_run, "GATHER", AT_ONCE)
    stage = Stage()
    run = stage.begin(entry("a"), entry("b", "wait"))
    await stage.run(run.begin)
    run.give(range(2))
    stage.openings["b"].set()
    await run.finish()
    before = (run.is_at_work, run.is_owed)
    run.give([1])

    assert (before, run.is_owed) == ((False, True), False)


async def test_a_slow_call_keeps_nothing_but_its_own_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """After GATHER the others are answered; the slow one is asked for, and has moved to a slot of its own kind."""
    monkeypatch.setattr(batch_run, "GATHER", AT_ONCE)
    stage = Stage()
    run = stage.begin(entry("a"), entry("b", "wait"), entry("c"))
    await stage.run(run.begin)
    first = tell(run.give(range(3)))
    at_work = run.is_at_work
    slots = await stage.free_slots()
    asking = asyncio.create_task(stage.run(lambda: run.await_calls([1])))
    stage.openings["b"].set()
    await asking

    assert first == ["decided", str(STILL_IN_FLIGHT), "decided"]
    assert (at_work, slots, run.is_slow) == (True, SLOTS, True)
    assert (tell(run.give([1])), run.is_at_work) == (["decided"], False)


async def test_calls_that_are_all_slow_hold_up_their_pack_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """After HOLD none has ended, and the pack may begin other messages."""
    monkeypatch.setattr(batch_run, "HOLD", AT_ONCE)
    monkeypatch.setattr(batch_run, "GATHER", AT_ONCE)
    stage = Stage()
    run = stage.begin(entry("a", "wait"), entry("b", "wait"))
    await stage.run(run.begin)

    assert run.give(range(2)) == [STILL_IN_FLIGHT] * 2
    for letter in "ab":
        stage.openings[letter].set()
    await run.finish()
    assert tell(run.give(range(2))) == ["decided"] * 2


async def test_each_question_is_answered_with_the_first_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the others last, and also if it had ended before the question came."""
    monkeypatch.setattr(batch_run, "HOLD", AT_ONCE)
    monkeypatch.setattr(batch_run, "GATHER", AT_ONCE)
    stage = Stage()
    run = stage.begin(*(entry(letter, "wait") for letter in "abc"))
    await stage.run(run.begin)
    asking = asyncio.create_task(stage.run(lambda: run.await_calls([0, 1, 2])))
    stage.openings["b"].set()
    await asking
    first = tell(run.give(range(3)))
    stage.openings["c"].set()
    await wait_until(lambda: len(stage.in_flight) == 1, "another has ended while nobody asked")
    await stage.run(lambda: run.await_calls([0, 2]))

    assert first == ["0", "decided", "0"]
    assert tell(run.give([0, 2])) == ["0", "decided"]
    stage.openings["a"].set()
    await run.finish()


async def test_calls_begin_as_slots_become_free() -> None:
    """A batch larger than the limit needs no second one."""
    stage = Stage(slots=2)
    run = stage.begin(*(entry(f"m{n}") for n in range(7)))
    await stage.run(run.begin)

    assert tell(run.give(range(7))) == ["decided"] * 7
    assert await stage.free_slots() == 2


async def test_what_finds_no_slot_in_time_is_handed_back_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pack gives it to the next batch, as it was; a call that has begun goes on."""
    monkeypatch.setitem(LANES, "short", replace(LANES["short"], batch_start=AT_ONCE))
    monkeypatch.setattr(batch_run, "HOLD", AT_ONCE)
    monkeypatch.setattr(batch_run, "GATHER", AT_ONCE)
    stage = Stage(slots=1)
    run = stage.begin(entry("a", "wait"), entry("b"))
    await stage.run(run.begin)

    assert run.give(range(2)) == [STILL_IN_FLIGHT, None]
    assert dict(stage.calls) == {"a": 1}
    stage.openings["a"].set()
    await run.finish()
    assert (tell(run.give(range(2))), dict(stage.calls)) == (["decided", "None"], {"a": 1})


async def test_a_version_that_is_at_work_is_not_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another batch with it gets the outcome of the same call; another version, or message, has its own."""
    monkeypatch.setattr(batch_run, "HOLD", AT_ONCE)
    monkeypatch.setattr(batch_run, "GATHER", AT_ONCE)
    stage = Stage()
    first = stage.begin(entry("a", "wait"))
    again = stage.begin(entry("a", "wait"), entry("b"))
    later = stage.begin(entry("a", version=1))
    for run in (first, again, later):
        await stage.run(run.begin)
    before = [tell(run.give(range(n))) for run, n in ((first, 1), (again, 2), (later, 1))]
    stage.openings["a"].set()
    for run in (first, again):
        await run.finish()

    assert before == [["0"], ["0", "decided"], ["decided"]]
    assert dict(stage.calls) == {"a": 2, "b": 1}
    assert first.give([0]) == again.give([0])
    assert tell(first.give([0])) == ["decided"]
    assert await stage.free_slots() == SLOTS


async def test_a_handler_that_ignores_its_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message has failed and may be called again; it keeps no slot, and what it says later counts no more."""
    monkeypatch.setattr(batch_calls, "DEAF", AT_ONCE)
    stage = Stage(timeout=timedelta(seconds=0.1), max_attempts=3)
    run = stage.begin(entry("a", "deaf"), entry("b"))
    await stage.run(run.begin)
    failed, decided = run.give(range(2))
    slots = await stage.free_slots()
    for _ in range(slots):
        stage.in_flight.slots.give_back(is_slow=False)
    stage.openings["a"].set()
    again = stage.begin(entry("a", "deaf"))
    await stage.run(again.begin)

    assert (failed["verdict"], failed["max_attempts"], tell([decided])) == ("failed", 3, ["decided"])
    assert failed["reason"] == "no outcome within 0.1 s, and no heed of being cut off"
    assert (slots, stage.calls["a"], len(stage.in_flight)) == (SLOTS, 2, 0)
    assert (run.give([0]), tell(again.give([0]))) == ([failed], ["decided"])


async def test_a_handler_past_its_time_is_cut_off_alone() -> None:
    """It has failed, its neighbours have not."""
    stage = Stage(timeout=timedelta(seconds=0.1))
    run = stage.begin(entry("a", "wait"), entry("b"))
    await stage.run(run.begin)
    failed, decided = run.give(range(2))

    assert (failed["verdict"], failed["reason"]) == ("failed", "no outcome within 0.1 s")
    assert tell([decided]) == ["decided"]


async def test_a_handler_that_cancels_itself_has_failed() -> None:
    """Nobody else asked for it: its message is not handed back for ever."""
    stage = Stage()
    run = stage.begin(entry("a", "cancel"), entry("b"))
    await stage.run(run.begin)

    assert tell(run.give(range(2))) == ["failed", "decided"]


async def test_calls_that_a_process_cuts_off_at_its_end_are_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """No attempt of theirs counts; what has ended before has its outcome."""
    monkeypatch.setattr(batch_run, "GATHER", AT_ONCE)
    stage = Stage()
    run = stage.begin(entry("a", "wait"), entry("b"))

    async def end() -> None:
        await run.begin()
        stage.environment.worker_shutdown()
        run.hand_back()
        await run.finish()

    await stage.run(end)

    assert tell(run.give(range(2))) == ["None", "decided"]
    assert await stage.free_slots() == SLOTS


async def test_a_closed_gate_holds_a_batch_without_a_call() -> None:
    """All wait but those whose time is over: they are called for that alone."""
    stage = Stage()
    gate = "kind:feed"
    stage.gates.implicit = {gate: GateClosure.lasting(timedelta(hours=1), "for repairs")}
    run = stage.begin(entry("a"), entry("b", expires_at=NOW - 1))
    await stage.run(run.begin)
    waiting, over = run.give(range(2))

    assert dict(stage.calls) == {}
    assert waiting[-1][-1][2] == "gated"
    assert (over["verdict"], over["is_expired"]) == ("done", True)


@pytest.mark.parametrize(("others", "attempt"), [(0, 4), (1, 2)])
async def test_tries_of_a_lost_batch_count_for_the_one_that_was_alone_in_it(others: int, attempt: int) -> None:
    """With others in it, a lost batch does not show which message broke it; the handler is told all tries."""
    stage = Stage(max_attempts=4)
    run = stage.begin(entry("a", attempt=1), *(entry(f"m{n}") for n in range(others)), tries_before=2)
    await stage.run(run.begin)
    exhausted = Stage(max_attempts=3)
    refused = exhausted.begin(entry("a", attempt=1), *(entry(f"m{n}") for n in range(others)), tries_before=2)
    await exhausted.run(refused.begin)

    assert stage.attempts[0] == 4
    assert tell(refused.give([0])) == ["reject" if attempt == 4 else "decided"]
    assert exhausted.calls["a"] == (0 if attempt == 4 else 1)


class Process:
    """The activities of one worker process, called as its server would call them."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.batches = BatchDispatch(stage.dispatch)

    async def run_batch(self, *entries: Entry) -> list[Any]:
        """Give the results of an answer to `run_batch`."""
        return self._read(await ActivityEnvironment().run(self.batches.run_batch, write(*entries)))

    async def await_calls(self, *positions: int) -> list[Any]:
        """Give the results of an answer to `await_calls`."""
        wire = {"token": "t", "positions": list(positions), "lane": "short"}
        return self._read(await ActivityEnvironment().run(self.batches.await_calls, wire))

    def _read(self, answer: Any) -> list[Any]:
        found: dict[str, Any] = json.loads(answer.payload.data)
        assert found["queue"] == self.batches.queue
        return found["results"]


async def test_an_answer_that_is_too_large_asks_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit counts as in flight: the pack asks again until it has all, and nothing is called twice."""
    monkeypatch.setattr(batch, "ANSWER_BYTES_MAX", 2000)
    stage = Stage()
    process = Process(stage)
    results = await process.run_batch(*(entry(f"m{n}", "large") for n in range(20)))
    answers = 1
    while left := [n for n, result in enumerate(results) if result == STILL_IN_FLIGHT]:
        answers += 1
        for n, result in zip(left, await process.await_calls(*left), strict=True):
            results[n] = result

    assert tell(results) == ["decided"] * 20
    assert answers > 2
    assert set(stage.calls.values()) == {1}


async def test_a_question_about_what_was_never_called_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the rest of an answer that was too large, and nothing that it waits for would ever end."""
    monkeypatch.setitem(LANES, "short", replace(LANES["short"], batch_start=AT_ONCE))
    stage = Stage(slots=1)
    await stage.free_slots()
    run = stage.begin(entry("a"), entry("b"))
    await stage.run(run.begin)
    await stage.run(lambda: run.await_calls([0, 1]))

    assert run.give([0, 1]) == [None, None]


async def test_a_batch_that_is_given_again_calls_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first answer was lost, or has not come yet: the second one has the results of the same calls."""
    monkeypatch.setattr(batch_run, "GATHER", AT_ONCE)
    stage = Stage(slots=1)
    process = Process(stage)
    entries = [entry("a", "wait"), entry("b"), entry("c")]
    first = asyncio.create_task(process.run_batch(*entries))
    await wait_until(lambda: stage.calls["a"], "the first call has begun, and the others wait for its slot")
    again = asyncio.create_task(process.run_batch(*entries))
    stage.openings["a"].set()

    assert tell(await again) == tell(await first) == ["decided"] * 3
    assert dict(stage.calls) == {"a": 1, "b": 1, "c": 1}


async def test_a_process_that_does_not_know_a_batch_says_so() -> None:
    """Its calls count as lost then, and nobody waits for them."""
    process = Process(Stage())
    await process.run_batch(entry("a"))

    with pytest.raises(ApplicationError, match="knows nothing of it any more") as caught:
        await process.await_calls(0)
    assert caught.value.non_retryable


async def test_results_that_a_pack_may_ask_for_again_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run may end just when it is given them; later the process has forgotten them."""
    monkeypatch.setattr(batch_run, "GATHER", AT_ONCE)
    monkeypatch.setattr(batch, "RESULTS_KEPT", timedelta(seconds=0.5))
    stage = Stage()
    process = Process(stage)
    answers = [await process.run_batch(entry("a", "wait"), entry("b"))]
    stage.openings["a"].set()
    answers += [await process.await_calls(0), await process.await_calls(0)]

    async def is_forgotten() -> bool:
        try:
            await process.await_calls(0)
        except ApplicationError:
            return True
        await asyncio.sleep(1)  # without a question, for each of them keeps what it asks for
        return False

    assert [tell(answer) for answer in answers] == [["0", "decided"], ["decided"], ["decided"]]
    await wait_until(is_forgotten, "the process has forgotten the batch")


async def test_a_question_that_is_cancelled_leaves_the_call_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack's run has ended: the next run asks the same process, and has the outcome of the same call."""
    monkeypatch.setattr(batch_run, "HOLD", AT_ONCE)
    monkeypatch.setattr(batch_run, "GATHER", AT_ONCE)
    stage = Stage()
    process = Process(stage)
    await process.run_batch(entry("a", "wait"))
    environment = ActivityEnvironment()
    wire = {"token": "t", "positions": [0], "lane": "short"}
    asking = asyncio.create_task(environment.run(process.batches.await_calls, wire))
    await asyncio.sleep(0)
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    stage.openings["a"].set()

    assert tell(await process.await_calls(0)) == ["decided"]
    assert dict(stage.calls) == {"a": 1}


async def test_a_process_that_drains_lets_packs_ask_for_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on once a question is there for each batch, and answers them when all calls of it have ended."""
    monkeypatch.setattr(batch_run, "HOLD", AT_ONCE)
    monkeypatch.setattr(batch_run, "GATHER", AT_ONCE)
    monkeypatch.setattr(batch, "DRAIN_PATIENCE", LONG)
    stage = Stage()
    process = Process(stage)
    await process.run_batch(entry("a", "wait"), entry("b", "wait"))
    draining = asyncio.create_task(process.batches.drain())
    await asyncio.sleep(0)
    is_waiting = not draining.done()
    asking = asyncio.create_task(process.await_calls(0, 1))
    await draining
    for letter in "ab":
        stage.openings[letter].set()
        await asyncio.sleep(0)

    assert is_waiting
    assert tell(await asking) == ["decided"] * 2
    await process.batches.finish(LONG.total_seconds())
