"""Readers: every input becomes rows, a reject, or one sentence."""

import gzip
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import GiveUp, InvalidEnvelope
from shared.messages.envelope import EnvelopeRules, parse_envelope
from starter.files.columns import read_cell
from starter.files.rows import LINE_MAX_BYTES, Line, Row, RowSource, is_open_record, read_csv_records

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")

NAIVE = datetime.fromisoformat("2026-01-01T00:00:00")
RULES = EnvelopeRules({"feed": "short"})
Write = Callable[[str, bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file and give its path."""

    def write(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        return str(path)

    return write


def read(path: str, form: str | None = None) -> list[Row]:
    """Read a whole file."""
    with RowSource(path, form) as source:
        return list(source)


def reason(row: Row) -> str:
    """Say why a row is refused, here or by the envelope's own rules."""
    if row.flaw is not None:
        return str(row.flaw)
    with pytest.raises(InvalidEnvelope) as caught:
        parse_envelope(row.fields, RULES)
    return str(caught.value)


def test_jsonl_gives_one_row_a_line(write: Write) -> None:
    """Numbers are those of the lines, blank lines count but give nothing, `end` is the offset behind the line."""
    path = write("a.jsonl", b'{"kind": "feed", "id": "1"}\r\n\n  \n{"id": "\xc3\xa9"}')

    assert read(path) == [
        Row(1, {"kind": "feed", "id": "1"}, '{"kind": "feed", "id": "1"}', 29),
        Row(4, {"id": "é"}, '{"id": "é"}', 45),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_line(write: Write) -> None:
    """Files from Windows begin with one."""
    assert read(write("a.jsonl", b'\xef\xbb\xbf{"id": "1"}\n'))[0].fields == {"id": "1"}
    assert read(write("a.csv", b"\xef\xbb\xbfid,kind\n1,feed\n"))[0].fields == {"id": "1", "kind": "feed"}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"{", "envelope: is no JSON (expecting property name enclosed in double quotes at character 2)"),
        (b"[1]", "envelope: is a list; send one JSON object"),
        (b"\xff{}", "envelope: is not UTF-8 text (byte 1); save the file as UTF-8"),
        (b'{"id": "\xe9"}', "envelope: is not UTF-8 text (byte 9); save the file as UTF-8"),
        (b"[" * 100_000, "envelope: is nested deeper than 64 levels"),
        (
            b'{"a":"' + b"x" * LINE_MAX_BYTES + b'"}',
            f"envelope: is a line of more than {LINE_MAX_BYTES} bytes; shorten it",
        ),
        (b"x" * (3 * LINE_MAX_BYTES), f"envelope: is a line of more than {LINE_MAX_BYTES} bytes; shorten it"),
    ],
    ids=["broken", "list", "byte", "latin-1", "deep", "long", "very-long"],
)
def test_a_bad_line_is_refused_alone(write: Write, line: bytes, sentence: str) -> None:
    """The lines around it are read as if it were not there, and keep their numbers."""
    rows = read(write("a.jsonl", b'{"id": "1"}\n' + line + b'\n{"id": "3"}\n'))

    assert [row.number for row in rows] == [1, 2, 3]
    assert reason(rows[1]).startswith(sentence)
    assert [rows[0].fields, rows[2].fields] == [{"id": "1"}, {"id": "3"}]


def test_what_is_kept_of_a_bad_line_can_be_written_as_text(write: Write) -> None:
    """Bytes that are no text are shown as escapes, a line without end is cut."""
    bad, long = read(write("a.jsonl", b"\xff!\n" + b"x" * (2 * LINE_MAX_BYTES)))

    assert bad.original == "\\xff!"
    assert len(long.original) == 1001


