"""Chunks: new messages gathered by pack, none lost, none held back for ever."""

import json
import time

import pytest

from shared.messages.json_value import encode_json
from shared.messages.placement import Layout, pack_index
from shared.packs.entry import CHUNK_BYTES_MAX, Entry
from starter.starting import chunks
from starter.starting.chunks import Chunk, ChunkBuffer

ROOM = 1000


def layout(kind: str = "feed", packs: int = 1, size: int = ROOM) -> Layout:
    """Lay a kind out."""
    return Layout(kind, "short", packs, size, 0.0)


def entry(message_id: str, payload: str = "") -> Entry:
    """Make the entry of a new message."""
    return [message_id, 1_795_291_200_500, 0, 0, 0, payload, []]


def entries_of(chunk: Chunk[int]) -> list[Entry]:
    """Read a chunk as its pack does."""
    return json.loads(b"[" + chunk.body + b"]")


def test_a_chunk_is_full_by_bytes() -> None:
    """A signal stays far below the size that the server warns of: the entry that reaches the limit is the last."""
    chunk = Chunk[int](layout(), 0)
    while not chunk.is_full:
        chunk.add(0, entry(f"m{len(chunk.tags)}", "x" * 999))

    last = len(encode_json(entries_of(chunk)[-1]))
    assert CHUNK_BYTES_MAX <= len(chunk.body) <= CHUNK_BYTES_MAX + last


@pytest.mark.parametrize(("size", "payload"), [(ROOM, "x" * 3000), (ROOM, "ä" * 3000), (7, ""), (ROOM, "")])
def test_encoded_entries_fill_the_same_chunks(size: int, payload: str) -> None:
    """Adding many at once stops at the very entry at which adding one by one would."""
    entries = [entry(f"m{n}", payload) for n in range(120)]
    one_by_one = [Chunk[int](layout(size=size), 0)]
    at_once = [Chunk[int](layout(size=size), 0)]
    for n, each in enumerate(entries):
        if one_by_one[-1].is_full:
            one_by_one.append(Chunk(layout(size=size), 0))
        one_by_one[-1].add(n, each)
    left = list(range(len(entries)))
    while left:
        if at_once[-1].is_full:
            at_once.append(Chunk(layout(size=size), 0))
        part = left[:50]
        named = [entries[n][0] for n in part]
        left = left[at_once[-1].extend(part, named, [encode_json(entries[n]).decode() for n in part]) :]

    assert [chunk.tags for chunk in at_once] == [chunk.tags for chunk in one_by_one]
    assert [chunk.ids for chunk in at_once] == [chunk.ids for chunk in one_by_one]
    assert [chunk.body for chunk in at_once] == [chunk.body for chunk in one_by_one]


def test_a_chunk_is_full_by_the_size_of_a_pack() -> None:
    """A pack that begins with a chunk never begins overfull."""
    gathering = ChunkBuffer[int](ROOM)
    given = [gathering.add(layout(size=3), 0, n, entry(f"m{n}")) for n in range(7)]

    assert [chunk and chunk.tags for chunk in given] == [None, None, [0, 1, 2], None, None, [3, 4, 5], None]
    assert len(gathering) == 1


def test_the_chunk_that_has_waited_longest_goes_when_there_is_no_more_room() -> None:
    """However many packs a stream is spread over, no more is held back than there is room for."""
    gathering = ChunkBuffer[str](4)
    for message_id in ("a", "b", "c"):
        assert gathering.add(layout("many"), 0, message_id, entry(message_id)) is None
    chunk = gathering.add(layout("few"), 0, "d", entry("d"))

    assert chunk is not None
    assert (chunk.layout.kind, chunk.tags, len(gathering)) == ("many", ["a", "b", "c"], 1)


def test_large_payloads_fill_a_buffer_before_its_room_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded in bytes too, whatever the messages weigh."""
    monkeypatch.setattr(chunks, "ROOM_BYTES", 20_000)
    gathering = ChunkBuffer[str](ROOM)
    given = [gathering.add(layout(f"kind-{n}"), 0, f"m{n}", entry(f"m{n}", "x" * 4000)) for n in range(10)]

    assert [chunk and chunk.tags for chunk in given] == [None] * 4 + [[f"m{n}"] for n in range(6)]


def test_messages_go_to_their_own_packs_in_the_order_of_the_stream() -> None:
    """Every message is in exactly one chunk, that of its pack; tags stay beside their entries."""
    gathering = ChunkBuffer[int](ROOM)
    packed = layout(packs=7)
    for n in range(100):
        assert gathering.add(packed, pack_index(f"m{n}", 7), n, entry(f"m{n}")) is None
    taken = list(gathering.take_all())

    assert sorted(tag for chunk in taken for tag in chunk.tags) == list(range(100))
    for chunk in taken:
        assert chunk.ids == [e[0] for e in entries_of(chunk)] == [f"m{tag}" for tag in sorted(chunk.tags)]
        assert {pack_index(message_id, 7) for message_id in chunk.ids} == {chunk.index}
    assert len(gathering) == 0


def test_what_fills_up_while_the_rest_is_taken_is_given_once() -> None:
    """The stream may go on between two chunks of what is left."""
    gathering = ChunkBuffer[str](ROOM)
    small = layout("small", size=2)
    gathering.add(small, 0, "b", entry("b"))
    gathering.add(layout("last"), 0, "a", entry("a"))
    left = gathering.take_all()
    taken = next(left).tags
    meanwhile = gathering.add(small, 0, "c", entry("c"))

    assert meanwhile is not None
    assert (taken, meanwhile.tags, list(left), len(gathering)) == (["a"], ["b", "c"], [], 0)


def test_what_has_been_gathered_for_long_is_taken_alone() -> None:
    """By when a chunk was begun, whatever came to it later."""
    gathering = ChunkBuffer[str](ROOM)
    gathering.add(layout("old"), 0, "a", entry("a"))
    between = time.monotonic()
    gathering.add(layout("new"), 0, "b", entry("b"))
    gathering.add(layout("old"), 0, "c", entry("c"))

    assert [chunk.tags for chunk in gathering.take_old(between)] == [["a", "c"]]
    assert (len(gathering), [chunk.tags for chunk in gathering.take_old(between)]) == (1, [])


def test_ids_are_told_apart_whatever_they_hold() -> None:
    """They lie in one piece, a line each, and other characters than ours end lines, too."""
    chunk = Chunk[int](layout(), 0)
    ids = ["a", "b\u2028c", " ", "☃"]
    nothing = chunk.ids
    for message_id in ids:
        chunk.add(0, entry(message_id))

    assert (nothing, chunk.ids) == ([], ids)


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ({}, True),
        ({"session": "other"}, False),
        ({"kind": "other"}, False),
        ({"index": 1}, False),
        ({"ids": ("a",)}, False),
        ({"ids": ("b", "a")}, False),
    ],
)
def test_a_token_names_a_chunk_within_a_session(changed: dict[str, str], is_same: bool) -> None:  # noqa: FBT001 — a column of the table
    """A retry bears the token of the first try, anything else another one."""

    def name(session: str = "s", kind: str = "feed", index: int = 0, ids: tuple[str, ...] = ("a", "b")) -> str:
        chunk = Chunk[int](layout(kind), index)
        for message_id in ids:
            chunk.add(0, entry(message_id))
        return chunk.token(session)

    assert (name(**changed) == name()) is is_same  # pyright: ignore[reportArgumentType] — the table holds one of each type
