"""Handlers under limits, for worker processes under test that are killed while they count."""

from datetime import timedelta

from activities import Context, Done, Message, handler
from activities.api.limit import Limit
from examples.ledger import ledgered


@handler("limited", limit=Limit(key=lambda message: message.payload, per=(20, timedelta(seconds=5))))
@ledgered
async def be_called(message: Message, ctx: Context) -> Done:
    """Be called once, at the limit's rate."""
    return Done()
