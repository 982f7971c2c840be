"""The rehearsal on Spark: reads and simulates histories in tasks, to the same whole numbers as one process."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from shared.errors import GiveUp
from spark.source.parquet import ArrowTypes, open_parquet, restore_types
from spark.source.source import to_place
from spark.tables import rows_of, to_batches
from spark.tasks.pickling import PicklableByName
from starter.extras.rehearsal.history_file import ChangeHistories, HistoryColumns, guess_form
from starter.extras.rehearsal.rehearsal import is_sampled
from starter.extras.rehearsal.simulation import ChangeHistory, PacedPolicy, Period, Totals, rehearse_all
from starter.files.arrow import read_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_DDL = "id string, moment long, problem string"
PARTS_DDL = "part string"
BROKEN = "_broken_row"
"""The column in which Spark's readers put a row that is not as its file should be."""

Work = Callable[[Iterable[ChangeHistory]], Any]
"""What a task makes of its histories: a value that JSON has."""


class HistoryReader(PicklableByName):
    """Reads cells as one process does; a row that can't be used becomes a problem."""

    def __init__(self, columns: HistoryColumns, types: ArrowTypes) -> None:
        self._columns = columns
        self._types = types

    def read(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Give batches of ROWS_DDL."""
        return to_batches(map(self._read, self._read_cells(batches)), ROWS_DDL)

    def _read_cells(self, batches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            cells = restore_types(batch.to_struct_array(), self._types)
            yield from zip(*map(read_values, cells.flatten()), strict=True)

    def _read(self, row: Sequence[Any]) -> tuple[str | None, int | None, str | None]:
        *cells, broken = row
        if broken is not None:
            return None, None, f"is not like the others: {broken:.60}; correct it"
        try:
            name, moment = self._columns.read((cells[0], cells[1]))
        except ValueError as exc:
            return None, None, str(exc)
        return name, moment, None


class HistoryTask(PicklableByName):
    """Does some work on the histories of one partition."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def run(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Give what the work made, as one row of JSON."""
        return to_batches([(json.dumps(self._work(rows_of(batches))),)], PARTS_DDL)


class SparkHistories:
    """Histories in Spark: a row for each page, kept in the memory or on the disks of its executors."""

    def __init__(self, frame: "DataFrame", span: tuple[int, int] | None) -> None:
        self._frame = frame
        self._span = span

    @classmethod
    def load(cls, spark: "SparkSession", place: str, columns: HistoryColumns) -> "SparkHistories":
        """Read a file, folder or pattern; raises GiveUp for a row that can't be used."""
        from pyspark import StorageLevel  # noqa: PLC0415 — an extra, and slow to import
        from pyspark.sql.functions import expr  # noqa: PLC0415

        frame, types = _open(spark, place, columns)
        rows = frame.mapInArrow(HistoryReader(columns, types).read, ROWS_DDL)  # pyright: ignore[reportUnknownMemberType] — pyarrow has no types
        grouped = rows.groupBy("id").agg(
            expr("array_sort(collect_set(moment)) changes"), expr("min(problem) problem")
        )  # fmt: skip
        kept = grouped.persist(StorageLevel.MEMORY_AND_DISK)
        measures = ("count(id) pages", "min(get(changes, 0)) first", "max(try_element_at(changes, -1)) last")
        found = kept.agg(*map(expr, measures), expr("min(problem) problem")).collect()[0]
        if found["problem"] is not None:
            raise GiveUp(f"{place}: a row: {found['problem']}")
        if not found["pages"]:
            raise GiveUp(f"{place}: is empty; give rows of {columns.id} and {columns.changed_at}")
        span = None if found["first"] is None else (found["first"], found["last"])
        return cls(kept.select("id", "changes"), span)

    def find_span(self) -> tuple[int, int] | None:
        """Give the first and the last change of all."""
        return self._span

    def count_pages(self, period: Period) -> Counter[int]:
        """Count the pages by their changes inside the period."""
        pages = Counter[int]()
        for part in self._work(partial(_count_pages, period)):
            pages.update({int(changes): number for changes, number in part.items()})
        return pages

    def run(self, period: Period, policies: Sequence[PacedPolicy]) -> list[Totals]:
        """Give the totals of each policy over all pages."""
        totals = rehearse_all((), period, policies)
        for part in self._work(partial(_rehearse, period, policies)):
            for total, document in zip(totals, part, strict=True):
                total.add(Totals(**document))
        return totals

    def sample(self, share: float) -> ChangeHistories:
        """Give the pages that `is_sampled` picks."""
        return ChangeHistories(dict(pair for part in self._work(partial(_sample, share)) for pair in part))

    def _work(self, work: Work) -> list[Any]:
        done = self._frame.mapInArrow(HistoryTask(work).run, PARTS_DDL)  # pyright: ignore[reportUnknownMemberType] — pyarrow has no types
        return [json.loads(row[0]) for row in done.collect()]


def _count_pages(period: Period, histories: Iterable[ChangeHistory]) -> dict[int, int]:
    return Counter(len(period.cut(changes)) for _, changes in histories)


def _rehearse(period: Period, policies: Sequence[PacedPolicy], histories: Iterable[ChangeHistory]) -> Any:
    return [totals.to_document() for totals in rehearse_all(histories, period, policies)]


def _sample(share: float, histories: Iterable[ChangeHistory]) -> list[ChangeHistory]:
    return [(name, changes) for name, changes in histories if is_sampled(name, share)]


def _open(spark: "SparkSession", place: str, columns: HistoryColumns) -> tuple["DataFrame", ArrowTypes]:
    """Give the columns of the id and of the moment, a third one with rows that could not be read, and their types."""
    form = guess_form(place)
    path = to_place(place)
    reader = spark.read.option("columnNameOfCorruptRecord", BROKEN).option("escape", '"')
    names = [columns.id, columns.changed_at]
    types: ArrowTypes = {}

    if form == "parquet":
        table, types = open_parquet(spark, path, {})
        frame = table.selectExpr("*", f"cast(null as string) {BROKEN}")
    elif form == "jsonl":
        frame = reader.schema(_to_schema(names)).json(path)
    else:
        header = reader.csv(path, header=True).columns
        frame = reader.schema(_to_schema(header)).csv(path, header=True)
        frame = frame.toDF(*(name.strip() for name in frame.columns))

    columns.check(frame.columns, place)
    return frame.select(*(_quote(name) for name in (*names, BROKEN))), types


def _to_schema(names: Iterable[str]) -> str:
    return ", ".join(f"{_quote(name)} string" for name in (*names, BROKEN))


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
