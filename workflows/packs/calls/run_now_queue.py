"""Run-now queue: the order in which due messages of a pack begin, where somebody has asked for another one."""

from collections.abc import Iterable

from shared.messages.message import MessageState
from shared.messages.signals import PullForward, RunNow, Signal, UnreadableSignal
from shared.packs.entry import DUE, ID, Entry, priority_of

FIRST = 0


class RunNowQueue(dict[str, int]):
    """Messages that somebody has asked for, each with its place among the due messages of its priority."""

    def note_signal(self, signal: Signal | UnreadableSignal, before: MessageState, after: MessageState) -> None:
        """Note what a signal has made of its message's place: first, or none but that of its due time."""
        if isinstance(signal, RunNow):
            self[after.id] = FIRST
            return

        is_moved = (after.due_at, after.asked_due_at) != (before.due_at, before.asked_due_at)
        if is_moved:
            self.pop(after.id, None)
        if is_moved and isinstance(signal, PullForward):
            # what runs ahead of time goes after everything that is due
            self[after.id] = round(before.due_at * 1000)

    def forget(self, message_ids: Iterable[str]) -> None:
        """Forget messages that begin or have ended."""
        for message_id in message_ids:
            self.pop(message_id, None)

    def urgency(self, entry: Entry) -> tuple[int, int, str]:
        """Give the sort key of a due message: higher priority first, then what was asked for, then longest due."""
        place: int = self[entry[ID]] if entry[ID] in self else entry[DUE]
        return priority_of(entry), place, entry[ID]