def test_csv_columns_are_envelope_fields_and_the_rest_is_the_payload(write: Write) -> None:
    """Empty cells are absent; what looks like a number, true, false or null to JSON is that in the payload."""
    path = write(
        "a.csv",
        b"kind,id,priority,tolerance_seconds,lane,url,depth,on\nfeed,007,2,60,,http://x,7,true\nfeed,2,,,,,,null\n",
    )

    assert [row.fields for row in read(path)] == [
        {
            "kind": "feed",
            "id": "007",
            "priority": 2,
            "tolerance_seconds": 60,
            "payload": {"url": "http://x", "depth": 7, "on": True},
        },
        {"kind": "feed", "id": "2", "payload": {}},
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3600", 3600),
        ("-0.25", -0.25),
        ("1e3", 1000.0),
        ("4111111111111111", 4111111111111111),
        ("0", 0),
        ("007", None),
        ("+5", None),
        ("5.", None),
        (" 5", None),
        ("1_000", None),
        ("\u0663", None),
        ("9007199254740993", None),
        ("0.12345678901234567890", None),
        ("1e999", None),
        ("1e-999", None),
        ("1" * 5000, None),
        ("NaN", None),
        ("True", None),
    ],
)
def test_a_cell_is_the_number_that_json_reads_and_all_other_cells_stay_text(text: str, value: float | None) -> None:
    """Leading zeroes, signs, and digits that a float would lose are somebody's text."""
    read_back = read_cell(text)

    assert (type(read_back), read_back) == (type(value), value) if value is not None else read_back == text


def test_a_whole_number_is_an_id_in_json_lines_and_in_parquet(write: Write, tmp_path: Path) -> None:
    """As its decimal text; neither a float nor a boolean is one."""
    lines = read(write("a.jsonl", b'{"kind": "feed", "id": 42}\n{"kind": "feed", "id": 4.0}\n'))
    table = parquet(tmp_path, kind=["feed"], id=[-42])

    assert parse_envelope(lines[0].fields, RULES).id == "42"
    assert parse_envelope(table[0].fields, RULES).id == "-42"
    assert reason(lines[1]) == "id: is 4.0, no whole number; put it in quotes, as it is to be written"


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (b"id;kind\n1;feed\n", "looks like columns separated by semicolons; save it with commas between them"),
        (b'"id";"kind"\n', "looks like columns separated by semicolons; save it with commas between them"),
        (b"id\tkind\n", "looks like columns separated by tabs; save it with commas between them"),
        (b"id,kind\r1,feed\r", "looks like a file whose lines end in a carriage return alone; save it with line feeds"),
        (b"id\r1\r", "looks like a file whose lines end in a carriage return alone; save it with line feeds"),
    ],
)
def test_a_table_of_another_dialect_is_told_how_to_be_saved(write: Write, header: bytes, sentence: str) -> None:
    """What spreadsheets write in some countries, and did on old machines."""
    with pytest.raises(GiveUp, match=sentence):
        read(write("a.csv", header))


@pytest.mark.parametrize("count", [2, 100_000])
def test_json_lines_that_end_in_carriage_returns_are_told_so(write: Write, count: int) -> None:
    """They are one line to every reader, however long; one document with such white space in it is fine."""
    many = read(write("a.jsonl", b'{"id": "1"}\r' * count))
    one = read(write("b.jsonl", b'{"id":\r"1"}\r\n'))

    assert reason(many[0]).startswith("envelope: looks like lines of a file whose lines end in a carriage return alone")
    assert one[0].fields == {"id": "1"}


@pytest.mark.parametrize(
    ("cell", "payload"),
    [
        (b'"{""a"": [1, 2.5]}"', {"a": [1, 2.5]}),
        (b'"""quoted"""', "quoted"),
        (b"plain text", "plain text"),
        (b"12", 12),
        (b"007", "007"),
        (b"true", True),
        (b"null", None),
        (b"NaN", "NaN"),
        ('"é, ü"'.encode(), "é, ü"),
        (b'"two\nlines"', "two\nlines"),
    ],
)
def test_a_payload_column_is_json_or_text(write: Write, cell: bytes, payload: Any) -> None:
    """What is no JSON is taken as it stands."""
    assert read(write("a.csv", b"id,payload\n1," + cell + b"\n"))[0].fields["payload"] == payload  # pyright: ignore[reportArgumentType, reportCallIssue] — an object


