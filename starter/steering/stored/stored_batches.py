"""Stored batches: results of local batches in a history, applied to a pack's state as the pack does it on replay.

A result does not say which messages the batch held. They are those that were due when it began, as long as nothing else
had come by then that the pack applied only afterwards.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from shared.lanes import LANES
from shared.messages.signal_reading import is_moment
from shared.packs.entry import ID, OTHERS, Entry, is_ended
from workflows.packs.batch import Batch
from workflows.packs.state import PackState

LOCAL_LANES = [lane for lane, limits in LANES.items() if limits.heartbeat_timeout is None]


class StoredBatches:
    """Applies the batches of a run to its state, in their order; the caller tells of what else is in the history."""

    def __init__(self, state: PackState, *, has_suspects: bool) -> None:
        """Runs of older code, and those with suspects of a lost batch, make their batches by other rules."""
        self._state = state
        self._may_apply = state.is_started_serial and not has_suspects and len(LOCAL_LANES) == 1
        self._fresh_signals: list[float] = []
        self._quiet_since = 0.0
        """From when on all signals so far have surely been applied before a batch begins; seconds since the epoch."""
        self._task_ended_at = 0.0
        self._is_ending = self._has_rung = False
        self.is_unsettled = False
        """A signal came before messages that a batch had ended were gone: it may have kept them alive."""

    def note_signal(self, moment: float) -> None:
        """Note that a signal has come, in seconds since the epoch."""
        # what came during a task stands behind its end, and is given to the next one
        self._fresh_signals.append(max(moment, self._task_ended_at))
        self.is_unsettled |= self._is_ending

    def note_timer(self) -> None:
        """Note that a timer has fired: between a batch that ends messages and their end there is no other."""
        self._has_rung = True

    def note_task_end(self, moment: float) -> None:
        """Note that a workflow task was completed, in seconds since the epoch."""
        self._task_ended_at = moment
        self._is_ending &= not self._has_rung
        if self._fresh_signals:
            # the first signal of a task is applied before a batch begins; others may have to wait for the batch's end
            self._quiet_since = moment if len(self._fresh_signals) > 1 else self._fresh_signals[0]
            self._fresh_signals.clear()

    def apply(self, answer: Any) -> float | None:
        """Apply a batch's result; returns when it ended, or None, and changes no message, where that can't be known."""
        if not self._may_apply or not isinstance(answer, dict):
            return None
        named = cast("Mapping[str, Any]", answer)
        begun_at, ended_at, changes = cast("Iterable[Any]", map(named.get, ("begun_at", "ended_at", "entries")))
        if not (is_moment(begun_at) and is_moment(ended_at) and isinstance(changes, list)):
            return None
        found = cast("list[Entry | None]", changes)
        if self._fresh_signals or begun_at <= self._quiet_since:
            return None
        batch = self._state.rebuild_batch(Batch(0, *LOCAL_LANES, ids=(), entries=[], until=None), begun_at)
        if not _are_of(found, batch.ids):
            self._state.undo_batch(batch)
            return None
        self._state.reach(begun_at)
        now = max(self._state.replay_time, ended_at)
        self._state.apply_local(batch, found, now)
        self._state.finish(batch, found, now)
        self._is_ending, self._has_rung = any(change is not None and is_ended(change) for change in found), False
        return ended_at


def _are_of(changes: list[Entry | None], ids: tuple[str, ...]) -> bool:
    """Return whether changes may be those of these messages; only whole entries name theirs."""
    return len(changes) == len(ids) and all(
        change is None or len(change) < OTHERS or change[ID] == message_id
        for change, message_id in zip(changes, ids, strict=True)
    )
