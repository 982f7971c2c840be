"""Table options: a first line is a header or a row, and where nobody can know, a person is asked."""

from pathlib import Path
from typing import Any

import pytest

from shared.errors import GiveUp, InvalidSetting
from starter.files.mapping import RowMapping
from starter.files.rows import RowSource
from starter.files.table_options import TableOptions
from starter.records.mapping import FormatOptions

ASKED_ROW = "its first line looks like a row and not like a header"
ASKED_HEADER = "its first line looks like a header"

NAMED: list[tuple[str, str | None, dict[str, Any], list[Any]]] = [
    ("1,google.com\n", "rank,id", {}, [{"id": "google.com", "payload": {"rank": 1}}]),
    ('"1","a,b"\n', '"the, rank",id', {}, [{"id": "a,b", "payload": {"the, rank": 1}}]),
    ("rank,domain\n1,x\n", "rank,id", {"has_header": True}, [{"id": "x", "payload": {"rank": 1}}]),
    ("\ufeffrank,id\n", "rank,id", {"has_header": False}, [{"id": "id", "payload": {"rank": "rank"}}]),
    ("a,b\nc\n", "id,x", {"fills_rows": True}, [{"id": "a", "payload": {"x": "b"}}, {"id": "c", "payload": {}}]),
    (
        "google.com,id\nbing.com,1\n",
        None,
        {"has_header": True},
        [{"id": "1", "payload": {"google.com": "bing.com"}}],
    ),
]


def read(path: Path, content: str, id_from: str | None, columns: str | None, **options: Any) -> list[Any]:
    """Read a file, and give each row's fields, or why it has none."""
    path.write_text(content)
    options.setdefault("has_header", None)
    table = TableOptions.read(columns, **options)
    with RowSource(str(path), mapping=RowMapping(FormatOptions.read(id_from=id_from), None, table)) as source:
        return [row.flaw.problem if row.flaw else row.fields for row in source]


@pytest.mark.parametrize(
    ("content", "id_from"),
    [
        ("1,google.com\n2,facebook.com\n", "/google.com"),
        ("1,google.com\n2,facebook.com\n", None),
        ("1,google.com\n", "/google.com"),
        ("google.com\nbbc.co.uk\n", "/google.com"),
        ("sku-17,red\nsku-18,blue\n", "/sku-17"),
        ("2026-11-21,a\n2026-11-22,b\n", "/a"),
        ("https://a.example/,x\nhttps://b.example/,y\n", "/x"),
        ("ann@a.example\nbob@b.example\n", "/ann@a.example"),
        ("8c1c0f5e-6f0e-4a0e-9a3e-2f4c0a1b2c3d,x\n,y\n", "/x"),
        ("null,x\n1,y\n", "/x"),
        ('a,"{""b"": 1}"\n', "/a"),
    ],
)
def test_a_first_line_that_looks_like_a_row_is_asked_about(tmp_path: Path, content: str, id_from: str | None) -> None:
    """Taken for a header, it would be lost in silence; the sentence names both ways on."""
    with pytest.raises(GiveUp) as refused:
        read(tmp_path / "top.csv", content, id_from, None)

    assert ASKED_ROW in str(refused.value)
    assert "add --columns with a name for each column, like id" in str(refused.value)
    assert str(refused.value).endswith("or --header if these are the names")


@pytest.mark.parametrize(
    "content",
    [
        "rank,domain\n1,google.com\n",
        "user.id,meta.url\n42,https://a.example/x.y\n",
        "Price ($),address1,_id\n2,1 Main Street,a1\n",
        "sku_number,No\nsku-17,1\n",
        "id,2019,2020\n1,2,3\n",
        "größe,naïve\n1,2\n",
    ],
)
def test_a_header_is_taken_as_one(tmp_path: Path, content: str) -> None:
    """Names with dots, digits or signs are names where the cells below them look otherwise."""
    assert len(read(tmp_path / "a.csv", content, f"/{content.partition(',')[0]}", None)) == 1


