"""Arrow: every value of every type is read exactly, or refused by itself."""

import csv
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shared.errors import InvalidEnvelope
from shared.messages.envelope import Envelope, EnvelopeRules, parse_envelope
from shared.messages.json_value import is_kept
from starter.files.columns import Columns
from starter.files.mapping import RowMapping
from starter.files.rows import RowSource
from starter.records.mapping import FormatOptions

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")
arrow: Any = pytest.importorskip("starter.files.arrow")

RULES = EnvelopeRules({"feed": "short"}, 0)
PAGE = UUID("0b4e3a52-98d7-4f42-8f0b-9f1d2c3b4a59")
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
FAR_MOMENT = "is a moment outside of the years 1 to 9999; correct it"
FAR_DAY = "is a day outside of the years 1 to 9999; correct it"


def of_counts(kind: Any, *counts: int | None) -> Any:
    """Give an array of moments, days, times or durations by what it stores."""
    storage = pa.int64() if kind.bit_width == 64 else pa.int32()
    return pa.array(counts, storage).view(kind)


def judge(columns: dict[str, Any], **mapping: str) -> list[Envelope | str]:
    """Give the envelope of each row of a table, or why it is refused."""
    to_fields = RowMapping(FormatOptions.read(**mapping)).reader(list(columns), "a table").to_fields
    found: list[Envelope | str] = []
    for row in arrow.read_rows(pa.RecordBatch.from_pydict(columns)):
        try:
            found.append(parse_envelope(to_fields(tuple(row.values())), RULES))
        except InvalidEnvelope as exc:
            found.append(str(exc))
    return found


def read_one(column: Any) -> Any:
    """Give the payload that a row with this one cell gets, or why it is refused."""
    (found,) = judge({"kind": ["feed"], "id": ["1"], "cell": column})
    return found if isinstance(found, str) else found.payload.get("cell")


