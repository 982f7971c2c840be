"""Backoff by kind: rows of a kind that can't be stored now rest for a while, and those of others go on."""

import math
import time
from collections.abc import Collection, Mapping

from shared.temporal.backoff import BACKOFF_MAX_SECONDS, backoff_seconds

REST_SECONDS_MAX = 30.0
"""Longest rest. While no worker serves the packs of a kind, attempts stay in their histories, up to a limit."""


class KindBackoff:
    """Remembers which kinds rest, and until when."""

    def __init__(self) -> None:
        self._resting: dict[str, tuple[int, float, str]] = {}
        """By kind: failures in a row, the end of its rest in monotonic seconds, and why."""

    def note(self, stored: Collection[str], left: Mapping[str, int], reason: str) -> None:
        """Note of which kinds rows were stored, and of which some were left: what has both rests shortly."""
        for kind in stored:
            self._resting.pop(kind, None)
        for kind in left:
            failures = self._resting.pop(kind, (0, 0.0, ""))[0] + 1
            rest = backoff_seconds(failures) * REST_SECONDS_MAX / BACKOFF_MAX_SECONDS
            self._resting[kind] = (failures, time.monotonic() + rest, reason)

    @property
    def kinds(self) -> list[str]:
        """The kinds that rest now."""
        now = time.monotonic()
        return [kind for kind, (_, until, _) in self._resting.items() if until > now]

    @property
    def seconds(self) -> float:
        """How long until the first of them may be tried again; infinite without one."""
        now = time.monotonic()
        return min((until - now for _, until, _ in self._resting.values() if until > now), default=math.inf)

    @property
    def reason(self) -> str:
        """Why something of the kinds that failed last could not be stored; empty without one."""
        return next((reason for _, _, reason in self._resting.values()), "")
