"""The marks of a message: the numbers of its revisions, as they were sent, acknowledged and called."""

from dataclasses import dataclass


@dataclass(slots=True)
class Marks:
    """The newest mark of a message at each stage."""

    sent: int = 0
    acknowledged: int = 0
    seen: int = 0
    version: int = -1
    """The version that was first called with the mark `seen`."""

    @property
    def is_on_its_way(self) -> bool:
        """Whether a revision was sent that no call has seen yet."""
        return self.sent > self.seen

    def send(self, mark: int) -> None:
        """Note a mark that was sent."""
        self.sent = max(self.sent, mark)

    def acknowledge(self, mark: int) -> None:
        """Note a mark that was acknowledged."""
        self.acknowledged = max(self.acknowledged, mark)

    def see(self, mark: int, version: int) -> bool:
        """Note the mark of a call; gives whether it is right: none that an earlier version had replaced."""
        if mark > self.seen:
            self.seen = mark
            self.version = version
            return True
        return mark == self.seen or not version > self.version >= 0
