"""The entries of a pack by when they are due, as bytes while they sleep: a wake opens what is due, and nothing else."""

import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self, cast

from shared.messages.json_value import decode_json, encode_json
from shared.messages.placement import PackSpread
from shared.messages.timespan import floor_ms
from shared.packs.entry import DUE, ID, OTHERS, Entry, is_held, lane_of
from shared.packs.wake import find_wake
from shared.temporal.compression import LEVEL
from workflows.packs.summary import PackSummary

SEGMENT_ENTRIES = 128
"""About how many entries a segment has: with more, a wake opens many that are not due; with fewer, each costs more."""

SHORTEST_WAIT_MS = 16_000
"""What is due sooner shares the segments of what is due then: the pack wakes for it at once."""

SHORTEST_BITS = 10  # a segment spans at least so many powers of two milliseconds, a second

LEFT_OPEN_MAX = 32
"""So few entries stay open: to close each small chunk by itself takes longer than to start its messages."""

PARTS_MAX = 8  # of a segment; with more of them, little is compressed at a time

OPEN_BYTES = 600
"""What an open entry takes as objects, beside its payload."""

SEGMENT_BYTES = 1_000  # what a segment takes beside its parts

_HELD = (0, 0)  # the period of what is parked or paused, which no wake opens

_HASH_TYPE = "q"  # what `hash` gives: 64 bits with a sign

