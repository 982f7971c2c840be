"""The kinds of `bench limits`: packed messages under a limit, whose calls are written to a ledger."""

from datetime import timedelta

from activities import Context, Done, Message, Pack, handler
from activities.api.limit import Limit
from examples.ledger import ledgered

MANY = "bench-limited-many"
HOT = "bench-limited-hot"
MINUTE = timedelta(minutes=1)
PER_MINUTE = {MANY: 2, HOT: 60}
PACKS = 40


@ledgered
async def be_called(message: Message, ctx: Context) -> Done:  # noqa: ARG001 — the shape of every handler
    """Be called once."""
    return Done()


KINDS = [
    handler(
        kind,
        encoding=Pack(packs=PACKS, size=3500),
        limit=Limit(key=lambda message: f"{message.kind}-{message.payload}", per=(calls, MINUTE)),
    )(be_called)
    for kind, calls in PER_MINUTE.items()
]
many, hot = KINDS
