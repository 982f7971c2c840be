"""The rehearsal on real Spark: exactly what one process finds, whatever the form and the number of tasks."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.errors import GiveUp
from spark.rehearsal import SparkHistories
from starter.insight.rehearsal.generator import GeneratorOptions, generate
from starter.insight.rehearsal.history_file import ChangeHistories, HistoryColumns, write_history
from starter.insight.rehearsal.policies import read_policy, to_datetime
from starter.insight.rehearsal.rehearsal import LocalHistories, RehearsalOptions, rehearse
from tests.unit.test_rehearsal import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    found, expected = rehearse(in_spark, options), rehearse(in_process, options)

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
