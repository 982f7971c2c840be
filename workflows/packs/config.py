"""A pack's heading: its state without messages, which is also what an empty pack starts from."""

from collections.abc import Mapping
from typing import Any

from shared.messages.message import SERIAL
from shared.messages.placement import PackSpread
from shared.packs.entry import COMPRESSED, STORED_SHARE, WIRE_VERSION, to_heading


class PackConfig:
    """A pack's kind, its index among the kind's packs, its limits, and how it applies signals."""

    def __init__(self, wire: Mapping[str, Any]) -> None:
        """Read the wire form of any version; raises TypeError for anything else."""
        if not isinstance(wire, dict) or wire.get("v") != WIRE_VERSION or "kind" not in wire:
            raise TypeError(f"the wire form of a pack has v={WIRE_VERSION} and a kind")
        self.kind: str = wire["kind"]
        self.lane: str = wire["lane"]
        self.index: int = wire["index"]
        self.packs: int = wire["packs"]
        self.size: int = wire["size"]
        self.within = PackSpread.of(self.kind, self.index, wire["coalesce"])
        self.payload_max_bytes: int = wire.get("payload_max_bytes", 0)
        self.bytes: int = wire.get("bytes", 0)
        self.is_compressed = bool(wire.get(COMPRESSED))
        self.stored_share: float = wire.get(STORED_SHARE, 0.0)
        self.is_started_serial = self.is_serial = bool(wire.get(SERIAL))
        """Whether runs are started so that signals are applied one by one, and whether this run does so."""

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
            is_serial=self.is_started_serial,
            is_compressed=self.is_compressed,
            stored_share=self.stored_share,
        )
