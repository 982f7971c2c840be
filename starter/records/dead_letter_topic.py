"""The dead-letter box: the letters of a dead-letter topic with their states, and the verbs replay and drop."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from shared.errors import GiveUp
from shared.kafka.safe_producer import (
    OutgoingRecord,
    SafeProducer,
    Topics,
    list_topics,
    open_admin,
    open_reader,
)
from starter.records.dead_letters import (
    HANDLED,
    HANDLED_OF,
    SOURCE_TOPIC,
    SUFFIX,
    DeadLetter,
    NotADeadLetter,
    read_dead_letter,
)
from starter.records.record import Record
from starter.records.topic_reader import find_ends, read_until

TOGETHER = 200
"""Letters held in memory at once while they are replayed or dropped."""

LetterPosition = tuple[int, int]
"""Partition and offset in the dead-letter topic."""


class LetterState(StrEnum):
    """What has become of a dead letter."""

    WAITING = "waiting"
    REPLAYED = "replayed"
    DROPPED = "dropped"
    COPY = "copy"
    """The same failure again, left by a crash between writing and committing; only the first letter counts."""


class TopicMissing(GiveUp):
    """The requested topic, or the one that a letter came from, does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterSelection:
    """Which letters are selected; None does not restrict, offsets are the source's and include both ends.

    Times are the timestamps that producers gave to the records: at `since` or later, and before `before`.
    """

    places: frozenset[LetterPosition] | None = None
    error_class: str | None = None
    key: bytes | None = None
    partition: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    since: datetime | None = None
    before: datetime | None = None

    def selects(self, letter: DeadLetter) -> bool:
        """Whether a letter is selected."""
        at = letter.record.timestamp
        return (
            (self.places is None or _place(letter.record) in self.places)
            and (self.error_class is None or letter.error_class == self.error_class)
            and (self.key is None or letter.record.key == self.key)
            and (self.partition is None or letter.partition == self.partition)
            and (self.from_offset is None or letter.offset >= self.from_offset)
            and (self.to_offset is None or letter.offset <= self.to_offset)
            and (self.since is None or at >= self.since.timestamp() * 1000)
            and (self.before is None or at < self.before.timestamp() * 1000)
        )


@contextlib.asynccontextmanager
async def open_box(options: Mapping[str, Any], source: str) -> AsyncGenerator["DeadLetterTopic"]:
    """Open the dead letters of a topic, an empty box if it has none. Raises TopicMissing and BrokerError."""
    from shared.kafka.topic_ids import read_topic_ids  # noqa: PLC0415 — needs aiokafka, which not everybody installs

    async with open_admin(options) as admin:
        topics = await list_topics(admin)
        ids = await read_topic_ids(admin, [source]) if source in topics else {}
    if source not in topics and source + SUFFIX not in topics:
        raise TopicMissing(f"TOPIC: there is no topic {source!r}, nor dead letters of it; correct the name")
    producer = SafeProducer(options)
    try:
        async with open_reader(options) as consumer:
            yield DeadLetterTopic(source + SUFFIX, topics, ids, consumer, producer)
    finally:
        await producer.stop()


