"""The demonstration's handlers: one visits a page like the built-in `http` handler; both write the ledger."""

import asyncio
import random
from datetime import timedelta

from activities import Again, Context, Done, Message, Reject, handler
from activities.handlers.http.handler import http
from examples.ledger import ledgered


@handler("feed", lane="short")
@ledgered
async def visit(message: Message, ctx: Context) -> Again | Done | Reject:
    """Visit the page and come back when it has probably changed."""
    return await http(message, ctx)


@handler("glance", lane="short")
@ledgered
async def glance(message: Message, ctx: Context) -> Again:  # noqa: ARG001 — the shape of every handler
    """Wait as long as a quick visit takes, and come back at a rhythm that varies."""
    await asyncio.sleep(message.payload["io"])
    interval = message.payload["interval"]
    return Again(
        after=timedelta(seconds=interval * random.uniform(0.5, 1.5)),
        tolerance=timedelta(seconds=message.payload["tolerance"]),
        reason="looked",
    )
