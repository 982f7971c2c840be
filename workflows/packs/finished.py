"""Finished messages of a pack, remembered for a while so that they are not started twice."""

from shared.packs.entry import DUE, STATE_BYTES_MAX, Entry, measure

FINISHED_KEPT_SECONDS = 24 * 3600.0
"""A day, like Temporal's usual retention."""


class FinishedMessages(dict[str, Entry]):
    """Finished messages by id, the oldest first."""

    def forget(self, message_id: str) -> int:
        """Forget one message; return its bytes."""
        return measure(self.pop(message_id))

    def forget_old(self, now: float, most: int, held_bytes: int) -> int:
        """Forget what is old, beyond `most`, or too large for a pack of `held_bytes`; return the bytes freed."""
        freed, before = 0, (now - FINISHED_KEPT_SECONDS) * 1000
        while self:
            oldest = next(iter(self))
            is_young = self[oldest][DUE] >= before
            if is_young and len(self) <= most and held_bytes - freed <= STATE_BYTES_MAX:
                break
            freed += self.forget(oldest)
        return freed