VALUES: dict[str, tuple[Any, Any]] = {
    "decimal": (pa.array([Decimal("12345678901234567.89")], pa.decimal128(38, 2)), "12345678901234567.89"),
    "decimal that a float keeps": (pa.array([Decimal("-0.25")], pa.decimal128(38, 2)), -0.25),
    "decimal of zero digits": (pa.array([Decimal(10**25)], pa.decimal128(38, 0)), 10**25),
    "long whole decimal": (pa.array([Decimal(10**37 + 1)], pa.decimal256(50, 0)), str(10**37 + 1)),
    "decimal in a struct": (
        pa.StructArray.from_arrays([pa.array([{"b": Decimal("0.1234567890123456789")}])], ["a"]),
        {"a": {"b": "0.1234567890123456789"}},
    ),
    "decimals in a list": (
        pa.array([[Decimal("12345678901234567.89"), None, Decimal("1.50")]], pa.list_(pa.decimal128(38, 2))),
        ["12345678901234567.89", None, 1.5],
    ),
    "decimals in a map": (
        pa.array([[("a", Decimal("12345678901234567.89"))]], pa.map_("string", pa.decimal128(38, 2))),
        {"a": "12345678901234567.89"},
    ),
    "short decimal": (pa.array([Decimal("1.5")], pa.decimal32(5, 1)), 1.5),
    "large number": (pa.array([2**64 - 1], "uint64"), 2**64 - 1),
    "short float": (pa.array([0.1], "float32"), 0.1),
    "shorter float": (pa.array([0.5], pa.float16()), 0.5),
    "NaN": (pa.array([float("nan")]), "cell: holds nan, which JSON does not know; leave it out, or write it as text"),
    "infinity in a list": (pa.array([[float("inf")]]), "cell: holds inf, which JSON does not know"),
    "UUID": (pa.array([PAGE.bytes], pa.uuid()), str(PAGE)),
    "text in bytes": (pa.array([b"\xc3\xa4"]), "ä"),
    "text in a view": (pa.array(["ä"], pa.string_view()), "ä"),
    "text in bytes of one length": (pa.array([b"ab"], pa.binary(2)), "ab"),
    "bytes": (pa.array([b"\xff"]), "cell: is binary and no UTF-8 text; write it as text, for example in base64"),
    "text of a wrong encoding": (pa.array([b"\xff"]).view(pa.string()), "cell: can't be read"),
    "enumeration": (pa.array(["a"]).dictionary_encode(), "a"),
    "day": (pa.array([date(2026, 12, 1)]), "2026-12-01"),
    "last day": (of_counts(pa.date32(), 2932896), "9999-12-31"),
    "day after the last": (of_counts(pa.date32(), 2932897), f"cell: {FAR_DAY}"),
    "day before the first": (of_counts(pa.date32(), -719163), f"cell: {FAR_DAY}"),
    "day of milliseconds": (of_counts(pa.date64(), -86_400_000), "1969-12-31"),
    "farthest day": (of_counts(pa.date64(), 2**62), f"cell: {FAR_DAY}"),
    "moment": (pa.array([NOON]), "2026-12-01T12:00:00+00:00"),
    "local moment": (pa.array([NOON.replace(tzinfo=None)]), "2026-12-01T12:00:00"),
    "moment of the year 10000": (of_counts(pa.timestamp("us"), 253402300800000000), f"cell: {FAR_MOMENT}"),
    "moment of the year 0": (of_counts(pa.timestamp("s", "UTC"), -62135596801), f"cell: {FAR_MOMENT}"),
    "farthest moment": (of_counts(pa.timestamp("s"), 2**63 - 1), f"cell: {FAR_MOMENT}"),
    "nanosecond": (of_counts(pa.timestamp("ns", "Asia/Tokyo"), 1), "1970-01-01T00:00:00.000000001+00:00"),
    "nanosecond before 1970": (of_counts(pa.timestamp("ns"), -1), "1969-12-31T23:59:59.999999999"),
    "moment in a struct": (
        pa.StructArray.from_arrays([of_counts(pa.timestamp("ms"), 2**60)], ["at"]),
        f"cell: {FAR_MOMENT}",
    ),
    "day in a list": (
        pa.ListArray.from_arrays([0, 2], of_counts(pa.date32(), 0, 2**31 - 1)),
        f"cell: {FAR_DAY}",
    ),
    "time": (of_counts(pa.time32("s"), 43200), "12:00:00"),
    "time of nanoseconds": (of_counts(pa.time64("ns"), 43200 * 10**9 + 1), "12:00:00.000000001"),
    "time that no day has": (of_counts(pa.time32("s"), 86400), "cell: is a time that no day has; correct it"),
    "duration": (of_counts(pa.duration("us"), 1_500_000), 1.5),
    "whole duration": (of_counts(pa.duration("ns"), 60 * 10**9), 60),
    "duration without end": (of_counts(pa.duration("s"), 2**62), "cell: is a duration of more than a million years"),
    "map": (pa.array([[("delay", "1h")]], pa.map_("string", "string")), {"delay": "1h"}),
    "map without entries": (pa.array([[]], pa.map_("string", "string")), {}),
    "map of numbers": (pa.array([[(1, [True])]], pa.map_("int64", pa.list_(pa.bool_()))), {"1": [True]}),
    "map with a key twice": (pa.array([[("a", 1), ("a", 2)]], pa.map_("string", "int8")), "cell: has the key 'a'"),
    "map with a key of no text": (pa.array([[(True, 1)]], pa.map_("bool", "int8")), "cell: has a key that is a"),
    "struct of nothing": (pa.array([{}], pa.struct([])), {}),
    "large list": (pa.array([[1, None]], pa.large_list(pa.int8())), [1, None]),
    "list of one length": (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), [1, 2]),
    "list in a view": (pa.array([[1, 2]], pa.list_view(pa.int8())), [1, 2]),
    "interval": (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "cell: is of the type month_day_nano_interval"),
    "nothing": (pa.nulls(1), None),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_read_exactly_or_refused_with_its_column(name: str) -> None:
    """Decimals keep their digits, moments their nanoseconds, and what no message can hold is told by its column."""
    column, expected = VALUES[name]
    found = read_one(column)

    if isinstance(expected, str) and expected.startswith("cell: "):
        assert str(found).startswith(expected)
    else:
        assert (type(found), found) == (type(expected), expected)