def test_a_table_without_further_columns_gives_no_payload(write: Write) -> None:
    """An empty payload cell is absent too."""
    assert read(write("a.csv", b"id\n1\n"))[0].fields == {"id": "1"}
    assert read(write("b.csv", b"id,payload\n1,\n"))[0].fields == {"id": "1"}


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (b"feed,1,high", "priority: is 'high'; give a whole number from 1 (first) to 5 (last)"),
        (b"feed,1,2.5", "priority: is 2.5; give a whole number"),
        (b"feed,1,1_0", "priority: is '1_0'; give a whole number"),
        (b"feed,,3", "id: is missing"),
        (b"feed", "envelope: has 1 cell for 3 columns; restore what is missing, or add --fill-rows"),
        (b"feed,1,2,3", "envelope: has 4 cells for 3 columns; quote its commas"),
        (b'"feed"x,1,2', "envelope: is no CSV (',' expected after '\"'); correct its quotes"),
        (b"feed,\xff,2", "envelope: is not UTF-8 text (byte 6)"),
        (b"feed,a\x00b,2", "id: has the control character"),
        (b"feed,1," + b"9" * 200_000, "envelope: is no CSV (field larger than field limit (131072))"),
    ],
    ids=["word", "float", "underscore", "no-id", "short", "long", "quotes", "latin-1", "nul", "huge"],
)
def test_a_bad_csv_record_is_refused_alone(write: Write, record: bytes, sentence: str) -> None:
    """The records around it are read as if it were not there, and it is kept as it was."""
    rows = read(write("a.csv", b"kind,id,priority\nfeed,before,1\n" + record + b"\nfeed,after,1\n"))

    assert [row.number for row in rows] == [2, 3, 4]
    assert reason(rows[1]).startswith(sentence)
    assert rows[1].original == record.decode(errors="backslashreplace")
    assert rows[2].fields == {"kind": "feed", "id": "after", "priority": 1}


def test_a_payload_that_begins_like_json_must_be_json(write: Write) -> None:
    """A forgotten brace is a mistake, not a text."""
    row = read(write("a.csv", b'id,payload\n1,"{""a"": 1,}"\n'))[0]

    assert reason(row).startswith("payload: begins like JSON but is no JSON")


def test_a_quote_that_is_never_closed_loses_nothing_silently(write: Write) -> None:
    """The records that it swallows are in the refused row, whole."""
    rows = read(write("a.csv", b'id,kind\n1,feed\n2,"feed\n3,feed\n'))

    assert [row.number for row in rows] == [2, 3]
    assert rows[1].original == '2,"feed\n3,feed'
    assert reason(rows[1]) == "envelope: is no CSV (unexpected end of data); correct its quotes"


def test_records_of_several_lines_are_numbered_by_their_first(write: Write) -> None:
    """The number is what an editor shows."""
    rows = read(write("a.csv", b'id,payload\n\n1,"a\nb"\n\n2,c\n'))

    assert [row.number for row in rows] == [3, 6]


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (b"", "is empty; there is nothing to start"),
        (b"\n1,2\n", "its first line is blank; remove it, or name the columns with --columns"),
        (b"kind,ID\n", "has no column 'id'; its columns are 'kind', 'ID'"),
        (b"id,url,url\n", "has two columns 'url'; rename one"),
        (b"id,kind,\n", "column 3 has no name; give it one"),
        (
            b"id,payload,url\n",
            "column 'url' is no field of the envelope, and beside a column 'payload' there is no place",
        ),
        (b'id,"kind\n', "its first line is no CSV (unexpected end of data)"),
        (b"id,\xff\n", "its first line is not UTF-8 text (byte 4)"),
        (b'id,"kind"x\n', "its first line is no CSV (',' expected after"),
    ],
)
def test_a_table_of_which_nothing_could_come_is_refused_whole(write: Write, header: bytes, sentence: str) -> None:
    """One sentence that names the file and the column, before anything starts."""
    path = write("a.csv", header)

    with pytest.raises(GiveUp) as caught:
        read(path)

    assert str(caught.value).startswith(f"{path}: {sentence}")
    assert "\n" not in str(caught.value)


