"""The rehearsal on real Spark: exactly what one process finds, whatever the form and the number of tasks."""

from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from shared.errors import GiveUp
from spark.rehearsal.histories import SparkHistories
from starter.extras.rehearsal.generator import GeneratorOptions, generate
from starter.extras.rehearsal.history_file import ChangeHistories, HistoryColumns, write_history
from starter.extras.rehearsal.policies import read_policy, to_datetime
from starter.extras.rehearsal.rehearsal import LocalHistories, RehearsalOptions, rehearse
from tests.unit.test_rehearsal import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

COLUMNS = HistoryColumns()
OPTIONS: GeneratorOptions = options_of(pages=120, burst=2.0, shape=0.5)


def write_rows(folder: Path, form: str) -> None:
    """Write a history in two files, with rows of one page in both."""
    folder.mkdir()
    rows = list(generate(OPTIONS))
    for number, some in enumerate((rows[1::2], [*rows[::2], ("never", None)])):
        if form != "jsonl":
            write_history(folder / f"{number}.{form}", some)
            continue
        lines = (f'{{"id": "{name}", "changed_at": {"null" if at is None else repr(at / 1e6)}}}\n' for name, at in some)
        (folder / f"{number}.jsonl").write_text("".join(lines))


@pytest.mark.parametrize(
    "form", ["csv", pytest.param("parquet", marks=pytest.mark.long), pytest.param("jsonl", marks=pytest.mark.long)]
)
def test_spark_finds_exactly_what_one_process_finds(spark: "SparkSession", tmp_path: Path, form: str) -> None:
    """With a budget, references and a function of the user's, down to the last digit."""
    write_rows(tmp_path / "history", form)
    names = ("adaptive", "fixed:6h", "tests.unit.test_rehearsal:double")
    options = RehearsalOptions(policies={name: read_policy(name) for name in names}, budget=60, is_daily=True)
    rows = [(name, at) for name, at in generate(OPTIONS)]
    whole = tmp_path / f"whole.{'csv' if form == 'jsonl' else form}"
    write_history(whole, [*rows, ("never", None)])
    in_spark = SparkHistories.load(spark, str(tmp_path / "history" / f"*.{form}"), COLUMNS)
    in_process = LocalHistories(ChangeHistories.load(str(whole), COLUMNS))
    found = rehearse(in_spark, options)
    expected = rehearse(in_process, options)

    assert found == expected
    assert found.to_document() == expected.to_document()
    assert sum(found.pages.values()) == len({name for name, _ in rows}) + 1
    assert dict(in_spark.sample(0.3)) == {name: list(changes) for name, changes in in_process.sample(0.3)}
    assert to_datetime(found.period.begin).year == 2024


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("id,changed_at\na,yesterday\n", "a row: changed_at: is 'yesterday', no moment; write 2026"),
        ("id,changed_at\na\n", "a row: is not like the others: a; correct it"),
        ("id,changed_at\n", "is empty; give rows of id and changed_at"),
        ("id;changed_at\na;\n", "has no column 'id'; its columns are 'id;changed_at'"),
    ],
)
def test_what_cannot_be_read_is_refused_as_in_one_process(
    spark: "SparkSession", tmp_path: Path, content: str, sentence: str
) -> None:
    """In one sentence that names the file."""
    path = tmp_path / "history.csv"
    path.write_text(content)
    with pytest.raises(GiveUp) as refusal:
        SparkHistories.load(spark, str(path), COLUMNS)

    assert str(refusal.value).startswith(f"{path}: {sentence}")


def test_typed_columns_of_a_history_are_read_as_in_one_process(spark: "SparkSession", tmp_path: Path) -> None:
    """UUIDs are ids, nanoseconds and decimals are moments; a moment that no calendar has is told."""
    ids = pa.array([bytes([number] * 16) for number in range(3)], pa.uuid())
    for name, counts, kind in (("good", [1_000, 2_000, None], pa.timestamp("ns", "UTC")), ("far", [2**62], None)):
        moments = pa.array(counts, pa.int64()).view(kind or pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"id": ids[: len(counts)], "changed_at": moments}), tmp_path / f"{name}.parquet")
    good, far = (str(tmp_path / f"{name}.parquet") for name in ("good", "far"))

    in_process = ChangeHistories.load(good, COLUMNS)
    assert dict(SparkHistories.load(spark, good, COLUMNS).sample(1.0)) == {n: list(at) for n, at in in_process}
    assert {name: list(changes) for name, changes in in_process}[str(UUID(int=0))] == [1]
    with pytest.raises(GiveUp, match="changed_at: is a moment outside of the years 1 to 9999; correct it"):
        SparkHistories.load(spark, far, COLUMNS)
    with pytest.raises(GiveUp, match="changed_at: is a moment outside of the years 1 to 9999; correct it"):
        ChangeHistories.load(far, COLUMNS)
