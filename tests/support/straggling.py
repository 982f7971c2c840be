"""A handler for worker processes under test whose calls last until a test lets them end, or end their process."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from activities import Context, Done, Message, handler
from examples.ledger import ledgered

KIND_VARIABLE = "STRAGGLING_KIND"
"""Environment variable that names the kind, because packs of one kind stay on one test's task queues."""


KIND = os.environ.get(KIND_VARIABLE, "straggling")
DEADLY = "deadly"
"""Payload of a message whose handler ends its process."""


@handler(KIND, max_attempts=2, timeout=timedelta(seconds=28), backoff=timedelta(milliseconds=200))
@ledgered
async def straggle(message: Message, ctx: Context) -> Done:
    """Wait at the first attempt for the file that the payload names; be done at once at any other."""
    if message.payload == DEADLY:
        os._exit(1)
    while ctx.attempt == 1 and not _is_open(message.payload):  # noqa: ASYNC110 — another process opens it
        await asyncio.sleep(0.05)
    return Done()


def _is_open(gate: str) -> bool:
    return Path(gate).exists()
