"""The window: how many records a bridge holds, which follows from how many it has got done lately."""

from collections import deque

from starter.bridge.intake import IntakeLimits

SECONDS_AHEAD = 10
"""Of work at the present pace, less the easy one: enough for packs to get many messages in one call, and done within a drain."""

PACE_SECONDS = 5
"""The pace is that of so many seconds, because packs answer for many messages at once and then for none, or of the last
one if that was better: after a pause it would take as long to open."""

EASY_PACE = 500
"""Records a second up to which the fewest under way are plenty, as where each of them starts a workflow of its own."""

FEWEST, MOST = 1_000, 100_000
"""Under way at once. The least keeps a slow server busy, the most bounds the memory."""

WAITING = 5_000
"""At most so many wait behind them, read already: each takes several times the memory of one that is under way."""


class Window:
    """Opens with the pace and closes with it: a server that does little is handed little, however much waits in Kafka.

    So memory follows from the pace and not from the lag. While the window itself is what bounds the pace, it soon opens.
    """

    def __init__(self) -> None:
        """Begin with the least."""
        self._marks = deque([0], maxlen=PACE_SECONDS + 1)

    def follow(self, done: int) -> IntakeLimits:
        """Give the limits for the next second; `done` counts all records that were ever done with. Call it once a second."""
        self._marks.append(done)
        pace = max(done - self._marks[-2], (done - self._marks[0]) / (len(self._marks) - 1))
        return limits_of(min(max(round(SECONDS_AHEAD * (pace - EASY_PACE)), FEWEST), MOST))


def limits_of(in_flight: int) -> IntakeLimits:
    """Give limits for so many records under way, and a few more that wait."""
    share = in_flight // 2  # a partition that is slow leaves the others some room
    waiting = min(in_flight, WAITING)
    return IntakeLimits(
        in_flight_per_partition=share,
        in_flight=in_flight,
        partition_high=share + waiting,
        partition_low=share + waiting // 2,
        total_high=in_flight + waiting,
        total_low=in_flight + waiting // 2,
    )
