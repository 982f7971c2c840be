"""What a task says of its rows, without Spark: in Arrow, by the envelope's own rules."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shared.errors import GiveUp, InvalidEnvelope
from shared.messages.envelope import Envelope, EnvelopeRules
from spark.prepare.validator import Validator, write_original
from spark.source.raw_rows import LineReader, ParsedRow, RawRows
from spark.tables import BATCH_ROWS
from starter.files.mapping import RowMapping
from starter.files.rows import Row

pyarrow: Any = pytest.importorskip("pyarrow")

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(days=3)
RULES = EnvelopeRules({"feed": "short"})


def lines(*blocks: tuple[str, int, list[bytes]]) -> Iterator[Any]:
    """Give what Spark gives of text files: batches that know nothing of files."""
    rows = [(file, block, value) for file, block, values in blocks for value in values]
    for some in (rows[:3], rows[3:]):
        columns = zip(*some, strict=True)
        yield pyarrow.RecordBatch.from_pydict(dict(zip(("file", "block", "value"), map(list, columns), strict=True)))


def judge(reader: Any, batches: Iterable[Any], spread: timedelta = timedelta(0)) -> list[dict[str, Any]]:
    """Give the verdicts as objects."""
    judged = Validator(reader, RULES, NOON, spread).validate(batches)
    return [row for batch in judged for row in batch.to_pylist()]


def test_lines_are_numbered_by_the_blocks_before_them() -> None:
    """A task may get any blocks in any order; blank lines are counted and are no rows."""
    reader = LineReader({("b", 0): 10, ("a", 50): 3}, RowMapping())
    line = b'{"kind":"feed","id":"%d"}'
    verdicts = judge(reader, lines(("b", 0, [line % 1, b"", line % 3]), ("a", 50, [line % 4, b"{"])))

    assert [(v["row"], v["id"], v["field"], v["flaw"]) for v in verdicts] == [
        (11, "1", None, None),
        (13, "3", None, None),
        (4, "4", None, None),
        (5, None, "envelope", "NotJson"),
    ]


def test_a_file_that_grew_between_two_looks_is_told() -> None:
    """Its rows would have the numbers of others."""
    with pytest.raises(GiveUp, match="a: has changed while it was read; try again"):
        judge(LineReader({("a", 0): 0}, RowMapping()), lines(("a", 0, [b"1", b"2", b"3"]), ("a", 99, [b"4"])))


@dataclass(frozen=True)
class Fixed:
    """Gives rows that are there already."""

    rows: list[ParsedRow]

    def read(self, batches: Iterable[Any]) -> Iterator[RawRows]:
        """Give them."""
        assert not list(batches)
        count = len(self.rows)
        yield RawRows(range(count), [b""] * count, [None] * count, self.rows)

    def parse(self, number: int, raw: ParsedRow, rules: EnvelopeRules) -> Iterator[ParsedRow]:
        """Give one."""
        assert rules is RULES
        assert raw is self.rows[number]
        yield raw


def test_more_rows_than_a_batch_holds_come_in_several() -> None:
    """All of them, in their order."""
    rows = [(Row(n, {}, "", n), Envelope(kind="feed", id=str(n), lane="short")) for n in range(BATCH_ROWS + 1)]
    reader: Any = Fixed([*rows])
    batches = list(Validator(reader, RULES, NOON, timedelta(0)).validate([]))

    assert [batch.num_rows for batch in batches] == [BATCH_ROWS, 1]
    assert batches[1].to_pylist()[0]["id"] == str(BATCH_ROWS)


def test_a_verdict_holds_the_whole_envelope() -> None:
    """Or the field, the flaw, the reason and the row as it was, whatever characters are in it."""
    envelope = Envelope(
        kind="feed", id="ä", lane="long", scheduled_at=NOON, tolerance_seconds=5, priority=1, tenant="t",
        payload={"a": [1, None]}, correlation_id="c", idempotency_key="k", expires_at=LATER,
    )  # fmt: skip
    flawed = InvalidEnvelope("id", "is '\ud800'; correct it")
    told, refused = judge(Fixed([(Row(1, {}, "x", 1), envelope), (Row(2, {}, {"id": "\ud800"}, 2), flawed)]), [])

    assert {name: value for name, value in told.items() if value is not None and name != "digest"} == {
        "row": 1, "kind": "feed", "id": "ä", "lane": "long", "given_at": NOON, "scheduled_at": NOON,
        "tolerance_seconds": 5.0, "priority": 1, "tenant": "t", "payload": '{"a":[1,null]}', "correlation_id": "c",
        "idempotency_key": "k", "expires_at": LATER,
    }  # fmt: skip
    assert (refused["row"], refused["kind"], refused["field"], refused["flaw"]) == (2, None, "id", "InvalidField")
    assert json.loads(refused["original"])["id"] == "\ud800"


def test_a_digest_tells_rows_and_their_places_apart() -> None:
    """The same row at another place is another input."""
    envelope = Envelope(kind="feed", id="1", lane="short")
    rows = [Row(1, {}, "a", 1), Row(1, {}, "a", 9), Row(2, {}, "a", 1), Row(1, {}, "b", 1), Row(1, {}, {"a": 1}, 1)]
    digests = [v["digest"] for v in judge(Fixed([(row, envelope) for row in rows]), [])]

    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


@pytest.mark.parametrize(
    ("scheduled_at", "is_spread"),
    [(None, True), (NOON - timedelta(days=9), True), (NOON + timedelta(seconds=1), False)],
)
def test_only_what_is_due_at_the_beginning_is_spread(scheduled_at: datetime | None, *, is_spread: bool) -> None:
    """Never early, never later than the end; without a spread nothing changes."""
    reader: Any = Fixed([])
    spread = Validator(reader, RULES, NOON, timedelta(hours=1)).find_due("feed", "1", scheduled_at)

    assert spread is not None
    assert (spread != scheduled_at) == is_spread
    assert NOON <= spread < NOON + timedelta(hours=1)
    assert Validator(reader, RULES, NOON, timedelta(0)).find_due("feed", "1", scheduled_at) == scheduled_at


def test_a_row_as_it_was_is_json() -> None:
    """Also what JSON itself does not know."""
    assert json.loads(write_original({"at": NOON, "n": 1})) == {"at": str(NOON), "n": 1}
    assert "nan" in json.loads(write_original({"n": float("nan")}))
