"""Frames: which columns make messages, which rows can't, and which conditions a server understands."""

import importlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from shared.errors import GiveUp
from shared.messages.envelope import Envelope, EnvelopeRules
from spark.format.reader import find_accepted, push_down
from spark.format.windows import Window, cut_windows
from spark.tasks.starting import check_schema, read_batch
from starter.starting.receipts import Receipt, StartOutcome

arrow: Any = importlib.import_module("pyarrow")  # it has no type stubs

RULES = EnvelopeRules({"feed": "medium"})
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def make_schema(columns: str) -> StructType:
    """Make a schema of "name type, …"; Spark's own reader of such text needs a JVM."""
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema.add(name, kind)
    return schema


def test_a_manifest_has_the_columns_of_messages() -> None:
    """Its row number is no part of a message."""
    manifest = make_schema(
        "row long, kind string, id string, scheduled_at timestamp, tolerance_seconds double, priority integer, "
        "tenant string, payload string, correlation_id string, idempotency_key string, expires_at timestamp, "
        "lane string"
    )

    assert "row" not in check_schema(manifest)
    assert len(check_schema(manifest)) == 11


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("kind string", "the frame: has no column 'id'; its columns are 'kind'"),
        ("id string", "the frame: has no column 'kind'; add one, for example with lit('feed')"),
        ("kind string, id long", "the frame: column 'id' is of type bigint; cast it to string"),
        ("kind string, id string, priority string", "the frame: column 'priority' is of type string; cast it to int"),
        ("kind string, id string, tolerance_seconds string", "the frame: column 'tolerance_seconds' is of type str"),
        ("kind string, id string, scheduled_at long", "the frame: column 'scheduled_at' is of type bigint; cast it"),
        (
            "kind string, id string, scheduled_at timestamp_ntz",
            "the frame: column 'scheduled_at' has moments without an offset; cast it to timestamp",
        ),
        ("kind string, id string, payload string, url string", "the frame: column 'url' is no field of the envelope"),
    ],
)
def test_a_frame_that_makes_no_messages_is_refused_in_one_sentence(columns: str, sentence: str) -> None:
    """It names the column, the problem and the next step."""
    with pytest.raises(GiveUp) as refused:
        check_schema(make_schema(columns))

    assert str(refused.value).startswith(sentence)


def refused(kind: str, message_id: str, reason: str) -> Receipt[str]:
    """Give the receipt of a row that is no message."""
    return Receipt(message_id, f"{kind}:{message_id}", StartOutcome.REJECTED, "", reason, 0)


def test_a_row_becomes_a_message_or_says_why_not() -> None:
    """Nulls are absent, text is JSON where it is some, and a bad row hurts only itself."""
    rows = [
        {"kind": "feed", "id": "1", "scheduled_at": NOON, "priority": None, "payload": '{"a": [1]}'},
        {"kind": "feed", "id": None, "scheduled_at": None, "priority": 1, "payload": None},
        {"kind": "none", "id": "3", "scheduled_at": None, "priority": 2, "payload": "plain"},
        {"kind": "feed", "id": "4", "scheduled_at": None, "priority": 9, "payload": "plain"},
        {"kind": "feed", "id": "5", "scheduled_at": None, "priority": 2, "payload": "plain"},
    ]
    batch = arrow.RecordBatch.from_pylist(rows)

    read = list(read_batch(batch, tuple(rows[0]), RULES))

    assert read == [
        Envelope(kind="feed", id="1", lane="medium", scheduled_at=NOON, payload={"a": [1]}),
        refused("feed", "", "id: is missing; every message needs one"),
        refused("none", "3", "kind: no handler for 'none' is loaded; loaded: feed"),
        refused("feed", "4", "priority: is 9; give a whole number from 1 (first) to 5 (last)"),
        Envelope(kind="feed", id="5", lane="medium", priority=2, payload="plain"),
    ]


def test_without_a_payload_column_all_others_make_it_up() -> None:
    """As with any file that is loaded."""
    batch = arrow.RecordBatch.from_pylist([{"kind": "feed", "id": "1", "url": "http://a", "at": NOON}])

    (read,) = read_batch(batch, ("kind", "id", "url", "at"), RULES)

    assert isinstance(read, Envelope)
    assert read.payload == {"url": "http://a", "at": NOON.isoformat()}


