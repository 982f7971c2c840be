"""The rate of pulls: how many workflows may be woken ahead of time now, by what their lane has borne so far."""

from datetime import datetime

from activities.idle.capacity import Slots

# factors of the rate: per heartbeat until something had to wait, per heartbeat from then on, and for each such wait
FASTER = 1.5
STEADIER = 1.15
SLOWER = 0.7
RATE_MAX = 300.0  # most wakes in a second; all wakes between two looks must fit one page of the index


class PullRate:
    """Wakes a second: first the slots free beyond the reserve, more while slots stay free, fewer when they don't."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._growth = FASTER
        self._saved = 0.0
        self._spent = 0
        self._reported_at: datetime | None = None

    def follow(self, slots: Slots, reserve: float) -> None:
        """Adjust the rate to a heartbeat; a repeated one changes nothing."""
        if slots.reported_at == self._reported_at:
            return

        spent = self._spent
        self._spent = 0
        self._reported_at = slots.reported_at

        spare = slots.free - reserve * slots.all
        if spare <= 0:
            self.retreat()
        elif not self.rate:
            self.rate = spare
        elif spent >= self.rate and spare >= 0.5 * (1.0 - reserve) * slots.all:
            self.rate = min(max(spare, self.rate * self._growth), RATE_MAX)

    def retreat(self) -> None:
        """Lower the rate, because something had to wait."""
        self.rate = max(1.0, self.rate * SLOWER)
        self._saved = 0.0
        self._growth = STEADIER

    def take(self, seconds: float, wanted: int) -> int:
        """Give how many of those wanted may be woken now, `seconds` after the last call."""
        self._saved = min(self._saved + self.rate * seconds, max(self.rate, 1.0))
        count = min(int(self._saved), wanted)
        self._saved -= count
        self._spent += count
        return count
