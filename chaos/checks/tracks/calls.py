"""The calls of a message: which version came last, and what may come after it."""

from dataclasses import dataclass

from chaos.ledger import Entry
from chaos.load.groups import TIMEOUT_SECONDS

CALL_SLACK_SECONDS = 5.0
"""Most seconds that a call may last beyond its timeout, on a busy machine."""


@dataclass(slots=True)
class Calls:
    """What is known of the calls of one message."""

    newest: int = -1
    """The highest version that was called."""
    failed: int = -1
    """The version whose last call failed, so that its next call is a retry."""
    last: Entry | None = None
    """The begin of its last call."""
    open_until: float = 0.0
    """When a call must have ended that has begun and not ended yet."""
    may_skip: bool = False
    """Whether it was revised since the newest call: the revision may have replaced a version before its call."""

    def is_gap(self, version: int) -> bool:
        """Whether a version is called although the one before it never was."""
        return version > self.newest + 1 and not self.may_skip

    def begin(self, entry: Entry) -> None:
        """Note that a call has begun."""
        self.last = entry
        self.open_until = entry.at + TIMEOUT_SECONDS + CALL_SLACK_SECONDS

    def advance(self, version: int) -> None:
        """Note that a version is called for the first time."""
        self.newest = version
        self.may_skip = False

    def end(self, entry: Entry) -> None:
        """Note that a call has ended; one of a process that was stopped may not be the last that began."""
        if self.last is not None and self.last.pid == entry.pid:
            self.open_until = 0.0