def test_column_names_may_be_padded(write: Write) -> None:
    """Blanks around a name are no part of it."""
    assert read(write("a.csv", b" id , kind\n1,feed\n"))[0].fields == {"id": "1", "kind": "feed"}


@pytest.mark.parametrize(
    ("name", "content", "form", "sentence"),
    [
        ("a.jsonl", b"", None, "is empty; there is nothing to start"),
        ("a.parquet", b"", None, "is empty; there is nothing to start"),
        ("a.parquet", b"PAR1 and nothing behind", None, "can't be read as Parquet (Parquet magic bytes not found"),
        ("a.jsonl", b"\x1f\x8b\x08\x00\n\x01", None, "can't be unpacked (Compressed file ended before"),
        ("a.csv", b"\x28\xb5\x2f\xfdno frame", None, "can't be read ("),
        (
            "a.csv",
            b"PK\x03\x04rest",
            None,
            "looks like a ZIP archive or a spreadsheet; unpack it first, or save it as CSV",
        ),
        ("a.csv", b"PAR1rest", None, "looks like Parquet; add --format parquet"),
        ("a.csv", "id,kind\n".encode("utf-16"), None, "looks like text in UTF-16; save the file as UTF-8"),
        ("a.csv", b"\xc9,\r1\r", None, "its first line is not UTF-8 text (byte 1); save the file as UTF-8"),
        ("a.csv", b'\xef\xbb\xbf{"id": "1"}\n', None, "looks like JSON; add --format jsonl"),
        ("a.txt", b"{}", None, "its name tells no format; add --format with one of jsonl, csv, parquet"),
    ],
)
def test_a_file_that_is_none_of_the_formats_is_refused(
    write: Write, name: str, content: bytes, form: str | None, sentence: str
) -> None:
    """One sentence that names the file, the problem and what to do."""
    path = write(name, content)

    with pytest.raises(GiveUp) as caught:
        read(path, form)

    assert str(caught.value).startswith(f"{path}: {sentence}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, form: str) -> None:
    """Neither a missing file nor a folder is an input."""
    for path, problem in ((tmp_path / "none", "o such file"), (tmp_path, "directory")):
        with pytest.raises(GiveUp) as caught:
            read(str(path), form)

        assert str(caught.value).startswith(f"{path}: can't be read")
        assert problem in str(caught.value)


def test_a_format_given_by_hand_beats_the_name(write: Write) -> None:
    """A CSV file may be called anything."""
    assert read(write("a.jsonl", b"id\n1\n"), "csv")[0].fields == {"id": "1"}


@pytest.mark.parametrize("name", ["a.jsonl", "A.JSONL", "a.ndjson"])
def test_the_format_is_known_by_the_name(write: Write, name: str) -> None:
    """Upper and lower case are the same."""
    assert read(write(name, b"{}"))[0].fields == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'[{"id": "1"}, {"id": "2]\\\\\\""}]'),
        ("a.json", b'\xef\xbb\xbf \n[\r\n  {\r\n    "id": "1"\r\n  },\r\n  {"id": "2]\\\\\\""}\r\n]\r\n'),
        ("a.json", b'{\n  "id": "1"\n}\n{\n  "id": "2]\\\\\\""\n}\n'),
        ("a.json", b'{"id":\n"1"}, {"id": "2]\\\\\\""}'),
        ("a.ndjson", b'{"id": "1"}\n{"id": "2]\\\\\\""}\n'),
        ("a.json", b'{"id": "1"}\n{"id": "2]\\\\\\""}\n'),
        ("a.jsonl", b"[\n" + b" " * 200_000 + b'{"id": "1"},\n{"id": "2]\\\\\\""}\n]'),
    ],
    ids=range(7),
)
def test_json_may_be_a_list_or_one_object_after_another(write: Write, name: str, content: bytes) -> None:
    """As programs export it, whatever stands between the objects; compressed or not."""
    plain = read(write(name, content))
    zipped = read(write(f"{name}.gz", gzip.compress(content)))
    zstd = read(write("b.data", pa.compress(content, "zstd", asbytes=True)), "jsonl")

    for rows in (plain, zipped, zstd):
        assert [row.fields for row in rows] == [{"id": "1"}, {"id": '2]\\"'}]