class DeadLetterTopic:
    """One dead-letter topic; a record in it marks each letter that was replayed or dropped, for all readers.

    A letter whose mark a crash prevented is replayed again, without effect: the replayed record names its letter.
    """

    def __init__(
        self, topic: str, topics: Topics, ids: Mapping[str, str], consumer: Any, producer: SafeProducer
    ) -> None:
        self.topic = topic
        self.foreign = 0
        """Records that the last `find` read and that are no dead letters."""
        self._topics = topics
        self._ids = ids
        self._consumer = consumer
        self._producer = producer

    async def find(
        self, selection: LetterSelection, *, is_all: bool = False
    ) -> AsyncGenerator[tuple[DeadLetter, LetterState]]:
        """Give the selected letters, by partition and offset; only those that wait, or all.

        The topic is read twice, first for the letters' states: memory grows with their number, not with their size.
        """
        ends = await find_ends(self._consumer, self.topic, self._topics.get(self.topic, 0))
        states = await self._read_states(ends)
        async for record in read_until(self._consumer, ends):
            state = states.get(_place(record))
            if state is None or not (is_all or state is LetterState.WAITING):
                continue
            letter = read_dead_letter(record)
            if selection.selects(letter):
                yield letter, state

    async def handle(self, verb: str, letters: AsyncIterator[DeadLetter]) -> AsyncIterator[int]:
        """Replay or drop letters, TOGETHER at a time; gives after each lot how many are done."""
        act = self.replay if verb == "replay" else self.drop
        held = list[DeadLetter]()
        done = 0

        async for letter in letters:
            held.append(letter)
            if len(held) == TOGETHER:
                await act(held)
                done = done + len(held)
                held = []
                yield done

        await act(held)
        yield done + len(held)

    async def replay(self, letters: Sequence[DeadLetter]) -> None:
        """Send letters to their source topics again and mark them; raises BrokerError and TopicMissing.

        Letters sent before an error are marked, too. Replayed records get the present time: with their old timestamps,
        the source topic's retention could delete them before anybody has read them.
        """
        if lost := next((letter for letter in letters if letter.topic not in self._topics), None):
            gone = f"dead letter {lost.position}: its topic {lost.topic!r} is gone"
            raise TopicMissing(f"{gone}; make it again, or drop the letter")
        if old := next((letter for letter in letters if self._is_of_older_topic(letter)), None):
            gone = f"dead letter {old.position}: its topic {old.topic!r} was deleted and made again"
            flaw = "so nobody could tell whether a replay is older than what messages have seen"
            raise TopicMissing(f"{gone}, {flaw}; send the record anew, and drop the letter")

        sending = (self._producer.send(each.topic, each.partition, _to_replay(each)) for each in letters)
        results = await asyncio.gather(*sending, return_exceptions=True)
        await self._mark([x for x, result in zip(letters, results, strict=True) if result is None], "replayed")
        _raise_first(results)

    def _is_of_older_topic(self, letter: DeadLetter) -> bool:
        known = self._ids.get(letter.topic, "")
        own = letter.topic_id
        return bool(known and own) and known != own

    async def drop(self, letters: Sequence[DeadLetter]) -> None:
        """Mark letters as dropped; their records stay in the topic. Raises BrokerError."""
        await self._mark(letters, "dropped")

    async def _mark(self, letters: Sequence[DeadLetter], verb: str) -> None:
        sending = (self._producer.send(self.topic, each.record.partition, _to_mark(each, verb)) for each in letters)
        _raise_first(await asyncio.gather(*sending, return_exceptions=True))

    async def _read_states(self, ends: dict[Any, int]) -> dict[LetterPosition, LetterState]:
        states: dict[LetterPosition, LetterState] = {}
        firsts: dict[tuple[str, int], LetterPosition] = {}
        originals: dict[LetterPosition, LetterPosition] = {}

        self.foreign = 0
        async for record in read_until(self._consumer, ends):
            if (mark := _read_mark(record)) is not None:
                place, state = mark
                if (first := originals.get(place)) is not None:
                    states[first] = state
                continue

            try:
                letter = read_dead_letter(record)
            except NotADeadLetter:
                self.foreign += 1
                continue

            place = _place(record)
            first = originals[place] = firsts.setdefault(letter.identity, place)
            states[place] = LetterState.WAITING if first == place else LetterState.COPY

        return states


def _to_replay(letter: DeadLetter) -> OutgoingRecord:
    return OutgoingRecord(letter.record.key, letter.record.value, letter.replay_headers)


def _to_mark(letter: DeadLetter, verb: str) -> OutgoingRecord:
    return OutgoingRecord(None, b"", ((HANDLED, verb.encode()), (HANDLED_OF, letter.position.encode())))


def _place(record: Record) -> LetterPosition:
    return record.partition, record.offset


def _read_mark(record: Record) -> tuple[LetterPosition, LetterState] | None:
    headers = dict(record.headers)
    verb = headers.get(HANDLED)
    place = (headers.get(HANDLED_OF) or b"").split(b"/")
    # the original record of a dead letter may have headers of these names
    if verb not in (b"replayed", b"dropped") or SOURCE_TOPIC in headers:
        return None
    if len(place) != 2 or not all(part.isdigit() for part in place):
        return None
    return (int(place[0]), int(place[1])), LetterState(verb.decode())


def _raise_first(results: Sequence[BaseException | None]) -> None:
    for result in results:
        if result is not None:
            raise result
