"""Ended: the messages of a pack that have finished, remembered for a while so that they are not started twice."""

from shared.packs.entry import DUE, STATE_BYTES_MAX, Entry, measure

FINISHED_KEPT_SECONDS = 24 * 3600.0
"""How long: Temporal's usual retention."""


class FinishedMessages(dict[str, Entry]):
    """By id, the oldest first."""

    def forget(self, message_id: str) -> int:
        """Forget one; gives how many bytes it had."""
        return measure(self.pop(message_id))

    def forget_old(self, now: float, most: int, held_bytes: int) -> int:
        """Forget what is old, more than `most`, or too much where the pack holds so many bytes; gives how many it had."""
        freed, before = 0, (now - FINISHED_KEPT_SECONDS) * 1000
        while self:
            oldest = next(iter(self))
            is_young = self[oldest][DUE] >= before
            if is_young and len(self) <= most and held_bytes - freed <= STATE_BYTES_MAX:
                break
            freed += self.forget(oldest)
        return freed
