"""The rows of the scenario: how much is due, what its I/O is like, and how long it is watched."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One load; times are in seconds.

    `rate` calls a second are due, each with `io` of I/O. A `share` of the calls lasts `long` instead. `special` of the
    messages are special: each of their calls lasts `special_io`, with `timeout` for a call.
    """

    title: str
    contestant: str = "dormice-1000"
    messages: int = 600_000
    rate: float = 1500.0
    tolerance: float = 33.0
    io: float = 0.2
    share: float = 0.0
    long: float = 0.0
    special: int = 0
    special_io: float = 0.0
    timeout: float = 25.0
    cached: int = 0
    in_flight: int = 0
    seconds: float = 300.0
    warmup: float = 60.0

    @property
    def delay(self) -> tuple[float, float]:
        """How soon, at least and at most, a message comes back, so that `rate` are due."""
        mean = self.messages / self.rate - self.io
        return 0.5 * mean, 1.5 * mean


HANGS = 3600.0

ROWS = {
    "hanging": Row(title="1 in 10,000 hangs", special=60, special_io=HANGS),
    "long": Row(title="0.07 % of calls last 20 s", share=0.0007, long=20.0),
    "tail": Row(title="1 % of calls last 10 s", share=0.01, long=10.0),
    "solo": Row(
        title="solo: 110 quick, one of 8 s",
        contestant="dormice-solo",
        messages=111,
        rate=22.0,
        tolerance=1.0,
        io=0.005,
        special=1,
        special_io=8.0,
        timeout=30.0,
        cached=48,
        seconds=90.0,
        warmup=5.0,
    ),
    "thousands": Row(
        title="2,000 calls of 2 s at once",
        messages=200_000,
        rate=1000.0,
        io=2.0,
        in_flight=2500,
        seconds=120.0,
        warmup=30.0,
    ),
    "visits": Row(
        title="visits that are answered at once",
        messages=100_000,
        rate=10_000 / 3,
        tolerance=1.5,
        io=0.0,
        seconds=90.0,
        warmup=30.0,
    ),
}
