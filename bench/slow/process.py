"""`python -m bench.slow.process fill|serve ORDER`: one process of a contestant."""

import asyncio
import importlib
import json
import os
import sys

import uvloop

from bench.peers.contestants import find_contestant
from bench.slow.work import Order, Work, describe_limits, to_wire


async def _serve(order: Order) -> None:
    """Serve until the process is killed; prints the windows meanwhile."""
    work = Work(order)
    module = importlib.import_module(find_contestant(order.contestant).module)
    print(describe_limits(), file=sys.stderr, flush=True)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(module.serve(order, work.handle))
        async for window in work.measure():
            print(json.dumps(to_wire(window)), flush=True)


async def _fill(order: Order) -> None:
    await importlib.import_module(find_contestant(order.contestant).module).fill(order)


def main(arguments: list[str]) -> None:
    """Fill or serve as the JSON orders; ends at once, whatever threads a library has left."""
    what, text = arguments
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run({"fill": _fill, "serve": _serve}[what](Order.read(text)))
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
