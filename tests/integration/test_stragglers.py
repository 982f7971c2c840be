"""Stragglers: a slow call keeps nothing but its own message, whatever becomes of its pack or its worker meanwhile."""

import asyncio
import dataclasses
import functools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from activities import Again, Context, Message, handler
from activities.api.handler import Handler
from examples.ledger import Ledger
from shared.messages.envelope import Envelope
from shared.messages.signals import Pause, Reprioritize, Reschedule
from shared.packs.names import AWAIT_CALLS
from shared.settings import Settings
from starter.control import Control
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import Begin, Serve, serving, wait_until
from tests.support.processes import worker_process
from tests.support.straggling import DEADLY, KIND_VARIABLE
from tests.support.subjects import Subject, declare

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

SECOND = timedelta(seconds=1)
NONE = timedelta(0)


@dataclass
class Bench:
    """A handler whose stragglers work until they are released; all others come back every second."""

    kind: str
    release: asyncio.Event = field(default_factory=asyncio.Event)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """How often the handler has been called for each version of a message."""

    @property
    def handler(self) -> Handler:
        """The handler, which lets a straggler work for nearly as long as lane short allows."""

        @handler(self.kind, timeout=timedelta(seconds=28))
        async def work(message: Message, ctx: Context) -> Again:
            self.calls[message.id, message.version] += 1
            if message.payload != "slow":
                return Again(after=SECOND, tolerance=NONE)
            await self.release.wait()
            return Again(after=timedelta(hours=1), tolerance=NONE, payload="released")

        return work

    def called(self, message: Subject | str) -> int:
        """Count the versions of a message for which the handler has been called."""
        name = message if isinstance(message, str) else message.id
        return sum(called == name for called, _ in self.calls)


@pytest.fixture
def bench(kind: str) -> Bench:
    """The bench of this test's own kind."""
    return Bench(kind)


async def shows(control: Control, message: Subject, **expected: object) -> bool:
    """Tell whether `show` has these values of a message."""
    status = (await control.show(message.kind, message.id)).status
    return status is not None and all(status[name] == value for name, value in expected.items())


async def has_come_to(control: Control, message: Subject, version: int) -> bool:
    """Tell whether `show` has a version of a message or a later one."""
    status = (await control.show(message.kind, message.id)).status
    return status is not None and status["version"] >= version


@pytest.mark.parametrize("encoding", ["pack"])
async def test_the_outcomes_of_a_stragglers_neighbours_are_stored_while_it_works(
    serve: Serve, begin: Begin, bench: Bench, control: Control
) -> None:
    """They were due with it, in one batch: `show` has their next versions, and their wakes go on."""
    due = datetime.now(UTC) + SECOND
    async with serve(bench.handler, lanes=("short",)):
        straggler = await begin(bench.kind, payload="slow", scheduled_at=due)
        quick = [await begin(bench.kind, name, scheduled_at=due) for name in straggler.neighbours(5)]
        for message in quick:
            await wait_until(functools.partial(has_come_to, control, message, 3), "its outcomes are stored")
        assert await shows(control, straggler, state="running", version=0)

        bench.release.set()
        await wait_until(lambda: shows(control, straggler, state="active", version=1), "the outcome counts")

    assert set(bench.calls.values()) == {1}


@pytest.mark.parametrize("encoding", ["pack"])
async def test_a_straggler_keeps_neither_signals_nor_queries_nor_a_slot(
    serve: Serve, begin: Begin, bench: Bench, control: Control
) -> None:
    """It and its neighbours are steered while it works, and they are called though there is a single slot."""
    async with serve(bench.handler, lanes=("short",), handlers_at_once=1):
        straggler = await begin(bench.kind, payload="slow")
        await wait_until(lambda: bench.called(straggler), "it is at work")
        paused, quick = [await begin(bench.kind, name) for name in straggler.neighbours(2)]
        await wait_until(functools.partial(has_come_to, control, quick, 2), "a neighbour is called again and again")

        await paused.send(Pause())
        await straggler.send(Reprioritize(1))
        await wait_until(lambda: shows(control, paused, state="paused"), "its neighbour is paused")
        await wait_until(lambda: shows(control, straggler, priority=1), "it has the priority")
        assert (await straggler.handle.query("overview"))["running"] >= 1
        assert await shows(control, straggler, state="running", version=0)

        bench.release.set()
        await wait_until(lambda: shows(control, straggler, version=1, priority=1), "the outcome counts")

    assert set(bench.calls.values()) == {1}


