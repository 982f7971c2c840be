"""Encodings: how the messages of a kind become workflows, as its handler declares it."""

from dataclasses import dataclass
from datetime import timedelta

from shared.errors import InvalidHandler

PACKS_MAX = 1_000_000
SIZE_MAX = 5_000  # largest `size` of a pack; what limits it first is `shared.packs.entry.STATE_BYTES_MAX`


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Keep many messages of a kind in one workflow, for a fiftieth of the cost of one workflow for each.

    A kind gets more packs by itself as its messages become more, so none of this has to be given. `packs` is how many
    there are at least: those who start millions at once spare the kind its growth with it. `size` is about how many
    messages a pack holds at most, and `coalesce` how long it waits for more to fall due before it wakes, never beyond
    a message's own tolerance. Raises InvalidHandler when a value is unusable.
    """

    packs: int = 64
    size: int = 1000
    coalesce: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        if not 1 <= self.packs <= PACKS_MAX:
            raise InvalidHandler(f"Pack(packs={self.packs}): give a number from 1 to {PACKS_MAX:,}")
        if not 1 <= self.size <= SIZE_MAX:
            raise InvalidHandler(f"Pack(size={self.size}): give a number from 1 to {SIZE_MAX:,}")
        if self.coalesce < timedelta(0):
            raise InvalidHandler(f"Pack(coalesce={self.coalesce}): give no time or more")