NAMES: dict[str, tuple[Any, str]] = {
    "UUID": (pa.array([PAGE.bytes], pa.uuid()), str(PAGE)),
    "whole decimal": (pa.array([Decimal(10**37)], pa.decimal128(38, 0)), str(10**37)),
    "decimal": (pa.array([Decimal("42.50")], pa.decimal128(38, 2)), "42.50"),
    "bytes": (pa.array([b"007"]), "007"),
    "number": (pa.array([42]), "42"),
    "large number": (pa.array([2**64 - 1], "uint64"), str(2**64 - 1)),
    "day": (pa.array([date(2026, 12, 1)]), "2026-12-01"),
    "enumeration": (pa.array(["a"]).dictionary_encode(), "a"),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_column_that_is_text_takes_the_text_of_its_values(name: str) -> None:
    """By their names, and by a mapping, also of a part of a struct."""
    column, text = NAMES[name]
    fields = ("id", "tenant", "correlation_id", "idempotency_key")
    (named,) = judge({"kind": ["feed"], **dict.fromkeys(fields, column)})
    (mapped,) = judge({"a": column, "b": ["x"]}, kind="feed", id_from="/a", tenant_from="/a", payload_from="/b")
    struct = pa.StructArray.from_arrays([column], ["c"])
    (inner,) = judge({"a": struct, "b": ["x"]}, kind="feed", id_from="/a/c", payload_from="/b")

    assert [named.model_dump()[field] for field in fields] == [text] * 4  # pyright: ignore — a sentence has no fields
    assert (mapped.id, mapped.tenant, inner.id) == (text, text, text)  # pyright: ignore — as above


@pytest.mark.parametrize("column", [pa.array([NOON]), pa.array([True]), pa.array([1.5]), pa.array([[1]])])
def test_a_value_of_several_texts_is_no_id(column: Any) -> None:
    """Each would be another message."""
    (named,) = judge({"kind": ["feed"], "id": column})
    (mapped,) = judge({"a": column}, kind="feed", id_from="/a")

    assert str(named).startswith("id: ")
    assert str(mapped).startswith("id: ")


def test_numbers_of_the_envelope_may_be_decimals_and_durations() -> None:
    """A priority that is no whole number, or a tolerance that is none, is refused."""
    decimals = pa.array([Decimal("2.0"), Decimal("2.5")], pa.decimal128(38, 1))
    columns = {"kind": ["feed"] * 2, "id": ["1", "2"], "priority": decimals, "tolerance_seconds": decimals}
    first, second = judge(columns)
    (third,) = judge({"kind": ["feed"], "id": ["3"], "tolerance_seconds": of_counts(pa.duration("ms"), 1500)})
    (fourth,) = judge({"a": decimals[:1]}, kind="feed", id_from="/a", priority_from="/a")

    assert (first.priority, first.tolerance_seconds, third.tolerance_seconds, fourth.priority) == (2, 2.0, 1.5, 2)  # pyright: ignore — as above
    assert second == "priority: is 2.5; give a whole number from 1 (first) to 5 (last)"


def test_a_map_is_an_object_also_where_it_is_the_payload() -> None:
    """By its name, and by a mapping."""
    column = pa.array([[("url", "u"), ("delay", "1h")]], pa.map_("string", "string"))
    (named,) = judge({"kind": ["feed"], "id": ["1"], "payload": column})
    (mapped,) = judge({"a": column}, kind="feed", id_from="/a/url", payload_from="/a")

    assert named.payload == mapped.payload == {"url": "u", "delay": "1h"}  # pyright: ignore — as above
    assert mapped.id == "u"  # pyright: ignore — as above


@pytest.mark.parametrize("use_int96", [False, True])
def test_moments_of_both_parquet_types_are_in_utc(tmp_path: Path, *, use_int96: bool) -> None:
    """INT96, which Spark and Hive wrote for long, has no zone of its own; also inside of structs, lists and maps."""
    at = pa.array([NOON, None, NOON])
    column = pa.array(
        [{"at": [NOON], "by": [("a", NOON)]}] * 3,
        pa.struct({"at": pa.list_(at.type), "by": pa.map_("string", at.type)}),
    )
    table = pa.table({"kind": ["feed"] * 3, "id": ["1", "2", "3"], "scheduled_at": at, "seen": column})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=use_int96, store_schema=not use_int96)

    with RowSource(str(tmp_path / "a.parquet")) as source:
        found = [parse_envelope(row.fields, RULES) for row in source]

    assert [each.scheduled_at for each in found] == [NOON, None, NOON]
    text = "2026-12-01T12:00:00+00:00"
    assert found[0].payload == {"seen": {"at": [text], "by": {"a": text}}}


