"""The life of a message, by what was sent and acknowledged: whether it is to come back, and since when it is not."""

from dataclasses import dataclass


@dataclass(slots=True)
class Life:
    """Where a message stands between its start and its end; moments are seconds since the epoch, 0 for none."""

    sent_at: float = 0.0
    acknowledged_at: float = 0.0
    is_stop_sent: bool = False
    stopped_at: float = 0.0
    """When its stop was acknowledged."""
    is_done: bool = False
    is_paused: bool = False
    count: int = 1
    """How often it was started: after a tombstone, a record starts it again at version 0."""
    is_restarted: bool = False
    """Whether it was stopped and sent again, and version 0 was not called since."""

    @property
    def is_at_rest(self) -> bool:
        """Whether it need not come back: it is done, stopped or paused."""
        return self.is_done or self.is_stop_sent or self.is_paused

    @property
    def may_be_anew(self) -> bool:
        """Whether a record may have started it again, with versions from 0 on."""
        return self.count > 1 or self.is_restarted or self.is_stop_sent

    def send(self, at: float) -> None:
        """Note that it was sent."""
        self.sent_at = self.sent_at or at

    def acknowledge(self, at: float) -> None:
        """Note that its start was acknowledged, or a revision, which also starts a stopped message."""
        self.acknowledged_at = self.acknowledged_at or at

    def acknowledge_stop(self, at: float) -> None:
        """Note that its stop was acknowledged, unless it was sent again since."""
        self.stopped_at = at if self.is_stop_sent else 0.0

    def send_again(self) -> None:
        """Note that a record was sent after its stop, which restarts it."""
        self.is_stop_sent = False
        self.stopped_at = 0.0
        self.is_restarted = True

    def begin_anew(self) -> None:
        """Note the first call since it was restarted."""
        self.is_restarted = False
        self.count += 1