@pytest.mark.parametrize("encoding", ["pack"])
async def test_a_call_in_flight_outlives_the_run_of_its_pack(
    serve: Serve, begin: Begin, bench: Bench, control: Control
) -> None:
    """The pack continues as new, more than once, and the outcome counts all the same: the call is not made again.

    What a signal asked for in the first run holds, too.
    """
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    # twenty cycles are enough for another run
    async with serve(bench.handler, lanes=("short",), pack_cycles_per_run=0, sandbox=False):
        straggler = await begin(bench.kind, payload="slow")
        await wait_until(lambda: bench.called(straggler), "it is at work")
        await straggler.send(Reschedule(tomorrow.isoformat()))
        runs = {(await straggler.handle.describe()).run_id}
        for name in straggler.neighbours(12):
            await begin(bench.kind, name)

        async def has_had_runs() -> bool:
            runs.add((await straggler.handle.describe()).run_id)
            return len(runs) >= 3

        await wait_until(has_had_runs, "the pack goes on in a third run")
        assert await shows(control, straggler, state="running", version=0)
        bench.release.set()
        due = pytest.approx(tomorrow.timestamp(), abs=0.01)
        decided = {"state": "active", "version": 1, "payload": "released", "due_at_epoch": due}
        await wait_until(lambda: shows(control, straggler, **decided), "the outcome counts, and so does the signal")

    assert bench.calls[straggler.id, 0] == 1


@pytest.mark.parametrize("encoding", ["solo"])
async def test_a_slow_handler_is_called_once_however_small_the_cache_is(
    client: Client, settings: Settings, begin: Begin, bench: Bench, control: Control
) -> None:
    """Eight seconds among messages that push its workflow out of the cache every moment."""

    async def be_slow() -> None:
        await asyncio.sleep(8)
        bench.release.set()

    few = 2
    async with serving(client, replace_cache(settings, few), bench.handler, lanes=("short",), slots=few):
        straggler = await begin(bench.kind, payload="slow")
        await wait_until(lambda: bench.called(straggler), "it is at work")
        working = asyncio.create_task(be_slow())
        quick = [await begin(bench.kind) for _ in range(10 * few)]
        await wait_until(lambda: shows(control, straggler, state="active", version=1), "the outcome counts")
        await working

    assert bench.calls[straggler.id, 0] == 1
    assert all(bench.called(message) for message in quick)


def replace_cache(settings: Settings, workflows: int) -> Settings:
    """Give settings with a cache of some workflows."""
    return dataclasses.replace(settings, cached_workflows=workflows)


async def test_a_handler_that_hangs_is_parked_by_its_own_timeout_while_its_neighbours_go_on(
    serve: Serve, begin: Begin, control: Control, kind: str
) -> None:
    """Each of its attempts is cut off alone, longer than a batch lasts; the neighbours are called once a version."""
    calls: Counter[tuple[str, int]] = Counter()

    @handler(kind, max_attempts=2, timeout=timedelta(seconds=4), backoff=timedelta(milliseconds=100))
    async def hang(message: Message, ctx: Context) -> Again:
        calls[message.id, message.version] += 1
        if message.payload == "hangs":
            await asyncio.Event().wait()
        return Again(after=SECOND, tolerance=NONE)

    async with serve(hang, lanes=("short",)):
        hanging = await begin(kind, payload="hangs")
        names = hanging.neighbours(5) or [None] * 5
        neighbours = [await begin(kind, name) for name in names]
        await wait_until(lambda: shows(control, hanging, state="parked"), "it is parked")
        reason = (await control.show(kind, hanging.id)).listed.parked_reason
        for message in neighbours:
            assert await has_come_to(control, message, 2), "it went on meanwhile"

    assert reason == "attempt 2 of 2: no outcome within 4 s"
    assert calls.pop((hanging.id, 0)) == 2
    assert set(calls.values()) == {1}


# --- what becomes of calls in flight when their worker process ends

MOMENTS = pytest.mark.parametrize(
    ("encoding", "is_answered"),
    [
        pytest.param("solo", False, id="solo"),
        pytest.param("pack", False, id="in a batch"),
        pytest.param("pack", True, id="after its batch"),
    ],
)
"""Whether a call's batch has answered already that the call is in flight."""


