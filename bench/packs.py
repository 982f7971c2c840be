"""Packs against bare packs and solo messages: cycles, starts, bytes; also rss, size, and those with a count.

Cold means far more packs than cached workflows. More is always due than the machine can do, so the rate is what it
can do; `size`, `fill` and `crowd` have messages come back at a rhythm instead, and show how late they are.
"""

import asyncio
from dataclasses import replace
from statistics import median
from typing import Any

from bench.harness import BadArgument, fill, fresh_server, new_prefix, report, run_worker, working
from bench.pack_crowd import measure_crowd
from bench.pack_filling import (
    HOUR,
    SPREAD,
    Filling,
    settled_bytes,
    start_bare,
    start_packs,
    to_order,
    wait_until_asleep,
)
from bench.pack_reading import COUNT_COUNT, LIST_COUNT, measure_count, measure_list
from bench.pack_rhythms import measure_fill, measure_sizes
from bench.pack_sleepers import MANY, measure_sleepers
from bench.worker_process import Measured, Order
from shared.messages.encoding import Pack
from starter.local.embedded import EmbeddedServer

CACHE = 60
SLOTS = 30
BARE_WAKES = 3
PAIRS = 5

SIZE = 200
CYCLES_COUNT = 600 * SIZE  # ten times more packs than are cached
COLD_DELAY = 10.0  # 120,000 every 10 s on average: more than twice of what two cores do
COLD_SECONDS = 12.0
SOLO_COUNT = 50 * CACHE
SOLO_DELAY = 20.0

STARTS_COUNT = 100_000
SOLO_STARTS = 2000
STARTS_SIZE = Pack().size
BYTES_COUNT = 100_000
SOLO_BYTES = 1000


async def main(arguments: list[str]) -> None:
    """Run the sub-scenario named first; without one: cycles, starts and bytes."""
    parts = {"cycles": _cycles, "starts": _starts, "bytes": _bytes, "rss": _rss, "size": measure_sizes}
    fills = {
        "fill": measure_fill,
        "crowd": measure_crowd,
        "list": measure_list,
        "count": measure_count,
        "sleepers": measure_sleepers,
    }
    defaults = {"list": LIST_COUNT, "count": COUNT_COUNT, "sleepers": MANY}

    name, *numbers = arguments or [""]
    if name in fills and (numbers or name in defaults):
        count, *others = (float(number.replace("_", "")) for number in numbers or [str(defaults[name])])
        await fills[name](int(count), *others)
    elif name and name not in parts:
        fill = "fill N [seconds] [mean delay] [workers] [cached] [cycles a run] [tolerance] [size]"
        crowd = "crowd N [seconds] [mean delay]"
        others = f"{fill}, {crowd}, list [N], count [N] or sleepers [N]"
        raise BadArgument(f"there is no part '{name}'; use {', '.join(parts)}, {others}")
    else:
        for part in [name] if name else ["cycles", "starts", "bytes"]:
            await parts[part]()


async def _cycles() -> None:
    """Cold cycles a second, bare pack and dormice pack one after the other in every pair, solo once a pair."""
    seen: dict[str, list[Measured]] = {"bare pack": [], "pack": [], "solo": []}
    async with fresh_server() as server:
        orders = await _fill_cold(server)
        for what in ("bare pack", "pack"):
            # unmeasured: the first round of all is not like the later ones
            await run_worker(server, replace(orders[what], seconds=CYCLES_COUNT / 4000))
        for _ in range(PAIRS):
            for what, order in orders.items():
                seen[what].append(await run_worker(server, order))

    pairs = list(zip(seen["bare pack"], seen["pack"], seen["solo"], strict=True))
    ratio = {
        "bare pack": 1.0,
        "pack": median(pack.rate / bare.rate for bare, pack, _ in pairs),
        "solo": median(solo.rate / bare.rate for bare, _, solo in pairs),
    }
    rows = [
        {
            "what": what,
            "cycles/s": median(m.rate for m in runs),
            "cpu ms/cycle": median(m.cpu_ms for m in runs),
            "rss MB": max(m.rss_bytes for m in runs) / 1e6,
            "handlers run twice": max(m.repeated for m in runs),
            "ratio": ratio[what],
        }
        for what, runs in seen.items()
    ]
    note = f"{CYCLES_COUNT // SIZE} packs of {SIZE}, {CACHE} cached; 5 ms of I/O a call; ratio = to the bare pack"
    report("packs", rows, note=note, case="cycles")


