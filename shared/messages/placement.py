"""Placement: the one place that knows which workflow, on which task queue, a (kind, id) lives in."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from shared.lanes import task_queue
from shared.messages.encoding import Pack

MESSAGE_WORKFLOW = "message"
"""Workflow type of the solo encoding; histories outlive module paths, so the name is fixed here."""

PACK_WORKFLOW = "pack"
"""Workflow type of the pack encoding."""

HAS_PARKED = "has_parked"
"""`State` of a pack that holds at least one parked message."""

LAYOUT_WORKFLOW = "pack-layout"
"""Workflow type that keeps how many packs a kind has."""

LAYOUT_MEMO = "layout"
"""The memo field of that workflow; a memo can be read while no worker runs."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a kind is packed: kept with the kind on the server from its first message on, the same for every process."""

    kind: str
    lane: str
    """Lane of the packs themselves; a message that asks for another one has its handler run there."""
    packs: int
    size: int
    coalesce: float
    first_packs: int = 0
    """The number it began with: what an older handler declares, is no contradiction."""

    @classmethod
    def of(cls, kind: str, lane: str, pack: Pack) -> "Layout":
        """Lay a kind out as its handler declares."""
        return cls(kind, lane, pack.packs, pack.size, pack.coalesce.total_seconds(), pack.packs)

    @classmethod
    def load(cls, kind: str, memo: Mapping[str, Any]) -> "Layout":
        """Read it from the memo it is kept in."""
        return cls(kind, memo["lane"], memo["packs"], memo["size"], memo["coalesce"], memo["first_packs"])

    def dump(self) -> dict[str, Any]:
        """Give what is kept in the memo."""
        return {
            "lane": self.lane,
            "packs": self.packs,
            "size": self.size,
            "coalesce": self.coalesce,
            "first_packs": self.first_packs,
        }


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a message lives."""

    workflow_id: str
    task_queue: str


def workflow_id(kind: str, message_id: str) -> str:
    """Name a message: the id of its workflow when it has one of its own.

    A kind never holds a colon, so the name splits back unambiguously.
    """
    return f"{kind}:{message_id}"


def identity_of(workflow_id: str) -> tuple[str, str]:
    """Split a message's name back into (kind, id)."""
    kind, _, message_id = workflow_id.partition(":")
    return kind, message_id


def pack_workflow_id(kind: str, index: int) -> str:
    """Name a pack; a kind never holds a tilde, so it is no message's name."""
    return f"{kind}~{index}"


def layout_workflow_id(kind: str) -> str:
    """Name the workflow that keeps a kind's layout."""
    return f"{kind}~"


def place(kind: str, message_id: str, lane: str, prefix: str, layout: Layout | None = None) -> Placement:
    """Say where a message lives: in a workflow of its own on its lane's task queue, or in one of the kind's packs."""
    if layout is None:
        return Placement(workflow_id(kind, message_id), task_queue(prefix, lane))
    return Placement(pack_workflow_id(kind, pack_index(message_id, layout.packs)), task_queue(prefix, layout.lane))


def pack_index(message_id: str, packs: int) -> int:
    """Say which of `packs` packs an id belongs to: the same on every machine and Python version.

    Jump consistent hash (Lamping & Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm", 2014): when the number
    grows from n to m, the share (m - n) / m of all ids moves, and only to the packs that are new.
    """
    key = int.from_bytes(hashlib.blake2b(message_id.encode(), digest_size=8).digest(), "big")
    found, step = 0, 0
    while step < packs:
        found = step
        key = (key * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        step = int((found + 1) * (2147483648 / ((key >> 33) + 1)))
    return found


@dataclass(frozen=True, slots=True)
class PackSpread:
    """Where within their tolerance the messages of one pack are due: all at one place, so that a wake does for many.

    `share` is the pack's own, from 0 up to 1, and differs from pack to pack: that is what spreads a herd. What a pack
    may wait for more to fall due, `coalesce` seconds, is left of the tolerance behind the place.
    """

    share: float
    coalesce: float

    @classmethod
    def of(cls, kind: str, index: int, coalesce: float) -> Self:
        """Give a pack's own."""
        return cls(unit_hash(pack_workflow_id(kind, index)), coalesce)

    def __call__(self, tolerance: float) -> float:
        """Give how long after the moment asked for a message is due; all in seconds."""
        return self.share * max(tolerance - self.coalesce, 0.0)

    @property
    def patience(self) -> float:
        """Which part of what it may wait the pack does wait: half of it at least, so that packs don't wake all at once."""
        return (1 + self.share) / 2


def unit_hash(text: str) -> float:
    """Map text to [0, 1), the same on every machine and Python version (BLAKE2b, first 53 bits of 8 bytes)."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53  # a float holds 53 bits: more of them could round up to 1
