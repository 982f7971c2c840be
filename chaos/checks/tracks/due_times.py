"""The due times of a message: when each version may be called, and when it was due as it was called."""

from dataclasses import dataclass, field

from chaos.ledger import Entry

CLOCK_SECONDS = 0.002
"""Rounding error: moments are stored in milliseconds, and the ledger stores a delay with seven digits."""

REMEMBERED = 8
"""Number of newest versions whose calls may be repeated: a worker stopped for longer has lost its task long ago."""


@dataclass(slots=True)
class DueTimes:
    """The due times of the newest versions of a message; moments are seconds since the epoch."""

    tolerance: float
    """Most seconds by which it may be due later than was asked for."""
    not_before: dict[int, float] = field(default_factory=dict[int, float])
    """The earliest moment at which each version may be called."""
    called: dict[tuple[int, int], tuple[float, float]] = field(
        default_factory=dict[tuple[int, int], tuple[float, float]]
    )
    """Due time of each (version, attempt) that was called, and when it was called first."""
    asked: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    """The moments for which calls of the version before asked, by version."""

    def ask(self, version: int, at: float) -> None:
        """Note that a call of the version before has asked for a moment."""
        self.asked.setdefault(version, []).append(at)

    def allow(self, version: int, at: float) -> None:
        """Let a version be called from a moment on; of two such moments the earlier one counts."""
        self.not_before[version] = min(self.not_before.get(version, at), at)

    def note_call(self, entry: Entry) -> None:
        """Note when a call was due, unless an attempt of that number was called before."""
        self.called.setdefault((entry.version, entry.attempt), (entry.due, entry.at))

    def is_early(self, entry: Entry) -> bool:
        """Whether a call has begun before it was due, or before its version may be called."""
        return entry.at < self.find_earliest(entry) - CLOCK_SECONDS

    def find_earliest(self, entry: Entry) -> float:
        """Give the earliest moment at which a call may begin."""
        return max(self.not_before.get(entry.version, 0.0), entry.due)

    def find_moved(self, entry: Entry, *, is_retry: bool) -> float | None:
        """Give the due time that a repeated call had at first, if its new one is another without a reason.

        A message of a lost batch is due again when the loss is noticed: after its first call began, and at no moment
        for which a call of the version before has asked. One whose call has failed is due anew in any case, and a batch
        that was lost before that has used up the number of an attempt, which then comes twice.
        """
        before = self.called.get((entry.version, entry.attempt))
        if before is None:
            return None

        due, first_call_at = before
        if abs(due - entry.due) <= CLOCK_SECONDS:
            return None

        is_due_anew = entry.due >= first_call_at and (is_retry or not self._is_asked_for(entry))
        return None if is_due_anew else due

    def _is_asked_for(self, entry: Entry) -> bool:
        latest = CLOCK_SECONDS + self.tolerance
        return any(at - CLOCK_SECONDS <= entry.due <= at + latest for at in self.asked.get(entry.version, ()))

    def restart(self) -> None:
        """Forget the calls of the life before."""
        self.called.clear()
        self.asked.clear()

    def forget(self, newest: int) -> None:
        """Forget what is of old versions, once there is much."""
        if len(self.called) <= 2 * REMEMBERED:
            return

        oldest = newest - REMEMBERED
        self.called = {key: due for key, due in self.called.items() if key[0] >= oldest}
        self.not_before = {version: at for version, at in self.not_before.items() if version >= oldest}
        self.asked = {version: moments for version, moments in self.asked.items() if version >= oldest}
