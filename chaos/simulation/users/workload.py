"""The workload of a simulation: what its messages and packs are like, as the seed says."""

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from shared.messages.encoding import Pack

SLOW_SECONDS = 10.0
"""From longer delays on a simulation lasts longer, and its messages may be big."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The lane and the packs of the messages, and what their handlers ask for; delays and tolerance in seconds."""

    lane: str
    pack: Pack
    delays: tuple[float, float]
    tolerance: float
    pad: int
    """Bytes that each payload has beside its revision."""

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        """Draw a workload."""
        lane = rng.choice(["short", "short", "medium"])
        size = rng.choice([4, 20, 200])
        pack = Pack(packs=rng.choice([1, 2, 3, 8]), size=size, coalesce=timedelta(seconds=rng.choice([0, 5, 30])))
        delays = rng.choice([(1.0, 3.0), (1.0, 10.0), (5.0, 60.0), (5.0, 120.0)])
        tolerance = rng.choice([0.0, 5.0, 30.0])
        pad = rng.choice([0, 0, 0, 3500]) if delays[1] > SLOW_SECONDS else 0
        return cls(lane, pack, delays, tolerance, pad)

    def draw_seconds(self, rng: random.Random) -> float:
        """Draw how long faults happen, so that messages come back meanwhile."""
        return rng.choice([60.0, 120.0, 240.0]) if self.delays[1] > SLOW_SECONDS else 60.0

    def draw_count(self, rng: random.Random) -> int:
        """Draw how many packed messages are started: many if they are big, so that they fill packs."""
        return rng.choice([3, 8, 20]) if self.pad == 0 else 60
