"""A process of either revision for `against`: starts messages, then prints the order by which its worker runs them.

Messages are started by the code that runs them, because revisions may store them differently.
"""

import asyncio
import json
import os
import sys
import traceback
from dataclasses import replace
from typing import Any

from temporalio.client import Client

from bench.harness import fill, new_prefix
from bench.pack_filling import SPREAD, Filling, start_sorted, to_order
from bench.worker_process import Order
from shared.settings import Settings
from shared.temporal.connect import client_options


async def start(encoding: str, count: int, size: int, delay: float, numbers: dict[str, Any]) -> Order:
    """Start messages, solo or in packs of about `size`; `numbers` replace the order's own."""
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], **client_options(Settings()))
    prefix = new_prefix()
    if encoding == "solo":
        await fill(client, "dormice", prefix, count, delay)
        return Order(what="dormice", prefix=prefix, **numbers)

    filling = Filling(prefix=prefix, count=count, size=size, delay=delay, coalesce=1.0)
    await start_sorted(client, filling)
    return replace(to_order(filling, warmup=5.0), spread=SPREAD, **numbers)


def main(argument: str) -> None:
    """Start what the JSON says, and print the order; a failure ends the process too, whatever has begun in it."""
    code = 0
    try:
        print(asyncio.run(start(**json.loads(argument))).write(), flush=True)
    except Exception:  # noqa: BLE001 — whatever it is, the parent gets a code, and the traceback stands above it
        traceback.print_exc()
        code = 1
    os._exit(code)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300


if __name__ == "__main__":
    main(sys.argv[1])
