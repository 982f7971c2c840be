"""Chunks: new messages of packed kinds, gathered by pack, so that one call to the server starts many."""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic

from shared.messages.json_value import decode_json, encode_json
from shared.messages.placement import Layout
from shared.packs.entry import CHUNK_BYTES_MAX, DUE, ID, Entry, is_ended, lane_of
from starter.starting.receipts import Tag
from starter.starting.start_request import REQUEST_NAMESPACE

ROOM_BYTES = 100_000_000
"""Limit of the entries that a buffer holds: large payloads fill it before `room` does."""


@dataclass(slots=True)
class Chunk(Generic[Tag]):
    """Messages that go to one pack in one call."""

    layout: Layout
    index: int
    begun_at: float = field(default_factory=time.monotonic)
    tags: list[Tag] = field(default_factory=list)
    names: bytearray = field(default_factory=bytearray)
    """The ids, one a line: in one buffer they take a quarter of the memory."""
    body: bytearray = field(default_factory=bytearray)
    """The entries as JSON, in one buffer too, because orjson leaves 4 KB unused behind each result."""
    due: dict[str, list[int]] | None = field(default_factory=dict[str, list[int]])
    """By lane, when the messages are due, for the pack's first counts; None when entries came as JSON."""

    @property
    def is_full(self) -> bool:
        """The signal has no room for more, or a pack that begins with this chunk would be full."""
        return len(self.body) >= CHUNK_BYTES_MAX or len(self.tags) >= self.layout.size

    @property
    def ids(self) -> list[str]:
        """The messages' ids, in order."""
        return self.names.decode().split("\n") if self.tags else []  # no id holds a control character

    def add(self, tag: Tag, entry: Entry) -> None:
        """Add a message."""
        if self.tags:
            self.body += b","
            self.names += b"\n"
        self.body += encode_json(entry)
        self.names += entry[ID].encode()
        self.tags.append(tag)
        if self.due is not None and not is_ended(entry):
            self.due.setdefault(lane_of(entry, self.layout.lane), []).append(entry[DUE])

    def extend(self, tags: Sequence[Tag], ids: Sequence[str], entries: Sequence[str]) -> int:
        """Add messages whose entries are JSON already, in order, until the chunk is full; gives how many fit in."""
        count = min(len(ids), max(self.layout.size - len(self.tags), 0))
        room = CHUNK_BYTES_MAX - len(self.body)

        encoded = ",".join(entries[:count]).encode()
        if len(encoded) > room:
            count = _count_until(room, entries[:count])
            encoded = ",".join(entries[:count]).encode()

        if count:
            self.due = None
            separated = bool(self.tags)
            self.body += b"," * separated + encoded
            self.names += b"\n" * separated + "\n".join(ids[:count]).encode()
            self.tags += tags[:count]

        return count

    def pick(self, positions: Iterable[int]) -> "Chunk[Tag]":
        """Give a chunk of some of the messages."""
        picked = Chunk[Tag](self.layout, self.index, self.begun_at)
        entries: list[Entry] = decode_json(b"[" + self.body + b"]")
        for position in positions:
            picked.add(self.tags[position], entries[position])
        return picked

    def token(self, session: str) -> str:
        """Give the id of this chunk, the same for each retry within a session."""
        return uuid.uuid5(REQUEST_NAMESPACE, f"{session}|{self.layout.kind}~{self.index}|{self.names.decode()}").hex


def _count_until(room: int, entries: Sequence[str]) -> int:
    """Count the entries up to the one that takes the last of a room in bytes."""
    taken = 0
    for count, entry in enumerate(entries):
        if taken >= room:
            return count
        taken += len(entry.encode()) + 1
    return len(entries)


class ChunkBuffer(Generic[Tag]):
    """Gathers messages until the chunk of a pack is full; the oldest goes at `room` messages, or at ROOM_BYTES."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._chunks: dict[tuple[str, int], Chunk[Tag]] = {}
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def add(self, layout: Layout, index: int, tag: Tag, entry: Entry) -> Chunk[Tag] | None:
        """Add a message of a pack; returns the chunk that must be sent now, if there is one."""
        key = (layout.kind, index)
        if (chunk := self._chunks.get(key)) is None:
            chunk = self._chunks[key] = Chunk(layout, index)

        before = len(chunk.body)
        chunk.add(tag, entry)
        self._count += 1
        self._bytes += len(chunk.body) - before
        if chunk.is_full:
            return self._take(key)
        if self._count >= self._room or self._bytes >= ROOM_BYTES:
            return self._take(next(iter(self._chunks)))
        return None

    def take_old(self, begun_by: float) -> Iterator[Chunk[Tag]]:
        """Yield the chunks that were begun by a monotonic time, oldest first."""
        while self._chunks and self._chunks[key := next(iter(self._chunks))].begun_at <= begun_by:
            yield self._take(key)

    def take_all(self) -> Iterator[Chunk[Tag]]:
        """Yield all chunks buffered now; those that fill up and are sent meanwhile are skipped.

        Packs that were sent a chunk last come first: a worker may still have them in its cache.
        """
        for key in reversed(list(self._chunks)):
            if key in self._chunks:
                yield self._take(key)

    def _take(self, key: tuple[str, int]) -> Chunk[Tag]:
        chunk = self._chunks.pop(key)
        self._count -= len(chunk.tags)
        self._bytes -= len(chunk.body)
        return chunk