HANDLERS = "tests.support.straggling"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file, for which handlers of `tests.support.straggling` wait at their first attempt."""
    return tmp_path / "gate"


@pytest.fixture
async def stragglers(
    client: Client, settings: Settings, kind: str, *, encoding: str, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Subject]:
    """Some messages, which are due; all in one pack if they are packed."""
    monkeypatch.setenv(KIND_VARIABLE, kind)
    control = Control(client, settings)
    first = Subject(client, control, encoding, kind, "s")
    found = [dataclasses.replace(first, id=name) for name in first.neighbours(5) or "abcde"]
    starter = BulkStarter(client, settings, encodings=declare(encoding, kind))
    envelopes = [Envelope(kind=kind, id=each.id, lane="short", payload=str(gate)) for each in found]
    async for receipt in starter.start_all((None, envelope) for envelope in envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt
    return found


async def wait_in_flight(stragglers: list[Subject], ledger: Ledger, *, is_answered: bool) -> None:
    """Wait until all are called, and their batches have answered if that is asked for."""
    await wait_until(lambda: len(ledger.entries) == len(stragglers), "all are called")
    if is_answered:
        await wait_until(functools.partial(are_all_awaited, stragglers[0]), "their batches have answered")


async def are_all_awaited(message: Subject) -> bool:
    """Tell whether a pack has nothing under way but calls whose batches have answered."""
    pending = (await message.handle.describe()).raw_description.pending_activities
    return {activity.activity_type.name for activity in pending} == {AWAIT_CALLS}


def attempts(ledger: Ledger) -> dict[str, list[int]]:
    """Give the attempts of each message that a handler has begun, in order."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for entry in ledger.entries:
        if entry.what == "began":
            found[entry.id].append(entry.attempt)
    return dict(found)


def open_gate(gate: Path) -> None:
    """Let the calls in flight end."""
    gate.touch()


@pytest.mark.long
@MOMENTS
async def test_calls_of_a_killed_worker_are_made_again_once_each(
    server: EmbeddedServer, settings: Settings, stragglers: list[Subject], ledger: Ledger, *, is_answered: bool
) -> None:
    """Another worker makes them, as another attempt."""
    async with worker_process(server, settings, "--lane", "short", handlers=HANDLERS) as worker:
        await wait_in_flight(stragglers, ledger, is_answered=is_answered)
        worker.kill()
    async with worker_process(server, settings, "--lane", "short", handlers=HANDLERS):
        assert [(await message.wait_ended())["state"] for message in stragglers] == ["done"] * len(stragglers)

    assert attempts(ledger) == {message.id: [1, 2] for message in stragglers}


@MOMENTS
async def test_a_worker_that_drains_lets_its_calls_end(
    server: EmbeddedServer,
    settings: Settings,
    stragglers: list[Subject],
    ledger: Ledger,
    *,
    gate: Path,
    is_answered: bool,
) -> None:
    """Their outcomes count, and nobody makes them again."""
    flags = ("--lane", "short", "--drain-seconds", "25")
    async with worker_process(server, settings, *flags, handlers=HANDLERS) as worker:
        await wait_in_flight(stragglers, ledger, is_answered=is_answered)
        worker.terminate()
        async with worker_process(server, settings, *flags, handlers=HANDLERS):
            open_gate(gate)
            assert await worker.wait() == 0
            assert [(await message.wait_ended())["state"] for message in stragglers] == ["done"] * len(stragglers)

    assert attempts(ledger) == {message.id: [1] for message in stragglers}


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_handler_that_ends_its_process_is_parked_after_its_attempts(
    server: EmbeddedServer,
    settings: Settings,
    begin: Begin,
    kind: str,
    *,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each lost call counts as an attempt, on lane short as on any other."""
    monkeypatch.setenv(KIND_VARIABLE, kind)
    deadly = await begin(kind, payload=DEADLY)
    for _ in range(2):
        async with worker_process(server, settings, "--lane", "short", handlers=HANDLERS) as worker:
            assert await worker.wait() == 1
    async with worker_process(server, settings, "--lane", "short", handlers=HANDLERS):
        await wait_until(lambda: deadly.has(state="parked"), "it is parked")

    assert attempts(ledger) == {deadly.id: [1, 2]}
