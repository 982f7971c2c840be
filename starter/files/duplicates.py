"""Duplicates: which row counts when several rows of one load name one message, by the rules of `spark prepare`."""

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, get_args

from shared.messages.placement import workflow_id

if TYPE_CHECKING:
    from shared.messages.envelope import Envelope

DuplicateRule = Literal["newest", "first"]
"""The row with the newest `scheduled_at`, or the last one where that is equal or missing; or the first row."""

DUPLICATE_RULES: tuple[DuplicateRule, ...] = get_args(DuplicateRule)

_SHARES = 256
"""Hashes are counted in this number of parts, because one dict of all of them would take ten times their memory."""


class FirstRows:
    """Lets the first row of each message count; takes about 100 bytes of memory for each message."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def is_duplicate(self, number: int, envelope: "Envelope") -> bool:  # noqa: ARG002 — as with the newest rows
        """Return whether the message has been seen before; called once for each row, in order."""
        name = workflow_id(envelope.kind, envelope.id).encode()
        count = len(self._seen)
        digest = hashlib.blake2b(name, digest_size=16).digest()
        self._seen.add(digest)
        return len(self._seen) == count


class NewestRows:
    """Lets the newest row of each message count; holds only valid rows of messages that have several."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[float, int]] = {}

    def add(self, number: int, envelope: "Envelope") -> None:
        """Add a row."""
        moment = -math.inf if envelope.scheduled_at is None else envelope.scheduled_at.timestamp()
        name = workflow_id(envelope.kind, envelope.id)
        self._newest[name] = max(self._newest.get(name, (moment, number)), (moment, number))

    def is_duplicate(self, number: int, envelope: "Envelope") -> bool:
        """Return whether a newer row has been added."""
        if not self._newest:
            return False
        newest = self._newest.get(workflow_id(envelope.kind, envelope.id))
        return newest is not None and newest[1] != number


def find_repeated(hashes: Iterable[int]) -> set[int]:
    """Give the hashes that occur more than once; takes 8 bytes of memory for each hash."""
    shares = [array("q") for _ in range(_SHARES)]
    for value in hashes:
        shares[value % _SHARES].append(value)
    return {value for share in shares for value, count in Counter(share).items() if count > 1}
