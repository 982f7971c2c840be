"""The kinds of a bridge under measurement, as its environment names them; and those that keep a ledger."""

import os
from datetime import timedelta

from activities import Again, Context, Done, Message, Pack, handler
from examples.ledger import ledgered

KIND_VARIABLE = "DORMICE_BENCH_KIND"
PACKS_VARIABLE = "DORMICE_BENCH_PACKS"
NOTED, HERDED = "bench-noted", "bench-herded"

_packs = int(os.environ.get(PACKS_VARIABLE, "0"))


@handler(
    os.environ.get(KIND_VARIABLE, "bench-kind"),
    encoding=Pack(packs=_packs, size=1420, coalesce=timedelta(minutes=5)) if _packs else None,
)
async def stay_asleep(message: Message, ctx: Context) -> Again:  # noqa: ARG001 — the shape of every handler
    """Come back in a year."""
    return Again(after=timedelta(days=365))


@handler(NOTED)
@ledgered
async def note_payload(message: Message, ctx: Context) -> Again:  # noqa: ARG001 — as above
    """Note the payload, and come back in a year."""
    return Again(after=timedelta(days=365), reason=str(message.payload))


@handler(HERDED)
@ledgered
async def run_with_herd(message: Message, ctx: Context) -> Done:  # noqa: ARG001 — as above
    """Be done."""
    return Done()
