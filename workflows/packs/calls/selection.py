"""Selection of a pack's next batch: which of the messages that are due go into it, and in which order."""

from collections.abc import Collection

from shared.packs.entry import ID, Entry, lane_of
from workflows.packs.calls.batch import Batch, BatchLimit, fill_batch, find_lane, sort_in_turn, to_ids
from workflows.packs.calls.run_now_queue import RunNowQueue
from workflows.packs.calls.suspects import Suspects


class BatchSelection:
    """Fills the batches of a pack: higher priority first, tenants in turn, then longest due.

    A message whose last batch was lost with others in it may have caused the loss: see `Suspects`.
    """

    def __init__(self, lane: str, suspects: Suspects) -> None:
        """Fill batches of a pack whose own lane is `lane`."""
        self.suspects = suspects
        self.run_now = RunNowQueue()
        self.limit = BatchLimit()
        self._lane = lane
        self._filled = 0

    def fill(self, token: str, due: list[Entry], held_bytes: int) -> Batch | None:
        """Make a batch of one lane from what is due in a pack of `held_bytes`; None if nothing is."""
        if self.suspects:
            due = self._part_suspects(due)
        if not due:
            return None

        self._filled += 1
        lane = find_lane(due, self._lane, self.run_now.urgency)
        ordered = sort_in_turn((e for e in due if lane_of(e, self._lane) == lane), self.run_now.urgency)
        entries = fill_batch(ordered, held_bytes, self.limit.max)
        return Batch(token, lane, to_ids(entries), entries, left=list(range(len(entries))))

    def forget(self, message_id: str) -> None:
        """Forget a message that has ended."""
        self.suspects.clear_of(message_id)
        self.run_now.forget([message_id])

    def _part_suspects(self, due: Collection[Entry]) -> list[Entry]:
        """Keep suspects, or all others: in turn, so that neither waits for ever."""
        sound = [e for e in due if e[ID] not in self.suspects]
        doubted = self.suspects.pick(sorted(due, key=self.run_now.urgency), self._lane)
        return (doubted or sound) if self._filled % 2 else (sound or doubted)
