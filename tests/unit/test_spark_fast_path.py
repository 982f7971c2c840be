"""The fast path gives what the rules give: the same verdicts and sentences, row by row, on the nastiest rows."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.envelope import EnvelopeRules
from shared.messages.json_value import MAX_DEPTH
from spark.prepare.validator import Validator
from spark.source.raw_rows import PLAIN_MAX_BYTES, CellReader, LineReader, ParsedRow, RawRows
from starter.files.mapping import RowMapping
from starter.records.mapping import FormatOptions

pyarrow: Any = pytest.importorskip("pyarrow")

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
TEN_YEARS = datetime.now(UTC) + timedelta(days=3652)
PAYLOAD_MAX_BYTES = 300
KINDS = {"feed": "short", "page": "long", "Feed!": "short", "x" * 51: "short", "odd": "fast"}
RULES = [EnvelopeRules(KINDS, PAYLOAD_MAX_BYTES), EnvelopeRules(KINDS, 0)]
MAPPINGS = [
    RowMapping(),
    RowMapping(FormatOptions.read(kind="page"), "medium"),
    RowMapping(FormatOptions.read(kind="/kind", id_from="/id", payload_from="/payload", scheduled_at_from="/due")),
    RowMapping(FormatOptions.read(kind="feed", id_from="/id", priority_from="/priority", tenant_from="/tenant")),
]

ORDINARY = {
    "kind": ['"feed"', '"page"'],
    "id": ['"1"', '"https://example.org/a?b=c:d"', "17"],
    "scheduled_at": ['"2026-12-01T12:00:00Z"', '"2026-12-01T13:30:00.25+01:00"', "null"],
    "payload": ['{"url":"https://example.org/1","n":[1,2.5,null,true]}', '"a"', "7", "null", '{"a": {"b": []}}'],
    "priority": ["1", "5"],
    "tolerance_seconds": ["0", "2.5", "60"],
    "lane": ['"medium"', "null"],
    "tenant": ['"t"', '""'],
    "correlation_id": ['"c"'],
    "idempotency_key": ['"k"'],
    "schema_version": ["1"],
}
TEXTS = [
    '""', '"a b"', '" a"', '"\\u0000"', '"\\u001f"', '"\\u007f"', '"\\u0085"', '"\\u00a0"', '"\\u200b"', '"\\u2028"',
    '"\\ud800"', '"\\ud83d\\ude00"', '"\\u003a"', '"a\\/b\\"\\\\"', '"\\ufeff"', '"ä"', f'"{"ä" * 32}"',
    f'"{"ä" * 33}"', f'"{"ä" * 100}"', f'"{"ä" * 101}"', f'"{"x" * 64}"', f'"{"x" * 65}"', f'"{"x" * 200}"',
    f'"{"x" * 201}"', f'"{"中" * 66}xx"', f'"{"中" * 67}"', f'"{"1" * 19}"', '"😀"', '"\x00"', '"\t"', '"a\r"',
    '"."', '".."', '"..."',
]  # fmt: skip
NUMBERS = [
    "0", "1", "1.0", "1e0", "-0", "-0.0", "-1", "1.5", "6", "0.1", "1e5", "1E+2", "5e-324", "1e400", "-1e400",
    "NaN", "Infinity", "-Infinity", "9" * 17, "1" + "0" * 18, "9" * 19, str(2**63), str(2**64 - 1), str(2**64),
    "1" + "0" * 400, "-1" + "0" * 400, "-" + "9" * 25, "0." + "1" * 25, "01",
    "2592000", "2592000.0", "2592000.1", "2592001", '"3"', "true", "false",
]  # fmt: skip
OTHERS = ["[]", "{}", "[1]", '{"a":1}', "", "nul", "null"]
MOMENTS = [
    "2026-12-01 12:00:00+00", "2026-12-01 12:00:00.5-0330", "2026-12-01 12:00:00 UTC", "2026-12-01 12:00:00+25",
    "2026-02-29T00:00:00Z", "2028-02-29T23:59:59Z", "2026-12-01T12:00:00", "2026-12-01T12:00:00z",
    "2026-12-01t12:00:00Z", "2026-12-01 12:00:00Z", "2026-12-01", "2026-12-01T12:00Z", "2026-12-01T12:00:00+0100",
    "2026-12-01T12:00:00+01", "2026-12-01T12:00:00-00:00", "2026-12-01T12:00:00+23:59",
    "2026-12-01T12:00:00+24:00", "2026-12-01T12:00:00+01:99", "2026-12-01T24:00:00Z", "2026-12-01T12:00:60Z",
    "2026-12-01T12:60:00Z", "2026-12-01T12:00:00.Z", "2026-13-01T12:00:00Z", "2026-12-01T12:00:00.1234567Z",
    "2026-12-01T12:00:00.999999999Z", "2026-12-01T12:00:00.000000Z", "0000-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00",
    "1969-12-31T23:59:59.999999Z", "2026-12-31T23:59:59.999999-12:00", "2026-12-01T12:00:00Z ",
    "2026-12-01T12:00:00Z\\n", "\uff12026-12-01T12:00:00Z", "2026-W01-1T12:00:00Z", "+2026-12-01T12:00:00Z",
    "2026-12-01T12:00:00,5Z", "", "now",
    *((TEN_YEARS + timedelta(seconds=away)).isoformat() for away in (-2 * 86400, -86400, -60, 3600)),
]  # fmt: skip
DEEP = [
    *("[" * depth + "]" * depth for depth in (MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 200, 300, 2000)),
    '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH,
    '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
    json.dumps(["[" * 40, "{" * 40]),
    json.dumps([[] for _ in range(70)]),
]
PAYLOADS = [
    *DEEP,
    *(json.dumps("x" * (PAYLOAD_MAX_BYTES + more)) for more in (-3, -2, -1)),
    *(json.dumps("ä" * count) for count in (149, 150)),
    '{"a":1,"a":2}', '{"a":{"b":1,"b":1}}', '{"a":1,"\\u0061":2}', '{"a:b":1}', '{"a\\u003ab":1,"a:b":2}', '{"":""}',
    '{"z":1,"a":{"y":2,"b":[ 1 , 2 ]}}', '{"a":"\\u00e9\\n\\/"}', '{"\\ud800":1}', '["\\udc00"]', '"\\u003a"',
    '":::"', f'{{"n":{2**63},"m":{2**64}}}', '{"n":1.0,"m":1e2,"o":0.30000000000000004}', '{"n":123456789012345678}',
]  # fmt: skip
NASTY = {
    name: [
        *TEXTS,
        *NUMBERS,
        *OTHERS,
        *{"scheduled_at": [f'"{text}"' for text in MOMENTS], "payload": PAYLOADS}.get(name, []),
    ]
    for name in (*ORDINARY, "due", "unknown", "Kind", "")
} | {"kind": ['"unknown"', '"Feed!"', '"FEED"', f'"{"x" * 51}"', '"odd"', '"feed\\u0000"', *OTHERS, *NUMBERS[:3]]}
NASTY["lane"] += ['"short"', '"fast"', '"Short"', '["short"]']
WHOLE = [
    b"", b" ", b"\r", b"\x0b", b"{", b"[]", b"null", b"1", b'"{}"', b"{}", b"{}{}", b"\xff",
    b'{"kind":"feed","id":"\xff"}', b'\xef\xbb\xbf{"kind":"feed","id":"1"}',
    b'{"kind":"feed","id":"\xed\xa0\x80"}', b'{"kind":"feed","id":"1"}\x00', b'\x0b{"kind":"feed","id":"1"}\x0c',
    b' {"kind" : "feed",\t"id":"1"} ', b'{"kind":"feed",\r"id":"1"}\r\r',
    b'{"kind":"feed","id":"1"}\r{"kind":"feed","id":"2"}\r',
    b'{"kind":"feed","id":"1","payload":"' + b"x" * PLAIN_MAX_BYTES + b'"}', b"'", b"NaN", b"[" * 2000,
]  # fmt: skip


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    """A line with an object, of whose members a few are nasty."""
    names = [*draw(st.sampled_from([("kind", "id"), ("id", "kind"), ("kind", "id", "payload"), ("id",), ()]))]
    names += draw(st.lists(st.sampled_from([*ORDINARY, "scheduled_at", "payload"]), max_size=4))
    if draw(st.integers(0, 3)):
        names = list(dict.fromkeys(names))

    members = [(name, draw(st.sampled_from(ORDINARY[name]))) for name in names]
    for name in draw(st.lists(st.sampled_from([*NASTY]), max_size=2)):
        nasty = (name, draw(st.sampled_from(NASTY[name])))
        place = next((n for n, (known, _) in enumerate(members) if known == name), None)
        members = [*members, nasty] if place is None else [*members[:place], nasty, *members[place + 1 :]]

    colon, comma, end = draw(
        st.sampled_from([(":", ",", ""), (": ", ", ", ""), (" :\t", ",\r", "\r"), (":", ",", " \r")])
    )
    return ("{" + comma.join(f'"{name}"{colon}{value}' for name, value in members) + "}" + end).encode()


LINES = st.lists(
    st.one_of(objects(), objects(), objects(), st.sampled_from(WHOLE), st.binary(max_size=20)), max_size=12
).map(lambda lines: [line.replace(b"\n", b"") for line in lines])


@dataclass(frozen=True)
class Doubtful:
    """A reader of whose rows none is easily read, so that the rules judge all of them."""

    reader: Any

    def read(self, batches: Iterable[Any]) -> Iterator[RawRows]:
        """Give the rows without their fields."""
        for rows in self.reader.read(batches):
            yield rows._replace(fields=[None] * len(rows.fields))

    def parse(self, number: int, raw: Any, rules: EnvelopeRules) -> Iterator[ParsedRow]:
        """Judge a row."""
        return self.reader.parse(number, raw, rules)


def judge(reader: Any, batch: Any, rules: EnvelopeRules, spread: timedelta) -> list[str]:
    """Give the verdicts by row, as text, which tells also 0.0 and -0.0 apart."""
    verdicts = [row for some in Validator(reader, rules, NOON, spread).validate([batch]) for row in some.to_pylist()]
    return [repr(row) for row in sorted(verdicts, key=lambda row: row["row"])]


def compare(reader: Any, batch: Any, rules: EnvelopeRules, spread: timedelta) -> None:
    """Assert that both ways give the same."""
    assert judge(reader, batch, rules, spread) == judge(Doubtful(reader), batch, rules, spread)


SPREADS = st.sampled_from([timedelta(0), timedelta(hours=1)])
WAYS = {"rules": st.sampled_from(RULES), "mapping": st.sampled_from([*MAPPINGS, RowMapping()]), "spread": SPREADS}


def to_lines(lines: list[bytes]) -> Any:
    """Give lines as Spark gives them."""
    count = len(lines)
    columns = {"file": (["a"] * count, "string"), "block": ([0] * count, "int64"), "value": (lines, "binary")}
    return pyarrow.RecordBatch.from_pydict({name: pyarrow.array(*column) for name, column in columns.items()})


@settings(max_examples=150)
@given(lines=LINES, **WAYS)
def test_lines_of_json_get_the_same_verdicts(
    lines: list[bytes], rules: EnvelopeRules, mapping: RowMapping, spread: timedelta
) -> None:
    """Line ends, marks, escapes, numbers, moments, limits, depths, keys: whatever may be in them."""
    compare(LineReader({("a", 0): 0}, mapping), to_lines(lines), rules, spread)


@pytest.mark.parametrize("name", NASTY)
def test_every_nasty_value_gets_the_same_verdict(name: str) -> None:
    """Each alone in a row that is ordinary otherwise, among ordinary rows."""
    good = {"kind": '"feed"', "id": '"1"', "scheduled_at": '"2026-12-01T12:00:00Z"', "payload": '{"a":1}'}
    lines = [json.dumps(good)] + [
        "{" + ",".join(f'"{key}":{text}' for key, text in {**good, name: value}.items()) + "}"
        for value in [*NASTY[name], *ORDINARY.get(name, [])]
    ]
    batch = to_lines([line.encode() for line in lines] + WHOLE)

    compare(LineReader({("a", 0): 0}, RowMapping()), batch, RULES[0], timedelta(0))


def test_zeroes_keep_their_signs() -> None:
    """A column that looks constant is written as one value; 0.0 and -0.0 are equal, but differ in a digest."""
    lines = [b'{"kind":"feed","id":"1","tolerance_seconds":%b}' % zero for zero in (b"0.0", b"-0.0", b"0")]
    compare(LineReader({("a", 0): 0}, RowMapping()), to_lines(lines), RULES[0], timedelta(0))


def test_cells_of_ten_megabytes_are_judged_by_the_rules() -> None:
    """As lines and as cells."""
    text = "x" * 10_000_000
    lines = [b'{"kind":"feed","id":"1"}', json.dumps({"kind": "feed", "id": "2", "payload": text}).encode()]
    compare(LineReader({("a", 0): 0}, RowMapping()), to_lines(lines), RULES[0], timedelta(0))
    compare(*to_cells({"kind": ["feed"] * 2, "id": ["1", text], "payload": [text, "1"]}), RULES[0], timedelta(0))


def to_cells(columns: dict[str, Any]) -> tuple[CellReader, Any]:
    """Give a table's columns as Spark gives them, and their reader."""
    arrays = [column if isinstance(column, pyarrow.Array) else pyarrow.array(column) for column in columns.values()]
    cells = pyarrow.StructArray.from_arrays(arrays, list(columns))
    count = len(arrays[0])
    table = {"file": pyarrow.array(["a"] * count), "row": pyarrow.array(range(count), "int64"), "cells": cells}
    return CellReader({}, RowMapping(), tuple(columns), "a"), pyarrow.RecordBatch.from_pydict(table)