def test_one_value_that_cannot_be_read_refuses_its_row_alone(tmp_path: Path) -> None:
    """Whatever its column, and however far beyond the calendar."""
    count = 3000
    columns = {
        "at": of_counts(pa.timestamp("us"), *[253402300800000000 if n == 7 else n for n in range(count)]),
        "day": of_counts(pa.date32(), *[2**31 - 1 if n == 1500 else n for n in range(count)]),
        "span": of_counts(pa.duration("s"), *[2**62 if n == 2999 else n for n in range(count)]),
    }
    table = {"kind": ["feed"] * count, "id": [str(n) for n in range(count)], **columns}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")

    with RowSource(str(tmp_path / "a.parquet")) as source:
        flaws = {row.number: row.flaw.field for row in source if row.flaw is not None}

    assert flaws == {8: "at", 1501: "day", 3000: "span"}


COUNTS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(10**6), 10**6))
KINDS_OF_COUNTS = [
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Tokyo")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.int64(), pa.float64(), pa.decimal128(18, 4)),
]


def store(kind: Any, counts: list[int | None]) -> Any:
    """Give an array of a type by what it stores, cut to the bits that it has."""
    if kind.bit_width == 128:
        return pa.array([None if count is None else Decimal(count % 10**18).scaleb(-4) for count in counts], kind)
    if kind.bit_width == 32:
        counts = [None if count is None else count % 2**32 - 2**31 for count in counts]
    return of_counts(kind, *counts)


@st.composite
def arrays(draw: st.DrawFn, count: int, depth: int = 2) -> Any:
    """An array of any type, of which some values are nonsense."""
    way = draw(st.sampled_from(["counts", "counts", "bytes", "texts", "struct", "list", "map", "large", "dictionary"]))
    if way == "counts" or not depth:
        return store(
            draw(st.sampled_from(KINDS_OF_COUNTS)), draw(st.lists(st.none() | COUNTS, min_size=count, max_size=count))
        )

    if way in ("bytes", "texts"):
        raw = pa.array(draw(st.lists(st.none() | st.binary(max_size=3), min_size=count, max_size=count)), pa.binary())
        return raw.view(pa.string()) if way == "texts" else raw

    if way == "struct":
        parts = [draw(arrays(count, depth - 1)) for _ in range(draw(st.integers(1, 2)))]
        is_null = pa.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
        return pa.StructArray.from_arrays(parts, ["a", "b"][: len(parts)], mask=is_null)

    items = draw(arrays(2 * count, depth - 1))
    ends = sorted(draw(st.lists(st.integers(0, 2 * count), min_size=count - 1, max_size=count - 1)))
    offsets = pa.array([0, *ends, 2 * count], "int32")

    if way == "map":
        keys = draw(st.lists(st.text("ab", min_size=1), min_size=2 * count, max_size=2 * count))
        return pa.MapArray.from_arrays(offsets, keys, items)

    if way == "dictionary":
        places = draw(st.lists(st.none() | st.integers(0, 2 * count - 1), min_size=count, max_size=count))
        return pa.DictionaryArray.from_arrays(pa.array(places, "int32"), items)

    if way == "large":
        return pa.LargeListArray.from_arrays(offsets.cast("int64"), items)
    return pa.ListArray.from_arrays(offsets, items)


