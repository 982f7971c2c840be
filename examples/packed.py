"""The messages of the demonstration's packed form: many, at a rate that a small machine can keep up with."""

import math
from datetime import UTC, datetime, timedelta

from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import unit_hash

KIND = "glance"
MESSAGES = 100_000
MESSAGES_MAX = 1_000_000
CYCLES_PER_SECOND = 1500.0  # what two cores can do beside the server, the board and the ledger
INTERVAL_SHORTEST = 6.0
STARTS_PER_SECOND = 8000.0  # a slower start does no harm: messages that are due before all are started only run late
IO_SECONDS = 0.005
COALESCE_SECONDS = 5.0
TOLERANCE_SHARE = 1 / 12
PER_PACK = 250


def make_packed_envelopes(count: int, now: float) -> list[Envelope]:
    """Make messages whose first runs are spread over the interval after which they come back."""
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
    """Choose the layout for `count` messages; the hash fills packs unevenly, each has room for twice the average."""
    return Pack(packs=math.ceil(count / PER_PACK), size=2 * PER_PACK, coalesce=timedelta(seconds=COALESCE_SECONDS))