@pytest.mark.parametrize(
    ("content", "columns", "options", "fields"),
    NAMED,
)
def test_columns_may_be_named_by_a_person(
    tmp_path: Path, content: str, columns: str | None, options: dict[str, Any], fields: list[Any]
) -> None:
    """The first line is a row then, unless it is said to be a header."""
    assert read(tmp_path / "a.csv", content, None, columns, **options) == fields


def test_columns_without_any_names_are_numbered(tmp_path: Path) -> None:
    """A pointer finds the second one as /2."""
    fields = read(tmp_path / "top.csv", "1,google.com\n", "/2", None, has_header=False)

    assert fields == [{"id": "google.com", "payload": {"1": 1, "2": "google.com"}}]


@pytest.mark.parametrize(
    ("content", "columns", "sentence"),
    [
        ("Rank,Domain\n1,google.com\n", "rank,id", f"{ASKED_HEADER} ('Rank', 'Domain'); add --header to leave it out"),
        ("Position,Domain\n1,google.com\n", "rank,id", ASKED_HEADER),
        ("1,google.com\n", "id", "--columns names 1 column, but the first line has 2 cells; name each column once"),
        ("1\n", "rank,id", "--columns names 2 columns, but the first line has 1 cell"),
        ("\n1,google.com\n", "rank,id", "its first line is blank; remove it, or name the columns with --columns"),
    ],
)
def test_columns_that_do_not_fit_the_file_are_refused(
    tmp_path: Path, content: str, columns: str, sentence: str
) -> None:
    """A header never becomes a message, and no cell gets the name of its neighbour."""
    with pytest.raises(GiveUp) as refused:
        read(tmp_path / "a.csv", content, None, columns)

    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("id_from", "content", "sentence"),
    [
        ("/ID", "id,url\n1,x\n", "has no column 'ID', which --id-from names; its columns are 'id', 'url'"),
        ("/a", "a,b,b\n1,2,3\n", "has two columns 'b'; rename one"),
    ],
)
def test_a_mapping_that_does_not_fit_the_columns_is_refused_whole(
    tmp_path: Path, id_from: str, content: str, sentence: str
) -> None:
    """Before any row is read: all of them would be refused, or lose a cell."""
    with pytest.raises(GiveUp) as refused:
        read(tmp_path / "a.csv", content, id_from, None)

    assert str(refused.value) == f"{tmp_path / 'a.csv'}: {sentence}"


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("", "--columns: leaves a name empty; name every column, for example rank,id"),
        ("id,", "--columns: leaves a name empty"),
        ("id, id", "--columns: names 'id' twice; give each column a name of its own"),
        ('id,"x', "--columns: is no line of CSV"),
    ],
)
def test_columns_that_are_no_names_are_refused(columns: str, sentence: str) -> None:
    """Before the file is opened."""
    with pytest.raises(InvalidSetting) as refused:
        TableOptions.read(columns, None)

    assert str(refused.value).startswith(sentence)


def test_options_of_csv_are_refused_for_other_formats(tmp_path: Path) -> None:
    """JSON and Parquet name their members and columns themselves."""
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(InvalidSetting, match="--columns, --header, --no-header and --fill-rows: are for CSV"):
        RowSource(str(tmp_path / "a.jsonl"), mapping=RowMapping(table=TableOptions(("id",))))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("id,url,interval\na1,https://exa", "has 2 cells for 3 columns; restore what is missing, or add --fill-rows"),
        ("id,url,interval\na1\n", "has 1 cell for 3 columns; restore what is missing"),
        ('id,url,interval\na1,"https://exa', "is no CSV (unexpected end of data)"),
        ("id,url,interval\na1,a,b,60\n", "has 4 cells for 3 columns; quote its commas"),
    ],
)
@pytest.mark.parametrize("id_from", [None, "/id"])
def test_a_row_without_a_cell_for_each_column_is_refused(
    tmp_path: Path, content: str, problem: str, id_from: str | None
) -> None:
    """A file that was cut off ends in half a row, and half a URL is another one."""
    (told,) = read(tmp_path / "a.csv", content, id_from, None)

    assert told.startswith(problem)