_Period = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries that sleep until about the same time."""

    parts: tuple[bytes, ...]
    """Each is compressed JSON: entries with a comma between two of them."""
    summary: PackSummary
    wakes: Mapping[str, float]
    """When the first of them can wait no longer, by lane; in seconds since the epoch."""
    id_hashes: "array[int]"
    """The hash of each id, as this process has it: most ids that a pack is asked for are not here."""

    @property
    def held_bytes(self) -> int:
        """About how much memory the entries take."""
        return sum(map(len, self.parts)) + len(self.id_hashes) * self.id_hashes.itemsize + SEGMENT_BYTES

    @classmethod
    def of(cls, entries: Collection[Entry], lane: str, within: PackSpread) -> Self:
        """Close entries of a pack whose own lane is `lane`."""
        lanes = {lane_of(entry, lane) for entry in entries if len(entry) > OTHERS} | {lane}
        wakes = {each: find_wake(entries, (each,), lane, within) for each in lanes}
        part = zlib.compress(encode_json(list(entries))[1:-1], LEVEL)
        id_hashes = array(_HASH_TYPE, [hash(entry[ID]) for entry in entries])
        return cls((part,), PackSummary.of(entries), wakes, id_hashes)

    def read(self) -> bytes:
        """Give the entries as JSON, with a comma between two of them."""
        return b",".join(map(zlib.decompress, self.parts))

    def open(self) -> list[Entry]:
        """Give the entries."""
        return cast("list[Entry]", decode_json(b"[%b]" % self.read()))

    def join(self, other: "Segment") -> "Segment":
        """Give the entries of both as one segment."""
        wakes = dict(self.wakes)
        for lane, wake in other.wakes.items():
            wakes[lane] = min(wake, wakes.get(lane, wake))
        summary = PackSummary.join([self.summary, other.summary])
        return Segment(self.parts + other.parts, summary, wakes, self.id_hashes + other.id_hashes)


class PackEntries:
    """Entries by id: open ones, and segments by due time, which stay bytes until one of their messages is needed.

    What is assigned must be new, or open: `get` opens the segment in which it finds an entry.
    """

    def __init__(self, entries: Iterable[Entry], lane: str) -> None:
        """Keep the entries of a pack whose own lane is `lane`, all open."""
        self._lane = lane
        self._open: dict[str, Entry] = {entry[ID]: entry for entry in entries}
        self._segments: dict[_Period, Segment] = {}
        self._closed_hashes: set[int] | None = None  # of ids in segments, and maybe of others; made when it is needed
        self.is_reading: Callable[[], bool] = bool  # while it is true, nobody changes what is read, and nothing opens

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._open) + sum(segment.summary.count for segment in self._segments.values())

    def measure_held_bytes(self, entry_bytes: float) -> int:
        """Return about how much memory the entries take, if each is `entry_bytes` long as JSON."""
        closed = sum(segment.held_bytes for segment in self._segments.values())
        return round(len(self._open) * (OPEN_BYTES + entry_bytes)) + closed

    def __contains__(self, message_id: str) -> bool:
        """Return whether the message is here."""
        return self.get(message_id) is not None

    def __getitem__(self, message_id: str) -> Entry:
        """Give the entry of a message, to read or to change; raises KeyError."""
        entry = self.get(message_id)
        if entry is None:
            raise KeyError(message_id)
        return entry

    def get(self, message_id: str) -> Entry | None:
        """Give the entry of a message, to read or to change; None if it is not here."""
        entry = self._open.get(message_id)
        if entry is not None:
            return entry

        id_hash = hash(message_id)
        if not self._may_be_closed(id_hash):
            return None

        for period, segment in self._segments.items():
            if id_hash not in segment.id_hashes:
                continue
            entries = {entry[ID]: entry for entry in segment.open()}
            if message_id not in entries:
                continue  # another id has the same hash
            if not self.is_reading():
                self._open |= entries
                del self._segments[period]
            return entries[message_id]

        return None

    def _may_be_closed(self, id_hash: int) -> bool:
        """Return whether an id with this hash may be in a segment."""
        if self.is_reading():
            return True  # one id is looked for, and nothing is kept for the next one
        if self._closed_hashes is None:
            self._closed_hashes = set[int]().union(*(segment.id_hashes for segment in self._segments.values()))
        return id_hash in self._closed_hashes

    def __setitem__(self, message_id: str, entry: Entry) -> None:
        """Keep the entry of a message that is new, or whose entry is open."""
        self._open[message_id] = entry

    def __delitem__(self, message_id: str) -> None:
        """Remove a message whose entry is open; raises KeyError."""
        del self._open[message_id]

    def discard(self, message_id: str) -> None:
        """Remove a message if its entry is open."""
        self._open.pop(message_id, None)

    def read(self) -> list[Entry]:
        """Give all entries, to read; nothing is opened."""
        entries = list(self._open.values())
        for segment in self._segments.values():
            entries += segment.open()
        return entries

    def open_all(self) -> dict[str, Entry]:
        """Open all entries, and give them to change."""
        self._open_segments(list(self._segments))
        return self._open

    def open_due(self, now: float) -> Iterable[Entry]:
        """Open what is due by `now` (seconds since the epoch), and give all that is open."""
        cutoff = floor_ms(now) / 1000
        self._open_segments([period for period, segment in self._segments.items() if segment.summary.due_at <= cutoff])
        return self._open.values()

    def _open_segments(self, periods: Iterable[_Period]) -> None:
        for period in periods:
            self._open |= {entry[ID]: entry for entry in self._segments.pop(period).open()}

    def close(self, now: float, within: PackSpread) -> None:
        """Close what is open, in segments by when it is due; `now` in seconds since the epoch, `within` is the pack's.

        The later a segment is due, the longer is the time that it spans. So what is far off needs few of them, and is
        opened again a few times on its way. The more entries there are, the shorter are all of them. Few entries stay
        open.
        """
        self._closed_hashes = None
        if self._segments and len(self._open) <= LEFT_OPEN_MAX:
            return

        fineness = (len(self) // SEGMENT_ENTRIES).bit_length()
        now_ms = floor_ms(now)
        periods: dict[_Period, list[Entry]] = {}
        for entry in self._open.values():
            periods.setdefault(_find_period(entry, now_ms, fineness), []).append(entry)

        for period, entries in periods.items():
            before = self._segments.pop(period, None)
            if before is not None and len(before.parts) >= PARTS_MAX:
                entries.extend(before.open())
                before = None
            segment = Segment.of(entries, self._lane, within)
            self._segments[period] = segment if before is None else before.join(segment)

        self._open = {}

    def encode(self) -> bytes:
        """Give the entries as JSON, without opening them."""
        parts = [segment.read() for segment in self._segments.values()]
        if self._open:
            parts.append(encode_json(list(self._open.values()))[1:-1])
        return b"[%b]" % b",".join(parts)

    def summarize(self) -> PackSummary:
        """Summarize what the entries wait for, without opening them."""
        closed = (segment.summary for segment in self._segments.values())
        return PackSummary.join([PackSummary.of(self._open.values()), *closed])

    def find_wake(self, lanes: Iterable[str], within: PackSpread) -> float:
        """Return when the first message on `lanes` can wait no longer, as `shared.packs.wake`, without opening them."""
        known = set(lanes)
        moments = [find_wake(self._open.values(), known, self._lane, within)]
        for segment in self._segments.values():
            moments += [wake for lane, wake in segment.wakes.items() if lane in known]
        return min(moments)


def _find_period(entry: Entry, now_ms: int, fineness: int) -> _Period:
    """Return when a segment's entries are due: the width of the period and which one it is, in milliseconds."""
    if len(entry) > OTHERS and is_held(entry):
        return _HELD
    if not fineness:
        return (1, 0)  # they are so few that they share a segment

    due: int = max(entry[DUE], now_ms + SHORTEST_WAIT_MS)
    width = 1 << max((due - now_ms).bit_length() - fineness, SHORTEST_BITS)
    return width, due // width
