"""Suspects: messages whose last batch was lost in every try, one of which may break whatever worker runs it."""

from collections.abc import Iterable, Mapping

from shared.packs.entry import ID, Entry, lane_of

SUSPECTS_SPLIT = 8
"""Into how many batches a lost batch is split. Three losses find one message among 500, while one by one the others
would wait for hundreds of batches."""


class Suspects(dict[str, int]):
    """Messages that only go with other suspects, each with the most messages that its next batch may have."""

    def __init__(self, ids: Iterable[str], batches: Mapping[str, int]) -> None:
        """`batches` has what is more than one: older code knows none of it, and runs each suspect alone."""
        super().__init__((message_id, batches.get(message_id, 1)) for message_id in ids)

    def batches(self) -> dict[str, int]:
        """Give what is more than one message a batch."""
        return {message_id: maximum for message_id, maximum in sorted(self.items()) if maximum > 1}

    def add(self, message_id: str, maximum: int) -> None:
        """Suspect a message; its next batch has at most `most` messages, and always itself."""
        self[message_id] = max(1, maximum)

    def clear_of(self, message_id: str) -> None:
        """Suspect a message no longer, if it was suspected."""
        self.pop(message_id, None)

    def pick(self, due: Iterable[Entry], default_lane: str) -> list[Entry]:
        """Pick the first suspect of those due, and others of its lane that may go with it."""
        found = [entry for entry in due if entry[ID] in self]
        if not found:
            return []
        maximum = self[found[0][ID]]
        lane = lane_of(found[0], default_lane)
        return [e for e in found if self[e[ID]] >= maximum and lane_of(e, default_lane) == lane][:maximum]
