"""Placement: the one module that knows in which workflow a (kind, id) lives."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from shared.messages.encoding import PACKS_MAX, Pack

MESSAGE_WORKFLOW = "message"  # workflow type of the solo encoding; histories outlive module paths, so it is fixed here
PACK_WORKFLOW = "pack"  # workflow type of the pack encoding
HAS_PARKED = "has_parked"  # `State` of a pack that holds at least one parked message
LAYOUT_WORKFLOW = "pack-layout"  # workflow type that keeps how many packs a kind has
LAYOUT_MEMO = "layout"  # the memo field of that workflow; a memo can be read while no worker runs
GROW = "grow"  # its signal: the kind should have so many packs
SPREAD = "spread"  # the signal of a pack: its kind is about to have so many packs


@dataclass(frozen=True, slots=True)
class Layout:
    """How a kind is packed: stored on the server from its first message on, the same for every process."""

    kind: str
    lane: str  # lane of the packs themselves; a message on another lane has its handler run there
    packs: int
    size: int
    coalesce: float

    @classmethod
    def of(cls, kind: str, lane: str, pack: Pack) -> "Layout":
        """Make the layout that a kind's handler declares."""
        return cls(kind, lane, pack.packs, pack.size, pack.coalesce.total_seconds())

    @classmethod
    def load(cls, kind: str, memo: Mapping[str, Any]) -> "Layout":
        """Read the layout from the memo that holds it."""
        return cls(kind, *(memo[f.name] for f in fields(cls)[1:]))

    @property
    def sizes(self) -> dict[str, Any]:
        """What each pack is told of the layout."""
        return {"packs": self.packs, "size": self.size, "coalesce": self.coalesce}

    def dump(self) -> dict[str, Any]:
        """Give the content of the memo."""
        return {"lane": self.lane, **self.sizes}


def workflow_id(kind: str, message_id: str) -> str:
    """Name a message, and its workflow if it has one of its own; a kind holds no colon, so the name splits again."""
    return f"{kind}:{message_id}"


def identity_of(workflow_id: str) -> tuple[str, str]:
    """Split a message's name back into (kind, id)."""
    kind, _, message_id = workflow_id.partition(":")
    return kind, message_id


def pack_workflow_id(kind: str, index: int) -> str:
    """Name a pack; a kind never holds a tilde, so it is no message's name."""
    return f"{kind}~{index}"


def kind_of_packs(workflow_id: str) -> str:
    """Give the kind of a pack, or of the workflow that keeps a layout, by its name."""
    return workflow_id.rpartition("~")[0]


def pack_of(workflow_id: str) -> tuple[str, int]:
    """Split a pack's name back into (kind, index)."""
    kind, _, index = workflow_id.rpartition("~")
    return kind, int(index)


def layout_workflow_id(kind: str) -> str:
    """Name the workflow that keeps a kind's layout."""
    return f"{kind}~"


def pack_index(message_id: str, packs: int) -> int:
    """Return which of `packs` packs an id belongs to: the same on every machine and Python version.

    Linear hashing (Litwin, "Linear Hashing: A New Tool for File and Table Addressing", 1980): as many low bits of the
    hash as number the packs, one bit less where that pack does not exist yet. So when a kind gets its next pack, about
    half of the messages of one pack move, see `split_from`, and no others.
    """
    bits = packs.bit_length()
    hashed = int.from_bytes(hashlib.blake2b(message_id.encode(), digest_size=8).digest(), "big")
    index = hashed & ((1 << bits) - 1)

    return index if index < packs else index - (1 << (bits - 1))


def split_from(index: int) -> int:
    """Return the pack whose messages are shared with pack `index` (1 or more) when that one is added."""
    return index - (1 << (index.bit_length() - 1))


def pack_share(index: int, packs: int) -> float:
    """Return which part of all ids belongs to one of `packs` packs: one that has been split holds half of another."""
    whole = 1 << (packs.bit_length() - 1)
    is_split = index >= whole or index + whole < packs
    return 0.5 / whole if is_split else 1.0 / whole


def find_next_count(packs: int, wanted: int, maximum: int) -> int:
    """Return how many packs a kind has after its next step to `wanted`, which adds at most `most`.

    A step ends where their number doubles: until then each pack is split once at most, and none that the step adds.
    """
    return min(wanted, 1 << packs.bit_length(), packs + maximum)


CROWDED_SHARE = 0.75
"""The part of its `size` from which on a pack's kind should have more packs: there is time for that until it is full,
and packs that are split next hold twice as much as those that were."""


def count_packs(messages: int, size: int) -> int:
    """Return how many packs of `size` hold so many messages uncrowded: a power of two, so that all hold about as many.

    At most PACKS_MAX.
    """
    needed = math.ceil(messages / (size * CROWDED_SHARE))
    return min(1 << max(needed - 1, 0).bit_length(), PACKS_MAX)


WAIT_MAX = 0.9
"""The part of an allowed wait that a pack uses at most; what is left is for the queue in which its task then waits."""


@dataclass(frozen=True, slots=True)
class PackSpread:
    """Where in their tolerance a pack's messages are due: all at the same share, so that one wake serves many.

    `share`, from 0 up to 1, differs from pack to pack, so that packs don't wake together. `coalesce` seconds, which a
    pack may wait for more messages to fall due, are kept free at the end of the tolerance.
    """

    share: float
    coalesce: float

    @classmethod
    def of(cls, kind: str, index: int, coalesce: float) -> Self:
        """Give the spread of one pack."""
        return cls(unit_hash(pack_workflow_id(kind, index)), coalesce)

    def __call__(self, tolerance: float) -> float:
        """Give how long after the requested moment a message is due; all in seconds."""
        return self.share * max(tolerance - self.coalesce, 0.0)

    @property
    def patience(self) -> float:
        """The part of its allowed wait that a pack uses: at least half, by `share`, so that packs wake apart."""
        return (1 + self.share) / 2

    def limit(self, wait: int) -> int:
        """Give the wait to be stored for one that is allowed (milliseconds), so that the pack uses WAIT_MAX of it.

        Below 0 it is 0. Who makes entries calls this, not the pack: when it wakes follows from what its history holds,
        whatever this number is in the code that replays it.
        """
        if wait <= 0:
            return 0
        patience = self.patience
        return wait if patience <= WAIT_MAX else int(wait * (WAIT_MAX / patience))


MEAN_PATIENCE = 0.75
"""The part of its allowed wait that a pack uses on average, see `PackSpread.patience`."""


def count_in_wake(messages: float, tolerance: float, interval: float) -> float:
    """Return how many of a pack's messages, back every `interval` seconds, meet in a wake that may wait `tolerance`."""
    return messages * MEAN_PATIENCE * tolerance / interval


ENOUGH_IN_WAKE = 50
"""Messages in a wake from which on its own cost counts little."""

TOLERANCE_SHARE_MAX = 0.25
"""The largest tolerance that is advised, as a part of the time after which messages come back."""


def advise_tolerance(messages: float, interval: float) -> float:
    """Return the tolerance (seconds) with which enough of a pack's messages, back every `interval`, meet in a wake."""
    enough = ENOUGH_IN_WAKE / count_in_wake(messages, interval, interval) * interval
    return min(TOLERANCE_SHARE_MAX * interval, enough)


def unit_hash(text: str) -> float:
    """Map text to [0, 1), the same on every machine and Python version (BLAKE2b, first 53 bits of 8 bytes)."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53  # a float holds 53 bits: more of them could round up to 1
