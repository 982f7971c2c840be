"""The messages of the demonstration's packed form: many, at a rhythm at which a small machine keeps up."""

import math
from datetime import UTC, datetime, timedelta

from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import unit_hash

KIND = "glance"
MESSAGES = 100_000
MESSAGES_MAX = 1_000_000
CYCLES_PER_SECOND = 1500.0  # what two cores bear beside the server, the board and the ledger
INTERVAL_SHORTEST = 6.0
STARTS_PER_SECOND = 8000.0  # with a margin: what falls due before all are started is only late
IO_SECONDS = 0.005
COALESCE_SECONDS = 5.0
TOLERANCE_SHARE = 1 / 12
PER_PACK = 250


def make_packed_envelopes(count: int, now: float) -> list[Envelope]:
    """Make messages whose first runs are spread over the interval at which they come back."""
    interval = round(max(INTERVAL_SHORTEST, count / CYCLES_PER_SECOND), 1)
    tolerance = round(interval * TOLERANCE_SHARE, 1)
    first = now + count / STARTS_PER_SECOND
    return [
        Envelope(
            kind=KIND,
            id=f"page-{number}",
            lane="short",
            scheduled_at=datetime.fromtimestamp(first + unit_hash(f"first {number}") * interval, UTC),
            tolerance_seconds=tolerance,
            payload={"io": IO_SECONDS, "interval": interval, "tolerance": tolerance},
        )
        for number in range(count)
    ]


def choose_pack(count: int) -> Pack:
    """Lay so many messages out; a hash fills some packs fuller than others, so there is room for twice as many."""
    return Pack(packs=math.ceil(count / PER_PACK), size=2 * PER_PACK, coalesce=timedelta(seconds=COALESCE_SECONDS))
