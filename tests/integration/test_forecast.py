"""The forecast: what it counts is what is due, whichever workflows the messages live in; and what lanes can do."""

import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from activities import Again, Context, Message, handler
from activities.idle.capacity import Capacity
from shared.keepers.gates import GateClosure
from shared.lanes import task_queue
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.timespan import HORIZON
from shared.settings import Settings
from shared.temporal.connect import connect
from starter.control import Control
from starter.insight.board.reader import BoardReader
from starter.insight.forecast import OTHER_KINDS, Forecast, find_capacity, make_forecast
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from starter.steering.keepers import GateControl
from starter.steering.selection import Selection
from tests.conftest import serving, wait_until
from tests.support.subjects import declare
from worker.lanes.measurements import PER_SECOND_MIN
from worker.main import HEARTBEAT

pytestmark = pytest.mark.timeout(240)  # thousands of workflows begin in it

HOUR = 3600.0
SOLO = 400
PACKED = 3500
"""Those with a workflow of their own are what takes time, and few prove as much."""

PACK = Pack(packs=10, size=1000)


@pytest.fixture
async def quiet(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a server on which nothing else is due."""
    async with run_embedded(EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None)) as server:
        yield await server.connect()


@handler("packed", encoding=PACK)
async def never(message: Message, ctx: Context) -> Again:
    """Be due at no time while the test runs."""
    raise AssertionError


def make_envelopes(begin: float) -> list[Envelope]:
    """Make messages of three kinds on two lanes, due at moments of the next 30 hours."""
    chance = random.Random(11)
    return [
        Envelope(
            kind="packed" if n < PACKED else chance.choice(["page", "feed"]),
            id=f"m{n}",
            lane=chance.choice(["short", "medium"]),
            scheduled_at=datetime.fromtimestamp(begin + 300 + 30 * HOUR * chance.random(), UTC),
        )
        for n in range(SOLO + PACKED)
    ]


@pytest.mark.long
@pytest.mark.heavy
async def test_a_forecast_equals_what_is_counted_one_by_one(quiet: Client, settings: Settings) -> None:
    """Thousands of messages, with workflows of their own and in packs: by lane and by kind, none more and none less."""
    begin = time.time()
    envelopes = make_envelopes(begin)
    control = Control(quiet, settings)
    async with serving(quiet, settings, never, lanes=("short", "medium")):
        starter = BulkStarter(quiet, settings, encodings={"packed": PACK})
        async for receipt in starter.start_all((None, envelope) for envelope in envelopes):
            assert receipt.outcome is StartOutcome.STARTED, receipt
        held = [envelopes[0], envelopes[-1]]
        for envelope in held:
            await control.pause(envelope.kind, envelope.id)

        async def is_indexed() -> bool:
            return await control.count(Selection(state="active")) == len(envelopes) - len(held)

        await wait_until(is_indexed, "the index knows them all", 100)
        found = await make_forecast(quiet, settings, begin, timedelta(hours=24), kinds=["page"])
        sampled = await make_forecast(quiet, settings, begin, timedelta(hours=24), sample=5)

    unserved = await make_forecast(quiet, settings, begin, timedelta(hours=24))
    assert unserved.packed.silent == ["packed"]
    assert sum(map(sum, unserved.lanes.values())) > SOLO / 2, "what the index knows is counted all the same"
    by_lane = Counter[tuple[str, int]]()
    by_kind = Counter[tuple[str, int]]()
    for envelope in envelopes[1:-1]:
        assert envelope.scheduled_at is not None
        interval = bisect_right(found.edges, envelope.scheduled_at.timestamp()) - 1
        if interval < len(found.edges) - 1:
            by_lane[envelope.lane or "", interval] += 1
            by_kind[OTHER_KINDS if envelope.kind == "feed" else envelope.kind, interval] += 1
    assert {
        (lane, n): count for lane, counts in found.lanes.items() for n, count in enumerate(counts) if count
    } == by_lane
    assert {
        (kind, n): count for kind, counts in found.due.items() for n, count in enumerate(counts) if count
    } == by_kind
    assert (found.packed.packs, found.packed.asked, sampled.packed.asked) == (10, 10, 5)
    all_due = sum(map(sum, found.lanes.values()))
    by_sample = sum(map(sum, sampled.lanes.values()))
    assert 0.9 < by_sample / all_due < 1.1, "half of the packs stand for all"


@pytest.mark.long
async def test_what_a_closed_gate_holds_is_counted_apart_and_is_due_when_it_opens(
    quiet: Client, settings: Settings, kind: str, encoding: str
) -> None:
    """Of a kind or a lane, in the forecast and on the board; what comes later, and others, are due in time."""
    other = f"{kind}-other"
    encodings = declare(encoding, kind)
    begin = time.time()
    due = {kind: (600.0, 1200.0, 3000.0, 5 * HOUR), other: (1800.0, 4 * HOUR)}
    gates = GateControl(quiet, settings)
    control = Control(quiet, settings)

    @handler(kind, encoding=encodings.get(kind))
    async def sleep(message: Message, ctx: Context) -> Again:
        raise AssertionError  # none is due while the test runs

    async def foresee(by_kind: bool = False) -> Forecast:  # noqa: FBT001, FBT002 — what the command's option says
        kinds = [kind, other] if by_kind else None
        return await make_forecast(quiet, settings, time.time(), timedelta(hours=6), kinds=kinds)

    async def close(gate: str, duration: timedelta) -> None:
        closure = GateClosure.lasting(duration, "down")
        await gates.close(gate, closure)
        await wait_until(lambda: is_told(gate, closure.opens_at), "it is known to be closed until then")

    async def is_told(gate: str, opens_at: float) -> bool:
        closures = await gates.fetch(time.time())
        return gate in closures and closures[gate].opens_at == opens_at

    async def are_open() -> bool:
        return not await gates.fetch(time.time())

    def name_hours(found: Forecast, group: str) -> list[int]:
        moments = [found.edges[n] for n, count in enumerate(found.due.get(group, ())) for _ in range(count)]
        return [max(0, round((moment - begin) / HOUR)) for moment in moments]

    async with serving(quiet, settings, sleep, lanes=("short",)):
        starter = BulkStarter(quiet, settings, encodings=encodings)
        envelopes = [
            Envelope(kind=each, id=f"m{n}", lane="short", scheduled_at=datetime.fromtimestamp(begin + after, UTC))
            for each, afters in due.items()
            for n, after in enumerate(afters)
        ]
        assert len([None async for _ in starter.start_all((None, each) for each in envelopes)]) == 6

        async def are_counted() -> bool:
            return await control.count(Selection(state="active")) == 6 and sum((await foresee()).lanes["short"]) == 6

        await wait_until(are_counted, "the index has all")
        await close(f"kind:{kind}", timedelta(hours=2))
        for_a_while = await foresee()
        by_kind = await foresee(by_kind=True)
        await close(f"kind:{kind}", HORIZON)
        for_good = await foresee()
        reader = BoardReader(quiet, settings, Selection(), 1.0, str)
        await reader.read_once()
        board = reader.status()
        await close("lane:short", HORIZON)
        of_lane = await foresee(by_kind=True)
        await gates.open(f"kind:{kind}")
        await gates.open("lane:short")
        await wait_until(are_open, "both are open")
        opened = await foresee()

    assert (for_a_while.gated, name_hours(by_kind, kind)) == ({"short": {f"kind:{kind}": 3}}, [2, 2, 2, 5])
    assert name_hours(by_kind, other) == [0, 4]
    assert sum(for_a_while.lanes["short"]) == 6
    assert (for_good.gated, sum(for_good.lanes["short"])) == ({"short": {f"kind:{kind}": 4}}, 2)
    assert (board.due.gated, sum(board.due.counts.values())) == (4, 2)
    assert (of_lane.count_gated(lane="short"), sum(of_lane.lanes["short"]), of_lane.due) == (6, 0, {})
    assert (opened.gated, sum(opened.lanes["short"])) == ({}, 6)
    document = for_good.to_document()
    assert document["held_at_gates"] == {"short": 4, "medium": 0, "long": 0}
    assert [(each["gate"], each["held"]) for each in document["closed_gates"]] == [(f"kind:{kind}", 4)]


async def test_a_worker_that_has_been_busy_tells_what_it_can_do(
    server: EmbeddedServer, settings: Settings, kind: str
) -> None:
    """The rate is found also when no worker runs; a lane whose workers had nothing to do has an unknown rate."""

    @handler(kind)
    async def tick(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(seconds=1), tolerance=timedelta(0))

    # as worker processes do: those of a client whose heartbeats come once a minute count as gone in between
    client = await connect(Settings(), {"TEMPORAL_ADDRESS": server.address}, heartbeat=HEARTBEAT)
    capacity = Capacity(client, task_queue(settings.task_queue_prefix, "short"))
    async with serving(client, settings, tick, lanes=("short",)):
        before = await find_capacity(client, settings, "short", {})
        starter = BulkStarter(client, settings)
        envelopes = ((None, Envelope(kind=kind, id=f"{kind}-{n}", lane="short")) for n in range(20))
        assert len([receipt async for receipt in starter.start_all(envelopes)]) == 20

        async def has_told() -> bool:
            return any(await capacity.read_measured())

        await wait_until(has_told, "it has told")
        after = await find_capacity(client, settings, "short", {})
        given = await find_capacity(client, settings, "short", {"short": 7.0})

    assert (before.per_second, before.measured) == (None, 0)
    assert after.measured == after.workers == 1
    assert after.per_second is not None
    assert PER_SECOND_MIN <= after.per_second <= 2 * 20, "twenty messages that run once a second, and a bit to catch up"
    assert (given.per_second, given.is_given) == (7.0, True)
