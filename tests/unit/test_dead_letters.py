"""A dead letter is the record it was made from, and says why it is dead and how often it has failed."""

from datetime import UTC, datetime

import pytest

from shared.kafka.safe_producer import BrokerError, Headers
from starter.records.dead_letter_topic import LetterSelection
from starter.records.dead_letters import (
    ATTEMPTS,
    ORIGIN,
    REPLAY_OF,
    SUFFIX,
    NotADeadLetter,
    find_origin,
    read_dead_letter,
    to_dead_letter,
)
from starter.records.record import Record

RECORD = Record("orders", 3, 42, 1_700_000_000_000, b"k", b"{", (("trace", b"1"), ("empty", None), ("trace", b"2")))
DEAD = "value: is no JSON; send one JSON document"


def lay(record: Record, offset: int = 7, error_class: str = "NotJson", message: str = DEAD) -> Record:
    """Give a record's dead letter as the broker would."""
    headers = to_dead_letter(record, error_class, message)
    return record._replace(topic=record.topic + SUFFIX, offset=offset, headers=headers)


def replay(letter: Record, offset: int) -> Record:
    """Give the record that a dead letter is replayed as."""
    headers = read_dead_letter(letter).replay_headers
    return letter._replace(topic=letter.topic.removesuffix(SUFFIX), offset=offset, headers=headers)


def test_the_headers_are_those_of_kafka_connect_behind_the_records_own() -> None:
    """Other tools find the reason where they look for it."""
    assert to_dead_letter(RECORD, "NotJson", DEAD) == (
        ("trace", b"1"),
        ("empty", None),
        ("trace", b"2"),
        ("__connect.errors.topic", b"orders"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"42"),
        ("__connect.errors.connector.name", b"dormice"),
        ("__connect.errors.task.id", b"0"),
        ("__connect.errors.stage", b"decode"),
        ("__connect.errors.class.name", b"NotJson"),
        ("__connect.errors.exception.class.name", b"NotJson"),
        ("__connect.errors.exception.message", b"value: is no JSON; send one JSON document"),
        ("dormice.attempts", b"1"),
    )


def test_what_is_written_is_read() -> None:
    """All of it."""
    letter = read_dead_letter(lay(RECORD))

    assert (letter.topic, letter.partition, letter.offset) == ("orders", 3, 42)
    assert (letter.error_class, letter.message, letter.stage) == ("NotJson", DEAD, "decode")
    assert (letter.headers, letter.attempts, letter.replay_of) == (RECORD.headers, 1, "")
    assert letter.position == "3/7"


OWN: list[Headers] = [
    (),
    (("a", None),),
    (("__connect.errors.topic", b"theirs"), ("__connect.errors.offset", b"x"), ("dormice.attempts", b"9")),
    (("dormice.handled", b"dropped"), ("dormice.handled-of", b"0/1")),
]


@pytest.mark.parametrize("own", OWN, ids=len)
def test_own_headers_survive_any_number_of_failures(own: Headers) -> None:
    """Also those with names that we use, as a record has that came from a dead-letter topic itself."""
    record = RECORD._replace(headers=own)
    for attempts in range(1, 4):
        letter = lay(record, offset=attempts)
        read = read_dead_letter(letter)
        record = replay(letter, offset=100 + attempts)
        assert find_origin(record) == (RECORD.source, RECORD.offset)

        assert (read.headers, read.attempts) == (own, attempts)
        assert record.headers == (
            *own,
            (REPLAY_OF, f"orders.dead-letters/3/{attempts}".encode()),
            (ORIGIN, f"{RECORD.source}/{RECORD.offset}".encode()),
            (ATTEMPTS, str(attempts).encode()),
        )


def test_a_header_that_others_add_behind_ours_is_kept() -> None:
    """As a tracing producer does, to the dead letter or to its replay."""
    letter = lay(RECORD)
    letter = letter._replace(headers=(*letter.headers, ("traceparent", b"t")))
    again = replay(letter, 100)
    again = again._replace(headers=(*again.headers, ("baggage", b"b")))

    assert read_dead_letter(letter).headers == (*RECORD.headers, ("traceparent", b"t"))
    assert read_dead_letter(lay(again)).headers == (*RECORD.headers, ("traceparent", b"t"), ("baggage", b"b"))