@settings(max_examples=200)
@given(st.data())
def test_each_row_of_any_table_is_a_message_or_refused(data: st.DataObject) -> None:
    """Whatever the types and values of its columns, and also of a part of it."""
    count = data.draw(st.integers(1, 4))
    name = data.draw(st.sampled_from(["payload", "tenant", "scheduled_at", "priority", "tolerance_seconds", "cell"]))
    column = data.draw(arrays(count))
    begin = data.draw(st.integers(0, count - 1))
    columns = {"kind": ["feed"] * count, "id": list(map(str, range(count))), name: column}

    found = judge(columns)
    assert len(found) == count
    assert (
        judge({key: pa.array(cells)[begin:] if key != name else column[begin:] for key, cells in columns.items()})
        == found[begin:]
    )


CELLS: dict[str, st.SearchStrategy[Any]] = {
    "number": st.integers(-(2**53), 2**53),
    "share": st.floats(allow_nan=False, allow_infinity=False),
    "price": st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**30), max_value=10**30),
    "word": st.sampled_from(["a", "ä,b", '"', "a b\nc", "007", "1.2.3"]),
    "is_new": st.booleans(),
    "day": st.dates(),
    "tenant": st.integers(0, 2**62),
    "priority": st.integers(1, 5),
}
TYPES = {"number": "int64", "share": "float64", "price": pa.decimal128(38, 2), "tenant": "int64"}
WRITE: dict[Any, Callable[[Any], Any]] = {bool: lambda flag: str(flag).lower(), date: date.isoformat}


@settings(max_examples=40, deadline=timedelta(seconds=10), phases=[Phase.generate])
@given(st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=4))
def test_one_table_gives_the_same_messages_in_each_format(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    """CSV, JSON lines and Parquet say the same; a decimal of more digits than a float keeps is text in JSON."""
    rows = [{"kind": "feed", "id": str(number), **row} for number, row in enumerate(rows)]
    folder = tmp_path_factory.mktemp("formats")
    pq.write_table(
        pa.table({name: pa.array([row[name] for row in rows], TYPES.get(name)) for name in rows[0]}),
        folder / "a.parquet",
    )
    with (folder / "a.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(rows[0])
        writer.writerows([WRITE.get(type(row[name]), str)(row[name]) for name in rows[0]] for row in rows)
    lines = [json.dumps(nest(row)) for row in rows]
    (folder / "a.jsonl").write_text("\n".join(lines), "utf-8")

    found = [read_file(folder / name) for name in ("a.parquet", "a.csv", "a.jsonl")]
    assert found[0] == found[1] == found[2]


def nest(row: dict[str, Any]) -> dict[str, Any]:
    """Give a row as an envelope in JSON."""
    own = {name: row[name] for name in ("kind", "id", "tenant", "priority")}
    rest = {name: cell for name, cell in row.items() if name not in own}
    price = str(row["price"])
    return {**own, "payload": {**rest, "price": float(price) if is_kept(price) else price, "day": str(row["day"])}}


def read_file(path: Path) -> list[dict[str, Any]]:
    """Give the messages of a file."""
    with RowSource(str(path)) as source:
        return [parse_envelope(row.fields, RULES).model_dump() for row in source]


def test_a_struct_with_one_name_twice_refuses_its_rows() -> None:
    """Neither of the two values is lost in silence."""
    column = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])

    assert str(read_one(column)).startswith("cell: can't be read")
    with pytest.raises(InvalidEnvelope, match="cell: can't be read"):
        Columns(["id", "cell"], "a table").to_fields(["1", *arrow.read_values(column)])
