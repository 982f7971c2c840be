"""The Kafka bridge: solo against a bare client, pack against the bulk starter; also lag, spike and kills [records].

Each part has its own server and broker, and the bridge runs as a process. A record counts when its offset is committed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from statistics import median

from temporalio.client import Client
from temporalio.common import TypedSearchAttributes

from bench.bridge_faults import measure_kills, measure_spikes
from bench.bridging import PARTITIONS, Follower, Stage, bridging, fresh_stage, open_topic, produce
from bench.harness import alternate, choose, fill, new_prefix, read_count, report, working
from bench.pack_filling import HOUR, Filling, build_starter, start_packs, to_order, wait_until_asleep
from shared.lanes import task_queue
from shared.messages.envelope import Envelope
from shared.messages.placement import MESSAGE_WORKFLOW
from shared.settings import Settings
from shared.temporal.search_attributes import attributes_at_start
from starter.bridge.window import PACK_ROOM
from starter.starting.delivery import Delivery
from starter.starting.receipts import StartOutcome
from starter.starting.start_request import first_state

PAIRS = 4
LAG_PAIRS = 2
SOLO_COUNT = 4000
PACK_COUNT = 200_000
SIZE = 1000
LAG = 200_000
SHORT_LAG = 1000
LAG_SECONDS = 30.0
IN_FLIGHT = 64
INDEX_AFTER_SECONDS = Settings().index_after.total_seconds()


async def main(arguments: list[str]) -> None:
    """Run the part named first; without one: solo and pack. A number behind it changes how many records."""
    parts: dict[str, Callable[..., Awaitable[None]]] = {
        "solo": _solo,
        "pack": _pack,
        "lag": _lag,
        "spike": measure_spikes,
        "kills": measure_kills,
    }
    named = choose(arguments[:1] or ["solo", "pack"], parts, "part")
    counts = [read_count([number], SOLO_COUNT) for number in arguments[1:2]]

    for name in named:
        await parts[name](*counts)


async def _solo(count: int = SOLO_COUNT) -> None:
    """Records a second against a bare client's starts of the same messages, and of bare workflows; no worker runs."""

    async def start_same(stage: Stage) -> float:
        return await _start_same(await stage.server.connect(), _filling(count, "solo"))

    async def start_bare(stage: Stage) -> float:
        return await fill(await stage.server.connect(), "bare", new_prefix(), count, HOUR)

    async def bridge(stage: Stage) -> Follower:
        return await _bridge(stage, _filling(count, "solo"))

    note = f"{count:,} each, in the order A B B A; ratio = median of the pairs"
    contestants = {"bare client, the same messages": start_same, "bare client, bare workflows": start_bare}
    await _compare("solo", {**contestants, "bridge": bridge}, note)


async def _start_same(client: Client, filling: Filling) -> float:
    """Start messages as a script around the SDK would, a bounded number at once; gives the starts a second."""
    gate = asyncio.Semaphore(IN_FLIGHT)
    began = time.monotonic()

    async def start(envelope: Envelope) -> None:
        async with gate:
            now = time.time()
            state = first_state(envelope, now)
            await client.start_workflow(
                MESSAGE_WORKFLOW,
                state.dump(),
                id=state.workflow_id,
                task_queue=task_queue(filling.prefix, state.lane),
                task_timeout=Settings().workflow_task_timeout,
                search_attributes=TypedSearchAttributes(attributes_at_start(state, now, INDEX_AFTER_SECONDS)),
                static_summary=f"{state.kind} {state.id}",
            )

    await asyncio.gather(*(start(envelope) for _, envelope in filling.envelopes()))
    return filling.count / (time.monotonic() - began)


async def _pack(count: int = PACK_COUNT) -> None:
    """Measure records a second against the bulk starter with the same deliveries in memory; a worker runs beside both.

    Three more rates that concern messages, not records: all held back until each pack gets its thousand in one call;
    until the packs have them; and without a worker, until the server has them.
    """

    async def start(stage: Stage) -> float:
        filling = _filling(count, "pack")
        return await start_packs(await stage.server.connect(), filling, list(filling.envelopes()))

    async def take_in(stage: Stage) -> float:
        filling = _filling(count, "pack")
        client = await stage.server.connect()
        envelopes = list(filling.envelopes())
        async with working(stage.server, to_order(filling)):
            began = time.monotonic()
            await start_packs(client, filling, envelopes)
            await wait_until_asleep(client, filling)
            return count / (time.monotonic() - began)

    async def deliver(stage: Stage) -> float:
        filling = _filling(count, "pack")
        client = await stage.server.connect()
        deliveries = [
            Delivery(e.kind, e.id, f"{filling.prefix}/{number % PARTITIONS}", number, e)
            for number, (_, e) in enumerate(filling.envelopes())
        ]

        async with working(stage.server, to_order(filling)):
            starter = build_starter(client, filling, PACK_ROOM, revises=True)
            began = time.monotonic()
            async for receipt in starter.start_all((None, delivery) for delivery in deliveries):
                assert receipt.outcome is StartOutcome.STARTED, receipt
            return count / (time.monotonic() - began)

    async def bridge(stage: Stage) -> Follower:
        filling = _filling(count, "pack")
        async with working(stage.server, to_order(filling)):
            return await _bridge(stage, filling)

    note = f"{count:,} each in packs of {SIZE:,}, in the order A B B A; the bulk starter's are ready in memory"
    contestants = {
        "bulk starter, the same deliveries": deliver,
        "bulk starter, messages, until packs have them": take_in,
        "bulk starter, messages, no worker": start,
        "bridge": bridge,
    }
    await _compare("pack", contestants, note)