def test_a_bad_item_of_a_list_is_refused_alone(write: Write) -> None:
    """By its number; one that is far too long, as well."""
    long = b'{"id": "' + b"x" * LINE_MAX_BYTES + b'"}'
    rows = read(write("a.json", b'[{"id": "1"}, {"id": }, 5, [{"id": "4"}], %b, {"id": "6"}]' % long))

    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [rows[0].fields, rows[5].fields] == [{"id": "1"}, {"id": "6"}]
    assert [reason(row).partition(";")[0] for row in rows[1:5]] == [
        "envelope: is no JSON (expecting value at character 8)",
        "envelope: is a number",
        "envelope: is a list",
        f"envelope: is a line of more than {LINE_MAX_BYTES} bytes",
    ]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.json", b'[{"id": "1"}, {"id": "2"}', "ends inside its list after row 2; restore the file"),
        ("a.jsonl.gz", gzip.compress(b'{"id": "1"}\n{"id": "2"}\n')[:-10], "can't be unpacked any further ("),
    ],
    ids=["a list", "gzip"],
)
def test_a_file_that_was_cut_off_says_so_after_its_rows(write: Write, name: str, content: bytes, sentence: str) -> None:
    """What came whole is read; that the rest is missing is never silent."""
    path = write(name, content)
    seen = list[Row]()
    with pytest.raises(GiveUp) as caught, RowSource(path) as source:
        seen.extend(source)

    assert str(caught.value).startswith(f"{path}: {sentence}")
    assert [row.fields for row in seen][:1] == [{"id": "1"}]


def parquet(path: Path, **columns: Any) -> list[Row]:
    """Write a Parquet file of these columns, and read it."""
    pq.write_table(pa.table(columns), path / "a.parquet")
    return read(str(path / "a.parquet"))


def test_parquet_columns_are_envelope_fields_and_the_rest_is_the_payload(tmp_path: Path) -> None:
    """Nulls are absent; integers that became floats beside a null are integers again."""
    rows = parquet(
        tmp_path,
        kind=["feed", "feed"],
        id=["1", "2"],
        priority=pa.array([2.0, None]),
        depth=[7, 8],
        seen=pa.array([NAIVE, None]),
        tags=[["a"], []],
    )

    assert [(row.number, row.fields, row.end) for row in rows] == [
        (
            1,
            {
                "kind": "feed",
                "id": "1",
                "priority": 2,
                "payload": {"depth": 7, "seen": "2026-01-01T00:00:00", "tags": ["a"]},
            },
            1,
        ),
        (2, {"kind": "feed", "id": "2", "payload": {"depth": 8, "tags": []}}, 2),
    ]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_parquet_moment_with_a_zone_is_taken(tmp_path: Path, unit: str) -> None:
    """Whatever its resolution and zone, it is the same moment."""
    moment = datetime(2026, 11, 21, 20, tzinfo=timezone(timedelta(hours=1)))
    rows = parquet(
        tmp_path, kind=["feed"], id=["1"], scheduled_at=pa.array([moment], pa.timestamp(unit, "Europe/Paris"))
    )

    assert parse_envelope(rows[0].fields, RULES).scheduled_at == datetime(2026, 11, 21, 19, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (
            {"scheduled_at": pa.array([NAIVE])},
            "scheduled_at: is '2026-01-01T00:00:00', which has no offset",
        ),
        (
            {"scheduled_at": pa.array([NAIVE.date()])},
            "scheduled_at: is '2026-01-01', a day alone; say when on that day",
        ),
        ({"priority": [2.5]}, "priority: is 2.5"),
        ({"tolerance_seconds": pa.array([Decimal("-1.5")])}, "tolerance_seconds: is -1.5; give seconds between"),
        ({"extra": [float("nan")]}, "extra: holds nan, which JSON does not know"),
        ({"extra": [b"\xff"]}, "extra: is binary and no UTF-8 text"),
        ({"payload": ['{"a":']}, "payload: begins like JSON but is no JSON"),
    ],
)
def test_a_parquet_row_that_cannot_become_a_message_is_refused(
    tmp_path: Path, column: dict[str, Any], sentence: str
) -> None:
    """A naive moment, a broken number and what JSON does not know are reported with their field."""
    rows = parquet(tmp_path, kind=["feed"], id=["1"], **column)

    assert reason(rows[0]).startswith(sentence)


