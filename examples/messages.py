"""The messages of the demonstration: real feeds, or many more in packs, at a rate that a small machine can do."""

import csv
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

from shared.messages.encoding import Pack
from shared.messages.envelope import ID_MAX_BYTES, Envelope
from shared.messages.placement import unit_hash

FEEDS = Path(__file__).with_name("feeds.csv")
LANE_SHARES = (("long", 0.02), ("medium", 0.10), ("short", 1.0))

PACKED_KIND = "glance"
PACKED_MESSAGES = 100_000
PACKED_MESSAGES_MAX = 1_000_000
CYCLES_PER_SECOND = 1500.0  # what two cores can do beside the server, the board and the ledger
INTERVAL_SHORTEST = 6.0
STARTS_PER_SECOND = 8000.0  # a slower start does no harm: messages that are due before all are started only run late
IO_SECONDS = 0.005
TOLERANCE_SHARE = 1 / 12
PER_PACK = 250


def read_feeds() -> list[str]:
    """Give the addresses of the feeds, each once, in the order of the file."""
    with FEEDS.open(newline="", encoding="utf-8") as file:
        urls = dict.fromkeys(row["url"].strip() for row in csv.DictReader(file))
    return [url for url in urls if 0 < len(url.encode()) <= ID_MAX_BYTES]


def make_feeds(urls: list[str], site: str) -> list[Envelope]:
    """Turn each address into a message whose page is on our site, due as soon as it is started."""
    lanes = [next(lane for lane, share in LANE_SHARES if unit_hash(f"lane {url}") < share) for url in urls]
    return [
        Envelope(
            kind="feed",
            id=url,
            lane=lane,
            payload={"url": f"{site}/{lane}/{number}", "interval": 6, "min": 3, "max": 30},
        )
        for number, (url, lane) in enumerate(zip(urls, lanes, strict=True))
    ]


def make_packed(count: int, now: float) -> list[Envelope]:
    """Make messages whose first runs are spread over the interval after which they come back."""
    interval = round(max(INTERVAL_SHORTEST, count / CYCLES_PER_SECOND), 1)
    tolerance = round(interval * TOLERANCE_SHARE, 1)
    first = now + count / STARTS_PER_SECOND

    return [
        Envelope(
            kind=PACKED_KIND,
            id=f"page-{number}",
            lane="short",
            scheduled_at=datetime.fromtimestamp(first + unit_hash(f"first {number}") * interval, UTC),
            tolerance_seconds=tolerance,
            payload={"io": IO_SECONDS, "interval": interval, "tolerance": tolerance},
        )
        for number in range(count)
    ]


def choose_pack(count: int) -> Pack:
    """Choose the layout for `count` messages: a power of two, so that the hash fills all packs about alike."""
    packs = 1 << (math.ceil(count / PER_PACK) - 1).bit_length()
    return Pack(packs=packs, size=2 * PER_PACK, coalesce=timedelta(seconds=5))
