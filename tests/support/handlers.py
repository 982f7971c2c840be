"""Handlers for worker processes under test: they keep a ledger of every call."""

import asyncio
import logging
from datetime import timedelta

from activities import Again, Context, Done, Message, Pack, handler
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


HERD_PACK = Pack(packs=8, size=500, coalesce=timedelta(0))
work_packed = handler("ledger-packed", encoding=HERD_PACK)(work.function)
work_in_one_pack = handler("ledger-one-pack", encoding=Pack(packs=1, size=100, coalesce=timedelta(0)))(work.function)


@ledgered
async def note_payload(message: Message, ctx: Context) -> Again:
    """Note the payload, and come back in a year."""
    return Again(after=timedelta(days=365), reason=str(message.payload))


note_solo = handler("noted")(note_payload)
note_packed = handler("noted-packed", encoding=Pack(packs=20, size=1000, coalesce=timedelta(0)))(note_payload)


@handler("standby", encoding=Pack(packs=100, size=1500))
async def stand_by(message: Message, ctx: Context) -> Done:
    """Be one of very many."""
    return Done()


async def tell(message: Message, ctx: Context) -> Again | Done:
    """Log a line of one's own and one as a library would, and be done at the second time."""
    ctx.logger.info("told by the handler")
    logging.getLogger("library").info("told by a library")
    return Done() if message.version else Again(after=timedelta(seconds=1), tolerance=timedelta(0))


tell_solo = handler("telling")(tell)
tell_packed = handler("telling-packed", encoding=Pack(packs=2, size=100, coalesce=timedelta(0)))(tell)