async def _fill_cold(server: EmbeddedServer) -> dict[str, Order]:
    client = await server.connect()
    prefixes = {what: new_prefix() for what in ("bare pack", "pack", "solo")}
    cold = Filling(prefix="", count=CYCLES_COUNT, size=SIZE, delay=COLD_DELAY, coalesce=1.0)
    bare = replace(cold, prefix=prefixes["bare pack"])
    packed = replace(cold, prefix=prefixes["pack"])
    await start_bare(client, bare, bare.bare_packs(), wakes=BARE_WAKES)
    await start_packs(client, packed, packed.envelopes())
    await fill(client, "dormice", prefixes["solo"], SOLO_COUNT, SOLO_DELAY)
    order = Order(what="solo", prefix="", seconds=COLD_SECONDS, cache=CACHE, slots=SLOTS)

    return {
        "bare pack": replace(order, what="bare-pack", prefix=bare.prefix, spread=SPREAD),
        "pack": replace(order, what="pack", prefix=packed.prefix, spread=SPREAD, tolerance=1.0),
        "solo": replace(order, what="dormice", prefix=prefixes["solo"], seconds=COLD_SECONDS),
    }


async def _starts() -> None:
    """Starts a second from messages that are ready in memory; no worker runs."""
    rates: dict[str, list[float]] = {"bare pack": [], "pack": [], "solo": []}
    async with fresh_server() as server:
        client = await server.connect()
        await fill(client, "asleep", new_prefix(), 200, HOUR)  # the first starts on an empty server are slower
        for _ in range(PAIRS):
            for what, seen in rates.items():
                seen.append(await _start_once(server, what))

    rows: list[dict[str, Any]] = [
        {
            "what": what,
            "messages": SOLO_STARTS if what == "solo" else STARTS_COUNT,
            "starts/s": median(seen),
            "times solo": median(a / b for a, b in zip(seen, rates["solo"], strict=True)),
        }
        for what, seen in rates.items()
    ]
    report("packs", rows, note=f"packs of {STARTS_SIZE:,}, one process, messages ready in memory", case="starts")


async def _start_once(server: EmbeddedServer, what: str) -> float:
    client = await server.connect()
    prefix = new_prefix()
    filling = Filling(prefix=prefix, count=STARTS_COUNT, size=STARTS_SIZE, delay=HOUR, due_in=HOUR, coalesce=300.0)
    if what == "bare pack":
        return await start_bare(client, filling, list(filling.bare_packs()), wakes=BARE_WAKES)
    if what == "solo":
        filling = replace(filling, encoding="solo", count=SOLO_STARTS)
    return await start_packs(client, filling, list(filling.envelopes()))


async def _bytes() -> None:
    """Bytes on disk for each message asleep, filled and taken in by a worker, due in an hour."""
    rows: list[dict[str, Any]] = []
    for what, size, count in (("pack", 200, BYTES_COUNT), ("pack", 1000, BYTES_COUNT), ("solo", 1, SOLO_BYTES)):
        filling = Filling(
            prefix=new_prefix(), count=count, size=size, delay=HOUR, due_in=HOUR, coalesce=300.0, encoding=what
        )
        async with fresh_server() as server:
            client = await server.connect()
            before = await settled_bytes(server)
            async with working(server, to_order(filling)):
                await start_packs(client, filling, filling.envelopes())
                # a solo message has told when it is due at its start: its first task is waited for by time
                await (asyncio.sleep(count / 40) if what == "solo" else wait_until_asleep(client, filling))
            size_on_disk = await settled_bytes(server) - before

        rows.append({"what": what, "size": size, "messages": count, "bytes/message": size_on_disk / count})

    report("packs", rows, note="payload of 60 bytes of JSON, asleep for an hour, log worked in", case="bytes")


async def _rss() -> None:
    """Memory of the worker that has taken in 100,000 and a million messages, and of a new one beside them."""
    rows: list[dict[str, Any]] = []
    for count in (100_000, 1_000_000):
        filling = Filling(prefix=new_prefix(), count=count, size=1000, delay=HOUR, due_in=2 * HOUR, coalesce=300.0)
        async with fresh_server() as server:
            client = await server.connect()
            async with working(server, to_order(filling)) as admitting:
                rate = await start_packs(client, filling, filling.envelopes())
                await wait_until_asleep(client, filling)
            fresh = await run_worker(server, to_order(filling, seconds=10.0))

        rows.append(
            {
                "asleep": count,
                "starts/s": rate,
                "rss MB after taking in": admitting[-1].rss_bytes / 1e6,
                "rss MB of a new worker": fresh.rss_bytes / 1e6,
            }
        )

    report("packs", rows, note="packs of 1,000, 100 cached; the rate includes making the envelopes", case="rss")
