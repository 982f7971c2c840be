"""The watchdog: detects a consumer that stopped without an error, so that the process ends and another takes over."""

from datetime import timedelta

LOOKS = 4  # consecutive calls of `look` without progress before the consumer counts as stopped


class Watchdog:
    """Says when nothing has moved for `patience` although records wait and nothing holds them back.

    A group member of aiokafka can lose its membership and fetch nothing any more without an error (its issue 1037).
    Call `look` at least `LOOKS` times per patience, with monotonic seconds: the time between two calls counts as at
    most patience / LOOKS, so that a pause of this process is not mistaken for silence of the consumer.
    """

    def __init__(self, patience: timedelta) -> None:
        self._patience = patience.total_seconds()
        self._looked_at: float | None = None
        self._still = 0.0

    def note_progress(self) -> None:
        """Note that something moved: a record received, acknowledged or committed, or partitions assigned."""
        self._still = 0.0
        self._looked_at = None

    def look(self, now: float, *, lag: int, in_flight: int, is_paused: bool, is_blocked: bool) -> str:
        """Give the error text to end the process with, "" while all is well; `lag` is up to the last stable offset."""
        if lag <= 0 or in_flight > 0 or is_paused or is_blocked:
            self.note_progress()
            return ""

        if self._looked_at is not None:
            self._still += min(now - self._looked_at, self._patience / LOOKS)

        self._looked_at = now
        if self._still < self._patience:
            return ""

        return (
            f"consumer: no record was received, acknowledged or committed for {self._still:.0f} s although {lag:,} "
            "wait and nothing holds them back, so it has stopped without an error; start this process again"
        )
