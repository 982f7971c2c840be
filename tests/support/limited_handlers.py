"""Handlers under limits, for worker processes under test that are killed while they count."""

from datetime import timedelta

from activities import Context, Done, Message, handler
from activities.api.limit import Limit
from examples.ledger import ledgered

LIMIT = Limit(key=lambda message: message.payload, per=(20, timedelta(seconds=5)))


@ledgered
async def be_called(message: Message, ctx: Context) -> Done:
    """Be called once, at the limit's rate."""
    return Done()


# a kind for each encoding, because a kind that has packs on a server keeps them
solo = handler("limited-solo", limit=LIMIT)(be_called)
packed = handler("limited-pack", limit=LIMIT)(be_called)
