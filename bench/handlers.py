"""The kinds of a bridge under measurement, as its environment names them; and those that keep a ledger."""

import os
import random
from datetime import timedelta

from activities import Again, Context, Done, Message, Pack, handler
from activities import server_calls as left_runs
from examples.ledger import ledgered
from shared.messages.encoding import SIZE_MAX

KIND_VARIABLE = "DORMICE_BENCH_KIND"
PACKS_VARIABLE = "DORMICE_BENCH_PACKS"
DELETE_AFTER_VARIABLE = "DORMICE_BENCH_DELETE_AFTER"
NOTED = "bench-noted"
HERDED = "bench-herded"
RESTLESS = "bench-restless"
RESTLESS_PACKED = "bench-restless-packed"

if DELETE_AFTER_VARIABLE in os.environ:
    left_runs.DELETE_AFTER = timedelta(seconds=float(os.environ[DELETE_AFTER_VARIABLE]))

_packs = int(os.environ.get(PACKS_VARIABLE, "0"))
_encoding = Pack(packs=_packs, size=SIZE_MAX, coalesce=timedelta(minutes=5)) if _packs else None


@handler(os.environ.get(KIND_VARIABLE, "bench-kind"), encoding=_encoding)
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


@handler(RESTLESS)
@ledgered
async def never_rest(message: Message, ctx: Context) -> Again:  # noqa: ARG001 — as above
    """Come back within half a minute."""
    return Again(after=timedelta(seconds=random.uniform(5, 30)), tolerance=timedelta(0))


never_rest_packed = handler(RESTLESS_PACKED)(never_rest.function)
