"""Groups: the messages of a run by kind, with their lane, their encoding, and how often they come back."""

from dataclasses import dataclass
from datetime import timedelta

from activities import Pack

PACK_SIZE = 5000  # never reached: the kind keeps its packs
GROWING_SIZE = 300
"""Of the group with most messages, which begins with a few packs and gets four times as many under faults."""

COALESCE_SECONDS = 15.0
TOLERANCE_SECONDS = 20.0
"""Tolerance of packed messages; solo messages have none."""

TIMEOUT_SECONDS = 25.0
"""Most seconds of a call, after which a silent site counts as a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Messages of one kind; their ids are their numbers."""

    kind: str
    lane: str
    back_after: tuple[float, float] = (0.0, 0.0)
    """Bounds of a message's random delay, in seconds; with (0, 0) it is done after its first cycle."""
    packs: int = 0
    """Number of packs at first; 0 means that each message has a workflow of its own."""
    size: int = PACK_SIZE

    @property
    def name(self) -> str:
        """Encoding and lane, for a person."""
        encoding = "packed" if self.packs else "solo"
        return f"{encoding} {self.lane}"

    @property
    def encoding(self) -> Pack | None:
        """The layout that the group's handler declares; None for solo messages."""
        if not self.packs:
            return None
        return Pack(packs=self.packs, size=self.size, coalesce=timedelta(seconds=COALESCE_SECONDS))


SOLO = Group(kind="chaos-solo", lane="short", back_after=(20.0, 40.0))
MEDIUM = Group(kind="chaos-medium", lane="medium", back_after=(20.0, 40.0))
PACKED = Group(kind="chaos-packed", lane="short", back_after=(20.0, 60.0), packs=8, size=GROWING_SIZE)
PACKED_MEDIUM = Group(kind="chaos-packed-medium", lane="medium", back_after=(20.0, 60.0), packs=8)
ONCE = Group(kind="chaos-once", lane="short")
RECORDS = Group(kind="chaos-record", lane="short", back_after=(20.0, 40.0))
PACKED_RECORDS = Group(kind="chaos-packed-record", lane="short", back_after=(20.0, 60.0), packs=8)
SPARK = Group(kind="chaos-spark", lane="short", back_after=(20.0, 60.0), packs=8)

GROUPS = (SOLO, MEDIUM, PACKED, PACKED_MEDIUM, ONCE, RECORDS, PACKED_RECORDS, SPARK)
"""All groups; the ledger names a group by its index in this tuple."""

NUMBER_OF = {group.kind: number for number, group in enumerate(GROUPS)}
BACK_AFTER_MAX = max(group.back_after[1] for group in GROUPS)
