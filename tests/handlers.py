"""Handlers for worker processes under test: they keep a ledger of every call."""

import asyncio
from datetime import timedelta

from activities import Again, Context, Done, Message, handler
from examples.ledger import ledgered


@handler("ledger", backoff=timedelta(milliseconds=200))
@ledgered
async def work(message: Message, ctx: Context) -> Again | Done:
    """Work for `work` seconds, come back after `delay` seconds, be done after `cycles` versions."""
    await asyncio.sleep(message.payload.get("work", 0))
    if message.version + 1 >= message.payload.get("cycles", 1_000_000):
        return Done(message.version)
    return Again(
        after=timedelta(seconds=message.payload["delay"]),
        tolerance=timedelta(seconds=message.payload.get("tolerance", 0)),
        payload={**message.payload, "step": message.version + 1},
    )
