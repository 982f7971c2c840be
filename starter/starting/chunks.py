"""Chunks: new messages of packed kinds, gathered by pack, so that one call to the server starts many."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic

from shared.messages.json_value import encode_json
from shared.messages.placement import Layout
from shared.packs.entry import CHUNK_BYTES_MAX, ID, Entry
from starter.starting.receipts import Tag
from starter.starting.start_request import REQUEST_NAMESPACE


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

    def token(self, session: str) -> str:
        """Give the id of this chunk, the same for each retry within a session."""
        return uuid.uuid5(REQUEST_NAMESPACE, f"{session}|{self.layout.kind}~{self.index}|{self.names.decode()}").hex


class ChunkBuffer(Generic[Tag]):
    """Gathers messages until the chunk of a pack is full, or `room` messages are held: then the oldest chunk goes."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._chunks: dict[tuple[str, int], Chunk[Tag]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, layout: Layout, index: int, tag: Tag, entry: Entry) -> Chunk[Tag] | None:
        """Add a message of a pack; returns the chunk that must be sent now, if there is one."""
        key = (layout.kind, index)
        if (chunk := self._chunks.get(key)) is None:
            chunk = self._chunks[key] = Chunk(layout, index)
        chunk.add(tag, entry)
        self._count += 1
        if chunk.is_full:
            return self._take(key)
        if self._count >= self._room:
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
        return chunk