async def _compare(
    case: str, contestants: Mapping[str, Callable[[Stage], Awaitable[float | Follower]]], note: str
) -> None:
    """Report the rates, and of bridges the processor time for their start in seconds and for each record after it."""
    seen: dict[str, list[float | Follower]] = {what: [] for what in contestants}
    async with fresh_stage() as stage:
        await fill(await stage.server.connect(), "bare", new_prefix(), 200, HOUR)  # the first starts of all are slower
        for number in range(PAIRS):
            for what, measure in alternate(contestants, number).items():
                seen[what].append(await measure(stage))

    rates = {what: [one.rate if isinstance(one, Follower) else one for one in ones] for what, ones in seen.items()}
    bridges = {what: [one for one in ones if isinstance(one, Follower)] for what, ones in seen.items()}
    yardstick = next(iter(rates.values()))
    rows = [
        {
            "what": what,
            "records/s": median(ours),
            "ratio": median(rate / other for rate, other in zip(ours, yardstick, strict=True)),
            "start cpu s": median(one.start_seconds for one in bridges[what]) if bridges[what] else None,
            "cpu us/record": median(one.cpu_us for one in bridges[what]) if bridges[what] else None,
        }
        for what, ours in rates.items()
    ]
    report("bridge", rows, note=note, case=case)


def _filling(count: int, encoding: str) -> Filling:
    """Messages that nobody works on: they are due in an hour."""
    return Filling(
        prefix=new_prefix(), count=count, size=SIZE, delay=HOUR, due_in=HOUR, coalesce=300.0, encoding=encoding
    )


async def _bridge(stage: Stage, filling: Filling) -> Follower:
    """Bring a filling through a topic, by a bridge after one whose topic is empty, which shows what a start takes."""
    topic = filling.prefix
    kind, packs = (topic, filling.packs) if filling.encoding == "pack" else ("bench", 0)

    empty = new_prefix()
    async with open_topic(stage, empty), bridging(stage, empty, kind, packs=packs) as follower:
        start_seconds = (await follower.wait_until_consuming()).cpu_seconds

    async with open_topic(stage, topic) as producer:
        await produce(producer, topic, (envelope for _, envelope in filling.envelopes()))
        async with bridging(stage, topic, kind, packs=packs) as follower:
            follower.start_seconds = start_seconds
            await follower.wait_until_committed(filling.count)

    return follower


async def _lag(count: int = LAG) -> None:
    """Rate and memory with a long queue and with a short one that is filled up all the time, in the order A B B A."""
    seen: dict[int, list[Follower]] = {SHORT_LAG: [], count: []}
    async with fresh_stage() as stage:
        for number in range(LAG_PAIRS):
            for lag in alternate({str(lag): lag for lag in seen}, number).values():
                seen[lag].append(await _bridge_with_lag(stage, lag))

    rows = [
        {
            "lag": lag,
            "records/s": median(f.rate for f in runs),
            "rss MB": max(f.rss_bytes for f in runs) / 1e6,
            "rate ratio": median(f.rate / s.rate for f, s in zip(runs, seen[SHORT_LAG], strict=True)),
            "rss ratio": max(f.rss_bytes for f in runs) / max(f.rss_bytes for f in seen[SHORT_LAG]),
        }
        for lag, runs in seen.items()
    ]
    report("bridge", rows, note=f"solo, {LAG_SECONDS:.0f} s each; no worker runs", case="lag")


async def _bridge_with_lag(stage: Stage, lag: int) -> Follower:
    filling = replace(_filling(lag, "solo"), count=lag + 100_000)
    records = (envelope for _, envelope in filling.envelopes())

    topic = filling.prefix
    sent = 0
    async with open_topic(stage, topic) as producer, bridging(stage, topic, "bench") as follower:
        ends_at = time.monotonic() + LAG_SECONDS
        while time.monotonic() < ends_at:
            missing = follower.committed + lag - sent
            sent += await produce(producer, topic, (next(records) for _ in range(missing)))
            if missing > SHORT_LAG:
                ends_at = time.monotonic() + LAG_SECONDS  # from when the queue is as long as it should be
            await asyncio.sleep(0.2)

    return follower