def unescaped(name: str) -> list[Any]:
    """The nasty texts of a field, as a table holds them."""
    found: list[Any] = [None, ""]
    for text in (*ORDINARY.get(name, ()), *NASTY[name]):
        found.append(text)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value):
            found.append(value)
    return found


CELL_TEXTS = {name: unescaped(name) for name in ORDINARY}
CELLS: dict[str, list[tuple[Any, list[Any]]]] = {
    "id": [
        ("int64", [1, -5, 2**62, None]),
        ("float64", [1.0, 1.5, float("nan"), None]),
        ("binary", [b"a", b"\xff", None]),
        (pyarrow.decimal128(38, 0), [Decimal(7), None]),
        ("date32", [date(2026, 12, 1), None]),
    ],
    "tenant": [("int64", [7, None]), (pyarrow.decimal128(4, 1), [Decimal("1.5"), None])],
    "scheduled_at": [
        (
            pyarrow.timestamp("us", "UTC"),
            [NOON, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC), TEN_YEARS, None],
        ),
        (pyarrow.timestamp("us"), [NOON.replace(tzinfo=None), None]),
        (pyarrow.timestamp("us", "Europe/Berlin"), [NOON, None]),
        ("date32", [date(2026, 12, 1), None]),
    ],
    "payload": [
        (
            pyarrow.struct({"a": pyarrow.float64(), "b": "string"}),
            [{"a": 1.0, "b": "ä"}, {"a": float("nan"), "b": None}],
        ),
        (pyarrow.list_(pyarrow.int64()), [[1, 2], [], None]),
        (pyarrow.decimal128(20, 2), [Decimal("1.50"), Decimal("2.00"), None]),
        (pyarrow.timestamp("us", "UTC"), [NOON, None]),
        ("time64[us]", [None, NOON.time()]),
        ("uint64", [0, 2**64 - 1]),
        ("float32", [0.1, float("inf")]),
        (pyarrow.map_("string", "int64"), [[("a", 1)], None]),
        ("bool", [True, False, None]),
    ],
    "priority": [
        ("int32", [1, 5, 6, None]),
        ("float64", [3.0, 3.5, float("nan"), None]),
        ("bool", [True, None]),
        (pyarrow.decimal128(4, 1), [Decimal("2.0"), Decimal("2.5"), None]),
    ],
    "tolerance_seconds": [
        (pyarrow.duration("s"), [timedelta(seconds=5), None]),
        (pyarrow.decimal128(4, 1), [Decimal("2.5"), None]),
        ("float64", [0.0, -0.0, 2592000.1, float("nan"), float("inf")]),
        ("int64", [5, 2**62]),
    ],
}


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Columns of a table, of types that Parquet files hold."""
    count = draw(st.integers(1, 8))
    names = [
        "kind",
        "id",
        *draw(st.lists(st.sampled_from([name for name in ORDINARY if name not in ("kind", "id")]), unique=True)),
    ]
    columns: dict[str, Any] = {}

    for name in names:
        kind, values = draw(st.sampled_from([("string", CELL_TEXTS[name]), *CELLS.get(name, [])]))
        columns[name] = pyarrow.array([draw(st.sampled_from(values)) for _ in range(count)], kind)

    return columns


@settings(max_examples=200)
@given(columns=tables(), rules=WAYS["rules"], spread=SPREADS)
def test_cells_get_the_same_verdicts(columns: dict[str, Any], rules: EnvelopeRules, spread: timedelta) -> None:
    """Whatever types and values the columns have."""
    compare(*to_cells(columns), rules, spread)


def test_ordinary_rows_don_t_need_the_rules() -> None:
    """Neither lines nor cells; else the fast path would be of no use."""
    rows = [{name: json.loads(values[n % len(values)]) for name, values in ORDINARY.items()} for n in range(6)]
    lines = [json.dumps(row).encode() for row in rows]
    cells = {"kind": ["feed"] * 2, "id": ["a", "ä"], "scheduled_at": [NOON, None], "payload": ['{"a": 1}', None]}
    for reader, batch in ((LineReader({("a", 0): 0}, RowMapping()), to_lines(lines)), to_cells(cells)):
        verdicts = list(Validator(reader, RULES[0], NOON, timedelta(0)).validate([batch]))

        assert [each.num_rows for each in verdicts] == [batch.num_rows]  # doubtful rows would be in a second one
