"""`python -m bench.peers.process fill|serve|send ORDER`: one process of a contestant."""

import asyncio
import importlib
import json
import os
import sys
import time
from dataclasses import asdict, replace

import uvloop

from bench.peers.contestants import find_contestant
from bench.peers.work import Order, Work

STOP_SECONDS = 10.0


async def _serve(order: Order) -> None:
    work = Work(order)
    module = importlib.import_module(find_contestant(order.contestant).module)
    serving = asyncio.create_task(module.serve(order, work.handle))
    print("{}", flush=True)  # whoever waits for this process to be up

    if order.fresh_a_second:  # nobody else can send messages to it
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_send(replace(order, fresh_from=time.time())))
            await serving

    if not order.seconds:
        await serving

    measuring = asyncio.create_task(work.measure(order.warmup, order.seconds))
    await asyncio.wait([serving, measuring], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving

    measured = await measuring
    serving.cancel()  # what is at work ends first, so that nobody waits for it in the next round
    await asyncio.wait([serving], timeout=STOP_SECONDS)
    print(json.dumps(asdict(measured)), flush=True)


async def _fill(order: Order) -> None:
    await importlib.import_module(find_contestant(order.contestant).module).fill(order)


async def _send(order: Order) -> None:
    """Send fresh messages for ever, or once those that are all due at one moment."""
    module = importlib.import_module(find_contestant(order.contestant).module)
    async with module.sending(order) as send, asyncio.TaskGroup() as tasks:
        if order.due_at:
            await send([(name, order.due_at) for name in order.message_ids()])
            return
        async for fresh in order.fresh_messages.each_second():
            tasks.create_task(send(fresh))


def main(arguments: list[str]) -> None:
    """Fill, serve or send as the JSON orders; ends at once, whatever threads a library has left."""
    what, text = arguments
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run({"fill": _fill, "serve": _serve, "send": _send}[what](Order.read(text)))
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
