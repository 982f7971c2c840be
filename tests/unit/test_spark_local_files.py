"""What is found out about a source's files before Spark starts."""

import os
from pathlib import Path
from typing import Any

import pytest

from shared.errors import GiveUp, InvalidSetting
from shared.settings import Settings
from spark.session.session import reads_local_files
from spark.source.local_files import check_local_files
from spark.source.source import Source, open_source
from starter.files.mapping import RowMapping
from starter.files.table_options import TableOptions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of rows, an empty file, an empty folder, and files that Spark leaves out."""
    (tmp_path / "rows.csv").write_text("id\n")
    (tmp_path / "empty.csv").touch()
    for name in ("nothing", "hidden", "nested/deep"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("_SUCCESS", ".rows.csv.crc"):
        (tmp_path / "hidden" / name).write_text("x")
    (tmp_path / "nested" / "deep" / "rows.csv").write_text("id\n")
    return tmp_path


@pytest.mark.parametrize("place", ["rows.csv", "*.csv", "r?ws.csv", "nested", "nested/*", "", "file://rows.csv"])
def test_files_with_data_pass(folder: Path, place: str) -> None:
    """By path, pattern or URI, also deep inside a folder and beside empty ones."""
    scheme, _, name = place.rpartition("//")
    check_local_files(f"{scheme}{'//' if scheme else ''}{folder / name}", is_default=True)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("absent.csv", "{}: there is no such file or folder; give the path of one"),
        ("*.parquet", "{}: there is no such file or folder; give the path of one"),
        ("empty.csv", "{}: is empty; there is nothing to start"),
        ("nothing", "{}: is empty; there is nothing to start"),
        ("hidden", "{}: is empty; there is nothing to start"),
    ],
)
def test_what_has_nothing_to_read_is_refused(folder: Path, place: str, sentence: str) -> None:
    """With the sentence that Spark's own answer is translated to."""
    with pytest.raises(GiveUp) as told:
        check_local_files(str(folder / place), is_default=True)
    assert str(told.value) == sentence.format(folder / place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_refused(folder: Path) -> None:
    """The file or folder is named."""
    (folder / "rows.csv").chmod(0)
    with pytest.raises(GiveUp, match=r"rows\.csv: can't be read \(Permission denied\); give the path of a file"):
        check_local_files(str(folder / "rows.csv"), is_default=True)


@pytest.mark.parametrize(
    "place", ["s3a://bucket/absent.csv", "hdfs://host/absent", "/absent/{a,b}.csv", "/absent/[a].csv"]
)
def test_what_only_spark_can_know_passes(place: str) -> None:
    """Other file systems, and patterns that Spark reads in its own way."""
    check_local_files(place, is_default=True)


def test_a_path_is_left_to_spark_where_it_may_be_on_another_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a cluster, or where Hadoop is configured; a URI of this machine is not."""
    assert reads_local_files(Settings())
    assert not reads_local_files(Settings(), master="spark://host:7077")
    assert not reads_local_files(Settings(), conf={"spark.hadoop.fs.defaultFS": "hdfs://host"})
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert not reads_local_files(Settings())

    check_local_files("/absent/rows.csv", is_default=False)
    with pytest.raises(GiveUp, match="there is no such file"):
        check_local_files("file:///absent/rows.csv", is_default=False)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            Source(place="a.csv.zst", form="csv"),
            "a.csv.zst: Spark can't unpack Zstandard here; use gzip, or 'dormice load'",
        ),
        (
            Source(place="kafka:orders", form="kafka", mapping=RowMapping(table=TableOptions(("id",)))),
            "--columns, --header, --fill-rows, --zone and --at: are for rows; leave them out",
        ),
        (
            Source(place="a.parquet", form="parquet", mapping=RowMapping(table=TableOptions(has_header=False))),
            "--columns, --header, --no-header and --fill-rows: are for CSV; leave them out",
        ),
    ],
)
def test_what_a_source_can_not_have_is_refused_before_spark_is_asked(source: Source, sentence: str) -> None:
    """Here there is none that could be asked."""
    without_spark: Any = None
    with pytest.raises((GiveUp, InvalidSetting)) as refused:
        open_source(without_spark, source)

    assert str(refused.value) == sentence
