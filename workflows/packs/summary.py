"""The summary of what a pack waits for, and its finished messages, which it remembers for a while."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Self

from shared.packs.entry import DUE, EARLY, OTHERS, Entry, is_held, is_parked, measure

FINISHED_KEPT_SECONDS = 24 * 3600.0  # a day, like Temporal's usual retention


@dataclass(frozen=True, slots=True)
class PackSummary:
    """What a pack waits for: moments in seconds since the epoch, infinite when there is nothing to wait for."""

    due_at: float
    earliest_at: float
    asleep: int
    held: int
    parked: int
    wake_at: float = math.inf
    running: int = 0

    @property
    def count(self) -> int:
        """How many entries it summarizes."""
        return self.asleep + self.held

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        """Summarize entries, all but when the pack has to wake for them."""
        plain = list[Entry]()
        others = list[Entry]()
        for entry in entries:
            (plain if len(entry) <= OTHERS else others).append(entry)

        free = [entry for entry in others if not is_held(entry)]
        held = len(others) - len(free)
        parked = sum(map(is_parked, others)) if held else 0

        waiting = plain + free
        due = min([entry[DUE] for entry in waiting], default=math.inf) / 1000
        earliest = min([entry[DUE] - entry[EARLY] for entry in waiting], default=math.inf) / 1000
        return cls(due, earliest, asleep=len(waiting), held=held, parked=parked)

    @classmethod
    def join(cls, parts: Collection[Self]) -> Self:
        """Summarize what all the parts do."""
        return cls(
            due_at=min((part.due_at for part in parts), default=math.inf),
            earliest_at=min((part.earliest_at for part in parts), default=math.inf),
            asleep=sum(part.asleep for part in parts),
            held=sum(part.held for part in parts),
            parked=sum(part.parked for part in parts),
        )


class FinishedMessages(dict[str, Entry]):
    """Finished messages by id, the oldest first, remembered for a while so that they are not started twice."""

    def forget(self, message_id: str) -> int:
        """Forget one message; return its bytes."""
        return measure(self.pop(message_id))

    def forget_old(self, now: float, kept_max: int, excess: int) -> int:
        """Forget what is old, beyond `kept_max`, or among the `excess` bytes of the pack; return the bytes freed."""
        freed = 0
        before = (now - FINISHED_KEPT_SECONDS) * 1000
        while self:
            oldest = next(iter(self))
            is_young = self[oldest][DUE] >= before
            if is_young and len(self) <= kept_max and freed >= excess:
                break
            freed += self.forget(oldest)

        return freed
