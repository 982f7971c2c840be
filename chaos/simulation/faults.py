"""Faults: the kinds of faults, their rates in one simulation, and how often each happened."""

import random
from collections import Counter
from collections.abc import Mapping

OFTEN: Mapping[str, float] = {
    "request lost": 0.15,
    "answer lost": 0.15,
    "task answer lost": 0.1,
    "task answer unheard": 0.1,
    "activity answer lost": 0.1,
    "heartbeat lost": 0.3,
    "task waits long": 0.1,
    "worker killed": 0.03,
    "worker stalled": 0.03,
    "worker drained": 0.02,
    "cache evicted": 0.1,
    "handler fails": 0.2,
    "handler rejects": 0.05,
    "handler retries later": 0.15,
    "handler hangs": 0.08,
    "handler is slow": 0.2,
    "handler kills its worker": 0.02,
    "handler raises no exception": 0.05,
    "handler is done": 0.1,
    "handler moves lanes": 0.1,
    "malformed signal": 0.1,
    "signal to an unknown id": 0.1,
    "bridge killed": 0.03,
    "record delivered again": 0.1,
    "history long": 0.5,
}
"""The highest rate of each kind of fault: per event that it can hit, or per second."""

SKEW_MAX = 0.4
"""Most seconds by which a worker's clock is wrong."""


class Faults:
    """A random subset of the kinds with random rates, drawn for each simulation ("swarm testing")."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        share = rng.choice((0.0, 0.2, 0.5, 0.5, 0.8))
        self._rates = {kind: rate * rng.random() for kind, rate in OFTEN.items() if rng.random() < share}
        self.skew = rng.choice((0.0, SKEW_MAX))
        self.hits: Counter[str] = Counter()
        self.are_on = True

    @property
    def kinds(self) -> list[str]:
        """The kinds that this simulation has."""
        return list(self._rates)

    def stop(self) -> None:
        """Stop all faults."""
        self._rates = {}
        self.are_on = False

    def strikes(self, kind: str, rng: random.Random | None = None, share: float = 1.0) -> bool:
        """Draw whether a fault happens now, and count it; `share` scales its rate."""
        rate = self._rates.get(kind, 0.0) * share
        is_struck = rate > 0 and (rng or self._rng).random() < rate
        self.hits[kind] += is_struck
        return is_struck

    def has(self, kind: str) -> bool:
        """Say whether this simulation has a kind of fault."""
        return kind in self._rates
