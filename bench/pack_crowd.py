"""More packed messages than anybody has, for the scenario `packs`: two processes fill until something gives way."""

import asyncio
import multiprocessing
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import psutil
from temporalio.client import Client

from bench.harness import database_bytes, fresh_server, new_prefix, report, working
from bench.pack_filling import DAY, HOUR, Filling, start_sorted, to_order, wait_until_asleep
from starter.local.embedded import EmbeddedServer

PORTION = 2_000_000
"""Messages of a kind of their own each, ready by pack."""

SENDERS = 2


async def measure_crowd(count: int) -> None:
    """Fill without a worker, a row for each portion; then let a worker admit the last portion, the others beside it."""
    portions = [
        Filling(
            prefix=new_prefix(), count=PORTION, size=1000, delay=DAY, due_in=HOUR, due_spread=DAY, coalesce=2 * HOUR
        )
        for _ in range(max(1, count // PORTION))
    ]
    rows: list[dict[str, Any]] = []
    spawn = multiprocessing.get_context("spawn")
    async with fresh_server() as server:
        with ProcessPoolExecutor(SENDERS, spawn) as pool:
            unconfirmed = 0
            ended = [time.monotonic()] * SENDERS
            sending = [asyncio.wrap_future(pool.submit(_send, server.address, portion)) for portion in portions]
            for number, sent in enumerate(asyncio.as_completed(sending), 1):
                unconfirmed += await sent
                ended.append(time.monotonic())
                rate = SENDERS * PORTION / (ended[-1] - ended[-1 - SENDERS])  # both senders may end at once
                rows.append({"messages": number * PORTION, "starts/s": rate} | _look_at(server))
                print(rows[-1], flush=True)
        began = time.monotonic()
        async with working(server, to_order(portions[-1])):
            await wait_until_asleep(await server.connect(), portions[-1])
        taken_in = PORTION / (time.monotonic() - began)
        rows.append({"messages": len(portions) * PORTION, "starts/s": 0.0} | _look_at(server))
    note = (
        f"{SENDERS} senders, no worker; a worker then took in {taken_in:,.0f} a second of the last {PORTION:,}; of "
        f"{unconfirmed:,} messages only a worker could have told that they were accepted"
    )
    report("packs", rows, note=note, case=f"crowd {count}")


def _send(address: str, portion: Filling) -> int:
    """Send a portion, in a process of its own; gives how many messages only a pack could have told about.

    A call that was repeated because it was slow finds its own pack there, which no worker serves.
    """

    async def send() -> int:
        return (await start_sorted(await Client.connect(address), portion)).failed

    return asyncio.run(send())


def _look_at(server: EmbeddedServer) -> dict[str, float]:
    assert server.process_id is not None
    family = [psutil.Process(server.process_id), *psutil.Process(server.process_id).children()]
    return {
        "server MB": sum(process.memory_info().rss for process in family) / 1e6,
        "disk MB": database_bytes(server) / 1e6,
        "disk left MB": shutil.disk_usage(server.options.data).free / 1e6,
    }