def test_a_topic_that_was_made_again_has_letters_of_its_own() -> None:
    """The same record at the same offset is another failure; a replay by somebody without ids counts in this topic."""
    first, second = (read_dead_letter(lay(RECORD._replace(topic_id=topic_id))) for topic_id in ("one", "two"))
    by_connect = replay(lay(RECORD), offset=100)._replace(topic_id="two")

    assert first.identity == read_dead_letter(lay(RECORD._replace(topic_id="one"))).identity
    assert first.identity != second.identity
    assert (first.topic_id, first.origin) == ("one", "orders@one/3/42")
    assert find_origin(by_connect) == ("orders@two/3", 42)


@pytest.mark.parametrize("said", [b"", b"many", b"-1", "²".encode(), b"9" * 30], ids=repr)
def test_attempts_that_are_no_number_count_as_none(said: bytes) -> None:
    """Anybody can write a header."""
    assert read_dead_letter(lay(RECORD._replace(headers=((REPLAY_OF, b"x/0/1"), (ATTEMPTS, said))))).attempts == 1


def test_a_reason_that_utf_8_can_not_hold_is_escaped() -> None:
    """Half a surrogate pair, as JSON can write one."""
    letter = read_dead_letter(lay(RECORD, error_class="Refused", message="id is '\ud800'"))

    assert (letter.message, letter.stage) == ("id is '\\ud800'", "deliver")


def test_copies_of_one_failure_are_known_and_other_failures_are_not() -> None:
    """A crash writes a letter twice; a replay that was sent twice fails twice."""
    first = read_dead_letter(lay(RECORD, 1))
    copy = read_dead_letter(lay(RECORD, 2))
    again, twice = (read_dead_letter(lay(replay(lay(RECORD, 1), offset), offset)) for offset in (100, 101))
    made_anew = read_dead_letter(lay(RECORD._replace(value=b"}"), 3))

    assert first.identity == copy.identity
    assert again.identity == twice.identity
    assert len({first.identity, again.identity, made_anew.identity}) == 3


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("__connect.errors.topic", None),),
        (("__connect.errors.topic", b"t"), ("__connect.errors.partition", b"0")),
        (
            ("__connect.errors.topic", b"t"),
            ("__connect.errors.partition", "²".encode()),
            ("__connect.errors.offset", b"1"),
        ),
    ],
    ids=len,
)
def test_a_record_that_does_not_say_where_it_came_from_is_no_dead_letter(headers: Headers) -> None:
    """It is named, and read with other tools."""
    with pytest.raises(NotADeadLetter, match=r"^orders/3/42: does not say which record it was"):
        read_dead_letter(RECORD._replace(headers=headers))


AT = datetime.fromtimestamp(1_700_000_000, UTC)
LATER = datetime.fromtimestamp(1_700_000_001, UTC)
SELECTIONS: list[tuple[LetterSelection, bool]] = [
    (LetterSelection(), True),
    (LetterSelection(places=frozenset({(3, 7)})), True),
    (LetterSelection(places=frozenset({(3, 42)})), False),
    (LetterSelection(error_class="NotJson"), True),
    (LetterSelection(error_class="NotUtf8"), False),
    (LetterSelection(key=b"k"), True),
    (LetterSelection(key=b""), False),
    (LetterSelection(partition=3), True),
    (LetterSelection(partition=0), False),
    (LetterSelection(from_offset=42, to_offset=42), True),
    (LetterSelection(from_offset=43), False),
    (LetterSelection(to_offset=41), False),
    (LetterSelection(since=AT, before=LATER), True),
    (LetterSelection(since=LATER), False),
    (LetterSelection(before=AT), False),
    (LetterSelection(error_class="NotJson", partition=0), False),
]


@pytest.mark.parametrize(("selection", "expected"), SELECTIONS, ids=lambda value: str(value)[:60])
def test_a_selection_takes_what_fits_all_of_it(selection: LetterSelection, *, expected: bool) -> None:
    """Offsets count both ends, times the first."""
    assert selection.selects(read_dead_letter(lay(RECORD))) is expected


def test_trouble_names_the_error_the_topic_and_what_to_do() -> None:
    """Known errors have an advice of their own."""
    assert str(BrokerError("t", TimeoutError())) == (
        "topic t: TimeoutError; see whether the broker is well; the same may succeed later"
    )