def test_a_parquet_payload_column_is_json_text_or_a_value(tmp_path: Path) -> None:
    """Text is read like a CSV cell, nested columns are taken as they are."""
    text = parquet(tmp_path, id=["1", "2"], payload=['{"a": 1}', "plain"])
    nested = parquet(tmp_path, id=["1"], payload=[{"a": [1, None], "at": NAIVE}])

    assert [row.fields for row in text] == [{"id": "1", "payload": {"a": 1}}, {"id": "2", "payload": "plain"}]
    assert [row.fields for row in nested] == [{"id": "1", "payload": {"a": [1, None], "at": "2026-01-01T00:00:00"}}]


def test_a_parquet_file_damaged_in_the_middle_gives_what_comes_before(tmp_path: Path) -> None:
    """The rows that can be read are read, then one sentence says where it ends."""
    path = tmp_path / "a.parquet"
    ids = [f"message-{number:06}" for number in range(20_000)]
    pq.write_table(pa.table({"id": ids}), path, row_group_size=5_000, compression="NONE", use_dictionary=False)
    content = bytearray(path.read_bytes())
    place = content.index(b"message-010500")
    content[place - 8_000 : place] = b"\xff" * 8_000
    path.write_bytes(content)
    seen: list[Row] = []

    with (
        pytest.raises(GiveUp, match=r"can't be read after row [0-9]+ .*; restore the file"),
        RowSource(str(path)) as source,
    ):
        seen.extend(source)

    assert [row.fields["id"] for row in seen] == ids[: len(seen)]  # pyright: ignore[reportArgumentType, reportCallIssue] — objects
    assert 0 < len(seen) < 20_000


def test_the_end_of_the_last_row_is_known_beforehand(write: Write, tmp_path: Path) -> None:
    """Progress needs it: bytes of a text file, rows of a Parquet file."""
    lines = write("a.jsonl", b'{"id": "1"}\n{"id": "2"}\n')
    pq.write_table(pa.table({"id": ["1", "2", "3"]}), tmp_path / "a.parquet")

    for path, total in ((lines, 24), (str(tmp_path / "a.parquet"), 3)):
        with RowSource(path) as source:
            assert source.total == total
            assert [row.end for row in source][-1] == total


def test_json_numbers_and_text_survive_the_way(write: Write) -> None:
    """What is read is what was written, to the last digit."""
    value = {"id": "1", "payload": {"n": 12345678901234567890, "f": 0.1, "s": "\u2028\U0001f42d", "nil": None}}
    path = write("a.jsonl", json.dumps(value, ensure_ascii=False).encode() + b"\n")

    assert read(path)[0].fields == value


CSV_LINE = st.text(alphabet='",ab \r', max_size=12).map(lambda text: f"{text}\n".encode())


@given(st.lists(CSV_LINE, min_size=1, max_size=6))
@settings(max_examples=500)
def test_a_csv_file_may_be_cut_at_any_line_where_no_record_is_open(raw: list[bytes]) -> None:
    """Read as a whole or line by line, it gives the same rows; and where a record is open, it takes the next line."""
    lines = [Line.of(number, each, number) for number, each in enumerate(raw, start=2)]
    whole = list(read_csv_records(lines, list_cells))
    cut = [str(row) for line in lines for row in read_csv_records((line,), list_cells)]
    opened = next((line for line in lines if is_open_record(line.raw)), None)

    if opened is None:
        assert cut == list(map(str, whole))
    else:
        (record,) = [row for row in whole if row.number == opened.number]
        assert record.end > opened.number or opened is lines[-1]


def list_cells(cells: Sequence[Any]) -> dict[str, Any]:
    """Give the cells themselves."""
    return {"cells": list(cells)}
