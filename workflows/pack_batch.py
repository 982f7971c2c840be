"""What a pack hands out: the messages of a batch, those whose handlers are at work, and what it waits for."""

from dataclasses import dataclass
from typing import Any

from shared.message import MessageState
from shared.pack_entry import DUE, Entry, priority_of

BATCH_MAX = 500
"""Most messages in one batch: with outcomes of 100 bytes its answer is far below what a server warns of."""
BATCH_BYTES_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages whose handlers are to be called together; `rows` are what the batch activity gets, in that order."""

    number: int
    lane: str
    ids: tuple[str, ...]
    rows: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Running:
    """A message whose handler is at work in a batch; `size` is what its entry took."""

    batch: int
    state: MessageState
    size: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a pack is waiting for: moments in seconds since the epoch, infinite where there is nothing to wait for."""

    wake_at: float
    due_at: float
    asleep: int
    held: int
    parked: int
    running: int


def urgency(entry: Entry) -> tuple[int, int]:
    """Order what is due: higher priority first, then what is due longest."""
    return priority_of(entry), entry[DUE]
