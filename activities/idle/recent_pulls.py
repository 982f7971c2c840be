"""Remembers who was woken lately, because the index lags, and packs that have not yet done what they were woken for."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from activities.idle.due_index import SleepingWorkflow

REMEMBERED_SECONDS = 30.0  # longest delay of the index, in which no workflow is woken twice for one due time
WAITED_FOR_SECONDS = 10.0  # after that a pack that does nothing, for whatever reason, no longer holds the others back


@dataclass(slots=True)
class _Pull:
    indexed: datetime  # due time in the index when it was woken
    due_at: datetime  # due time of its next message then, as far as known
    until: datetime | None  # for a pack: what was due until then has been woken
    woken_at: float
    is_done: bool


class RecentPulls:
    """Workflows woken lately; the index lags, and never learns of a due time that moved by less than a minute."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Pull] = {}

    def note(self, sleeping: SleepingWorkflow, until: datetime | None) -> None:
        """Note a woken workflow; `until` is for a pack: what was due until then has been woken."""
        due_at = self.due_of(sleeping) or sleeping.due_at
        self._by_id.pop(sleeping.workflow_id, None)
        self._by_id[sleeping.workflow_id] = _Pull(sleeping.due_at, due_at, until, time.monotonic(), until is None)

    def note_done(self, sleeping: SleepingWorkflow) -> None:
        """Note that a pack has begun all that it was woken for."""
        self._by_id[sleeping.workflow_id].is_done = True

    def find_undone(self, found: Iterable[SleepingWorkflow], now: float) -> list[SleepingWorkflow]:
        """Give the packs that the index still shows as before their pull, and that may not have begun it."""
        return [each for each in found if (pull := self._pull_of(each)) and self._is_waited_for(pull, now)]

    def due_of(self, sleeping: SleepingWorkflow) -> datetime | None:
        """Return when a sleeping workflow's next message is due, as far as known; None for one that was just woken."""
        pull = self._pull_of(sleeping)
        return pull.until if pull else sleeping.due_at

    def first_undone(self, undone: Iterable[SleepingWorkflow]) -> datetime | None:
        """Return the first due time of what packs were woken for and have not begun; None if there is nothing."""
        return min((self._by_id[each.workflow_id].due_at for each in undone), default=None)

    def forget_old(self, now: float) -> int:
        """Forget what the index must know by now; gives how many are left."""
        for workflow_id, pull in list(self._by_id.items()):
            if now - pull.woken_at < REMEMBERED_SECONDS:
                break
            del self._by_id[workflow_id]
        return len(self._by_id)

    def _pull_of(self, sleeping: SleepingWorkflow) -> _Pull | None:
        pull = self._by_id.get(sleeping.workflow_id)
        return pull if pull and pull.indexed == sleeping.due_at else None

    @staticmethod
    def _is_waited_for(pull: _Pull, now: float) -> bool:
        return not pull.is_done and now - pull.woken_at < WAITED_FOR_SECONDS