@pytest.mark.parametrize(
    ("wanted", "part", "is_left"),
    [
        (EqualTo(("kind",), "feed"), "Kind = 'feed'", False),
        (EqualTo(("kind",), "it's"), "Kind = 'it\\'s'", False),
        (In(("lane",), ("short", "long")), "(Lane = 'short' OR Lane = 'long')", False),
        (
            EqualTo(("state",), "parked"),
            "(State = 'parked' AND ExecutionStatus IN ('Running', 'Completed'))",
            False,
        ),
        (EqualTo(("state",), "timed out"), "ExecutionStatus = 'TimedOut'", False),
        (IsNotNull(("kind",)), "Kind IS NOT NULL", False),
        (
            GreaterThan(("due_at",), NOON),
            "DueAt >= '2026-11-21T11:59:59.999000+00:00'",
            True,
        ),
        (LessThanOrEqual(("due_at",), NOON), "DueAt <= '2026-11-21T12:00:00.001000+00:00'", True),
        (GreaterThan(("due_at",), NOON.replace(tzinfo=None)), None, True),
        (IsNull(("due_at",)), None, True),
        (Not(EqualTo(("kind",), "feed")), None, True),
        (StringStartsWith(("id",), "x"), None, True),
        (EqualTo(("kind",), 5), None, True),
        (EqualTo(("payload", "kind"), "feed"), None, True),
    ],
)
def test_a_condition_goes_to_the_server_or_stays_with_spark(wanted: Filter, part: str | None, *, is_left: bool) -> None:
    """What narrows without being exact does both."""
    assert push_down([wanted]) == ([] if part is None else [part], [wanted] if is_left else [])


def test_packs_get_the_values_that_all_conditions_leave() -> None:
    """Spark does not check again what the server checks, so tasks that read packs go by the same values."""
    conditions = [In(("state",), ("active", "parked")), EqualTo(("state",), "parked"), EqualTo(("kind",), "feed")]
    others = [EqualTo(("due_at",), NOON), GreaterThan(("due_at",), NOON), Not(EqualTo(("lane",), "long"))]

    assert find_accepted([*conditions, *others]) == {"state": {"parked"}, "kind": {"feed"}}
    assert find_accepted([EqualTo(("lane",), "short"), EqualTo(("lane",), "long")]) == {"lane": set()}


class Started:
    """Workflows by when they started, and how often somebody counted them."""

    def __init__(self, moments: list[datetime]) -> None:
        self._moments = moments
        self.counts = 0

    async def count(self, window: Window) -> int:
        """Count as the server does."""
        self.counts += 1
        return sum(is_in(moment, window) for moment in self._moments)


def is_in(moment: datetime, window: Window) -> bool:
    """Say whether a workflow that started then is listed."""
    return (window.begin is None or moment >= window.begin) and (window.end is None or moment < window.end)


STARTS = {
    "none": [],
    "one": [NOON - timedelta(days=400)],
    "all at once": [NOON - timedelta(hours=1, microseconds=n) for n in range(1000)],
    "an hour long ago": [NOON - timedelta(days=700, seconds=3 * n) for n in range(1200)],
    "ever since": [NOON - timedelta(minutes=n**2) for n in range(800)],
    "most of them just now": [NOON - timedelta(seconds=n % 7 * 3600 * 24 if n % 20 == 0 else n) for n in range(1000)],
}


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("parts", [1, 2, 5])
async def test_windows_hold_each_start_once(name: str, parts: int) -> None:
    """Whatever the times, nothing is in two windows or in none, and what starts now is in the last one."""
    windows = await cut_windows(Started(STARTS[name]).count, parts, NOON)

    assert 1 <= len(windows) <= parts
    assert all(sum(is_in(moment, window) for window in windows) == 1 for moment in STARTS[name])
    assert windows[-1].end is None


@pytest.mark.parametrize("name", ["an hour long ago", "ever since", "most of them just now"])
async def test_windows_are_about_even(name: str) -> None:
    """Found with a bounded number of counts, of which a server answers ten a second."""
    started = Started(STARTS[name])

    windows = await cut_windows(started.count, 4, NOON)

    held = [await Started(STARTS[name]).count(window) for window in windows]
    assert len(windows) == 4
    assert max(held) <= 0.4 * len(STARTS[name])
    assert started.counts <= 60
