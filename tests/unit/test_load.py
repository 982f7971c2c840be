"""Loads, without a server: what becomes of rows before they are started."""

import json
import os
import threading
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages.envelope import EnvelopeRules
from starter.files.duplicates import find_repeated
from starter.files.load import InputScan, Load, LoadCounts, LoadOptions
from starter.files.mapping import RowMapping
from starter.files.progress import open_progress
from starter.files.rows import RowSource
from starter.records.mapping import FormatOptions

RULES = EnvelopeRules({"feed": "short"})


async def check(path: Path, form: str | None = None) -> tuple[Load, list[dict[str, Any]]]:
    """Check all rows of a file, and give what was refused."""
    rejects = path.with_name("rejects.jsonl")
    with RowSource(str(path), form, RowMapping(FormatOptions(kind="feed"))) as source:
        load = Load(source, LoadOptions(rules=RULES, rejects=rejects))
        await load.run(None)
    return load, [json.loads(line) for line in rejects.read_bytes().splitlines()] if rejects.exists() else []


async def test_a_refused_row_of_parquet_has_its_number_and_is_whole(tmp_path: Path) -> None:
    """As one of a text file has its line."""
    pa: Any = pytest.importorskip("pyarrow")
    pq: Any = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"id": ["1", "2"], "priority": [3, 9]}), tmp_path / "a.parquet")

    _, rejects = await check(tmp_path / "a.parquet")

    assert rejects == [
        {
            "row_number": 2,
            "field": "priority",
            "reason": "is 9; give a whole number from 1 (first) to 5 (last)",
            "row": {"id": "2", "priority": 9},
        }
    ]


async def test_a_row_that_names_a_message_again_is_a_duplicate(tmp_path: Path) -> None:
    """Also where one id is a number, and where the kind is the one that is given for all; refused rows are none."""
    rows = ['{"id": "7"}', '{"id": 7, "kind": "feed"}', '{"id": "07"}', '{"id": "7", "priority": 9}', "[]", "[]"]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))

    load, rejects = await check(tmp_path / "a.jsonl")

    assert (load.summary.rows, load.summary.valid, load.summary.duplicates, load.summary.rejected) == (6, 2, 1, 3)
    assert [entry["line"] for entry in rejects] == [4, 5, 6]


async def test_a_file_without_rows_is_told_as_that(tmp_path: Path) -> None:
    """A header alone, or blank lines, are what is left of an export that went wrong."""
    for name, text in (("a.csv", "id,url\n"), ("b.jsonl", "\n\n")):
        (tmp_path / name).write_text(text)

        load, _ = await check(tmp_path / name)

        assert str(load.flaw) == f"{tmp_path / name}: holds no rows; there is nothing to start"


async def test_of_a_pipe_the_first_row_counts(tmp_path: Path) -> None:
    """It can be read but once; what came first may run already when the next one comes."""
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    writing = threading.Thread(target=pipe.write_text, args=('{"id": "1"}\n{"id": "1"}\n',))
    writing.start()

    load, _ = await check(pipe)
    writing.join()

    assert (load.rule, load.summary.valid, load.summary.duplicates) == ("first", 1, 1)


@given(st.lists(st.integers(-300, 300)))
def test_what_is_there_more_than_once_is_found(values: list[int]) -> None:
    """Neither less nor more."""
    assert find_repeated(values) == {value for value, count in Counter(values).items() if count > 1}


def test_hashes_take_eight_bytes_each() -> None:
    """Tens of millions of rows fit into the memory of a small machine."""
    tracemalloc.start()
    try:
        repeated = find_repeated(hash(str(number)) for number in range(100_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert not repeated
    assert peak < 100_000 * 12


def test_progress_is_what_has_been_done_and_not_what_has_been_read() -> None:
    """All rows may have been read long before the server has taken the first one."""
    summary = LoadCounts(rows=200, scan=InputScan(position=5000))
    read = summary.done_position
    summary.started = 40
    summary.rejected = 10

    assert (read, summary.done_position) == (0, 1250)


def test_progress_without_an_end_in_sight_is_told_as_that(capsys: pytest.CaptureFixture[str]) -> None:
    """What nothing has been done of yet will take nobody knows how long."""
    with open_progress(5000) as progress:
        progress.show(0.0, 0, 5.0, "0 started")
        progress.show(2500.0, 50, 5.0, "50 started")

    assert capsys.readouterr().err.splitlines() == [
        "0 started; 0 a second; 0% done",
        "50 started; 10 a second; 50% done, 5.0 s to go",
    ]
