"""A pack's heading and limits: what it is, how many messages and bytes it may hold, and what makes room."""

from collections.abc import Mapping
from typing import Any

from shared.messages.json_value import find_size_flaw
from shared.messages.message import MessageState, Outcome
from shared.messages.placement import CROWDED_SHARE, PackSpread
from shared.messages.signals import Revise
from shared.packs.entry import (
    ASSUMED_SHARE,
    EXPANDED_BYTES_MAX,
    ID,
    STATE_BYTES_MAX,
    STORED_SHARE,
    WIRE_VERSION,
    measure,
    to_heading,
)
from shared.temporal.compression import measure_share
from workflows.packs.summary import FinishedMessages

CROWDED_MIN = 8
"""A pack with fewer messages is never crowded, or a `size` of 1 would have a pack for each message."""

MOVING_SHARE = 3
"""What moves from another pack is taken beyond the limit, for it has left there already; but the state must still be
one that the server stores. More packs hold less each, so no pack that grows comes near this."""


class PackConfig:
    """A pack's kind, its index among the kind's packs, its limits, and the spread of its due times."""

    def __init__(self, wire: Mapping[str, Any]) -> None:
        """Read the wire form; raises TypeError for anything else."""
        if not isinstance(wire, dict) or wire.get("v") != WIRE_VERSION or "kind" not in wire:
            raise TypeError(f"the wire form of a pack has v={WIRE_VERSION} and a kind")

        self.kind: str = wire["kind"]
        self.lane: str = wire["lane"]
        self.index: int = wire["index"]
        self.packs: int = wire["packs"]
        self.size: int = wire["size"]
        self.within = PackSpread.of(self.kind, self.index, wire["coalesce"])
        self.payload_max_bytes: int = wire.get("payload_max_bytes", 0)
        self.stored_share: float = wire.get(STORED_SHARE, 0.0)

    def heading(self) -> dict[str, Any]:
        """Give the wire form without messages."""
        return to_heading(
            self.kind,
            self.lane,
            index=self.index,
            packs=self.packs,
            size=self.size,
            coalesce=self.within.coalesce,
            payload_max_bytes=self.payload_max_bytes,
            stored_share=self.stored_share,
        )


class PackLimits:
    """Counts the bytes of a pack; its finished messages, kept so that they are not started twice, go first."""

    def __init__(self, config: PackConfig, wire: Mapping[str, Any]) -> None:
        self._config = config
        self.bytes: int = wire.get("bytes", 0)
        self.bytes_max = _expand(config.stored_share or ASSUMED_SHARE)
        """The most bytes of JSON: the limit of the stored size, divided by the last compression ratio."""
        self.moving_bytes_max = MOVING_SHARE * _expand(config.stored_share or 1.0)
        """The same for messages that come from another pack, where they are no longer: they may exceed the limit."""
        self.ended = FinishedMessages((entry[ID], entry) for entry in wire.get("ended", ()))

    def measure_crowding(self, count: int) -> float:
        """Return how much more than it should this pack holds with `count` messages: 1 or more if it is crowded."""
        by_count = count / max(self._config.size * CROWDED_SHARE, CROWDED_MIN)
        by_bytes = self.bytes / (self.bytes_max / 2)
        return round(max(by_count, by_bytes), 2)

    def explain_no_room(self) -> str:
        """Say that something finds no room in the pack, and what to do; begins after its subject."""
        config = self._config
        held = f"which holds {self.bytes:,} of {self.bytes_max:,} bytes"
        advice = f"spread the kind over more packs: dormice repack {config.kind} --packs {2 * config.packs}"
        return f"finds no room in pack {config.index} of kind {config.kind!r}, {held}; {advice}"

    def note_stored_share(self, entries: bytes) -> None:
        """Measure how far the entries' JSON can be compressed, if that decides what the next run has room for."""
        if self.bytes > STATE_BYTES_MAX // 2:
            self._config.stored_share = measure_share(entries)

    def can_grow(self, old: Any, new: Any) -> bool:
        """Return whether one value finds room in the place of another; finished messages are forgotten for it."""
        growth = measure(new) - measure(old)
        return growth <= 0 or self.make_room(growth)

    def bound(self, state: MessageState, outcome: Outcome) -> Outcome:
        """Reject a payload for which the pack has no room; the message is parked with its old payload."""
        if not outcome.is_payload_changed or state.is_revised or self.can_grow(state.payload, outcome.payload):
            return outcome
        return Outcome("reject", reason=f"its new payload {self.explain_no_room()}")

    def find_payload_flaw(self, state: MessageState, signal: Revise) -> str:
        """Say why a revision's payload can't be taken, after its subject; empty if it can."""
        if flaw := find_size_flaw(signal.payload, self._config.payload_max_bytes):
            return flaw
        return "" if self.can_grow(state.payload, signal.payload) else self.explain_no_room()

    def make_room(self, growth: int) -> bool:
        """Forget finished messages until `growth` bytes fit or none is left; return whether they fit."""
        while self.bytes + growth > self.bytes_max and self.ended:
            self.bytes -= self.ended.forget(next(iter(self.ended)))
        return self.bytes + growth <= self.bytes_max

    def forget_old(self, now: float) -> None:
        """Forget finished messages that are old, or too many, or for which there is no room."""
        self.bytes -= self.ended.forget_old(now, self._config.size, self.bytes - self.bytes_max)


def _expand(stored_share: float) -> int:
    """Return how many bytes of JSON come to the largest state that is stored, at this compression ratio."""
    return min(round(STATE_BYTES_MAX / stored_share), EXPANDED_BYTES_MAX)
