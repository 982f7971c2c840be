"""The bridge in trouble, for the scenario `bridge`: five times its usual load for a while, and kills in mid-load."""

import asyncio
import random
import time
from collections import defaultdict
from datetime import timedelta
from itertools import islice
from statistics import mean
from typing import Any

from bench.bridging import PARTITIONS, Stage, bridging, fresh_stage, open_topic, produce
from bench.handlers import NOTED
from bench.harness import fill, new_prefix, noting, report, working
from bench.pack_filling import HOUR, Filling, to_order
from bench.worker_process import Order
from examples.ledger import Ledger
from shared.messages.encoding import SIZE_MAX, Pack
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.supervised_process import kill_supervised
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome

SUSTAINED = {"solo": 15, "pack": 150}
"""Records a second, a fraction of what the bridge can do while a worker is at work beside it."""

STARTS_PER_SECOND = {"solo": 30.0, "pack": 0.0}
"""The setting of that name: a start costs as much as a cycle and goes first, so this limit decides what is left."""

TIMES = 5
DEFAULT_SECONDS = 150.0
SPIKE_SECONDS = 60.0
"""The first is how long a message lives through a run: all begin together, and the cycles of a run cost differently."""

WINDOW_SECONDS = 10.0
AT_WORK = 2000
PACKED_AT_WORK = 100_000
"""Messages that come back every 20 s, more than a worker can do."""

KEYS = 5000
REVISIONS = 4
KILLS = 5
MEMBER = ("--member", "one", "--session-seconds", "6")
"""A restarted bridge has its partitions back at once."""


async def measure_spikes(seconds: float = SPIKE_SECONDS) -> None:
    """Five times the usual rate for a while, for messages of either encoding, beside a worker that is at work."""
    rows = [await _measure_spike(encoding, seconds) for encoding in SUSTAINED]
    note = f"{DEFAULT_SECONDS:.0f} s at the usual rate, then {TIMES} times that for {seconds:.0f} s"
    report("bridge", rows, note=note, case="spike")


async def _measure_spike(encoding: str, seconds: float) -> dict[str, Any]:
    rate = SUSTAINED[encoding]
    prefix = new_prefix()
    count = round(rate * DEFAULT_SECONDS + TIMES * rate * (seconds + 1))
    kind, packs = ("bench", 0) if encoding == "solo" else (prefix, (count + PACKED_AT_WORK) // 1000)
    filling = Filling(
        prefix=prefix, count=AT_WORK + count, size=1000, delay=20.0, due_in=HOUR, coalesce=1.0, encoding=encoding
    )
    maximum = ("--set", f"starts_per_second={STARTS_PER_SECOND[encoding]}")

    async with fresh_stage() as stage:
        order = await _busy_order(stage, filling, packs)
        async with (
            open_topic(stage, prefix) as producer,
            working(stage.server, order) as windows,
            bridging(stage, prefix, kind, *maximum, packs=packs) as follower,
        ):
            # the first have the names of those at work: their records would put them to sleep
            records = (envelope for _, envelope in islice(filling.envelopes(), AT_WORK, None))
            sent = await _send_at(rate, DEFAULT_SECONDS, producer, prefix, records)
            before = len(windows)
            sent += await _send_at(TIMES * rate, seconds, producer, prefix, records)
            lag = sent - follower.committed
            began = time.monotonic()
            await follower.wait_until_committed(sent)
            drained = time.monotonic() - began
            await asyncio.sleep(WINDOW_SECONDS)  # for the window that it drained in
            during = windows[before : before + 1 + int((seconds + drained) / WINDOW_SECONDS)]

    before_mean = mean(m.rate for m in windows[2:before])
    busy = mean(m.rate for m in during)
    return {
        "encoding": encoding,
        "usual/s": rate,
        "at most/s": STARTS_PER_SECOND[encoding] or None,
        "lag at its end": lag,
        "drained after s": drained,
        "rss MB": follower.rss_bytes / 1e6,
        "cycles/s before": before_mean,
        "cycles/s until drained": busy,
        "ratio": busy / before_mean,
    }


async def _busy_order(stage: Stage, filling: Filling, packs: int) -> Order:
    """Order a worker, and give it messages of which more is always due than it can do."""
    client = await stage.server.connect()
    order = to_order(filling, seconds=WINDOW_SECONDS, windows=10_000)
    if filling.encoding == "solo":
        await fill(client, "dormice", filling.prefix, AT_WORK, 20.0)
        return order

    pack = Pack(packs=packs, size=SIZE_MAX, coalesce=timedelta(seconds=filling.coalesce))
    settings = Settings(task_queue_prefix=filling.prefix, pack_room=PACKED_AT_WORK + 1)

    envelopes = (
        (None, Envelope(kind=filling.prefix, id=f"at-work-{n}", lane="short", payload={"delay": 20.0}))
        for n in range(PACKED_AT_WORK)
    )
    async for receipt in BulkStarter(client, settings, encodings={filling.prefix: pack}).start_all(envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt

    return order


async def _send_at(rate: float, seconds: float, producer: Any, topic: str, records: Any) -> int:
    """Send records at a rate for a while; gives their number."""
    began = time.monotonic()
    sent = 0
    while (elapsed := time.monotonic() - began) < seconds:
        due = int(elapsed * rate) - sent
        sent += await produce(producer, topic, (next(records) for _ in range(due)))
        await asyncio.sleep(0.1)
    return sent


async def measure_kills(keys: int = KEYS) -> None:
    """A bridge is killed five times at random moments while it works through the revisions of many keys."""
    prefix = new_prefix()
    chance = random.Random(11)
    began = time.monotonic()

    async with fresh_stage() as stage, open_topic(stage, prefix) as producer:
        for revision in range(REVISIONS):
            payload = f"r{revision}"
            await produce(producer, prefix, (Envelope(kind=NOTED, id=f"k{n}", payload=payload) for n in range(keys)))

        async with noting(stage.server, prefix) as ledger:
            for _ in range(KILLS):
                async with bridging(stage, prefix, "bench", *MEMBER) as follower:
                    await follower.wait_until_committed(1)
                    await follower.wait_until_committed(follower.committed + chance.randrange(1, keys // 4))
                    await kill_supervised(follower.process)
            async with bridging(stage, prefix, "bench", *MEMBER) as follower:
                await follower.wait_until_committed(REVISIONS * keys)
                while not _is_newest(ledger, keys):  # noqa: ASYNC110 — another process keeps it
                    await asyncio.sleep(2)
            rows = [_check(ledger, keys) | {"s": time.monotonic() - began}]

    report("bridge", rows, note=f"{PARTITIONS} partitions, solo, {KILLS} kills with SIGKILL", case="kills")


def _is_newest(ledger: Ledger, keys: int) -> bool:
    found = _check(ledger, keys)
    return not found["missing"] and not found["without their newest"]


def _check(ledger: Ledger, keys: int) -> dict[str, Any]:
    """Count what is wrong: a record acted twice when its message was called for it under two versions."""
    newest: dict[str, str] = {}
    versions: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    for entry in ledger.entries:
        if entry.what == "again":
            newest[entry.id] = entry.note
            versions[entry.id, entry.note].add(entry.version)

    return {
        "records": keys * REVISIONS,
        "missing": keys - len(newest),
        "without their newest": sum(note != f"r{REVISIONS - 1}" for note in newest.values()),
        "acted twice": sum(len(found) > 1 for found in versions.values()),
    }
