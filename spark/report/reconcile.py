"""Reconcile: proves that each row of a source is alive, finished, stopped, rejected or a duplicate, or lists it."""

import asyncio
import importlib
import json
import os
import shutil
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from spark.prepare.manifest import Manifest
from spark.tables import count_rows, read_table, to_batch, to_schema
from starter.control import Control
from starter.insight.reconcile import ALIVE, EXAMPLES_MAX, FINISHED, LOOKED_UP_MAX, PLACES, STOPPED, look_up_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITTEN_AT_ONCE = 20_000  # rows, to save memory
ROWS_PER_SHARE = 500_000  # of a join: each share costs a task in each of its steps, and must fit into memory
LOOKED_UP_AT_ONCE = 16
DIFFERENCES = "differences.jsonl"
REST = "rest.jsonl"  # file of the differences beyond LOOKED_UP_MAX: too many to look up and to keep in memory
KNOWN_DDL = "kind string, id string, state string"


@dataclass(frozen=True, slots=True)
class Difference:
    """One message that is in no place, and what is known of it."""

    row: int
    kind: str
    id: str
    problem: str


@dataclass(slots=True, kw_only=True)
class Reconciliation:
    """Where the rows of a source are now."""

    rows: int
    duplicates: int
    rejected: int  # rows rejected at prepare, and messages rejected by the server at the start
    alive: int = 0
    finished: int = 0
    stopped: int = 0
    missing: int = 0  # messages in none of these places; each is among the differences
    flaws: list[str] = field(default_factory=list[str])  # what is wrong with the manifest itself
    examples: list[Difference] = field(default_factory=list[Difference])  # the first; all are in the manifest's folder

    @property
    def is_complete(self) -> bool:
        """Whether each row is in exactly one place."""
        placed = self.alive + self.finished + self.stopped + self.rejected + self.duplicates
        return self.rows == placed and not self.missing and not self.flaws


async def reconcile(spark: "SparkSession", manifest: Manifest, control: Control) -> Reconciliation:
    """List what the server knows of a manifest's kinds, and compare; see `list_known` and `compare`."""
    with open_known(manifest) as known:
        await list_known(control, manifest, known)
        return await compare(spark, manifest, control, known)


@contextmanager
def open_known(manifest: Manifest) -> Generator[Path]:
    """Make a folder for what the server knows, for a `with` block."""
    known = manifest.folder / f"known.part-{os.getpid()}"
    known.mkdir()
    try:
        yield known
    finally:
        shutil.rmtree(known, ignore_errors=True)


async def list_known(control: Control, manifest: Manifest, known: Path) -> None:
    """Write each message that the server knows, and its place, into the folder `known`; needs no Spark.

    Reads solo messages from the index, and packs side by side: from the histories of their runs, or where those don't
    say which messages have ended, from the packs. Raises RetryLater when the server, or the worker of a pack that must
    be asked, does not answer.
    """
    kinds = await asyncio.to_thread(manifest.count_kinds)
    await _write_known(control, kinds, known / "known.parquet")


async def compare(spark: "SparkSession", manifest: Manifest, control: Control, known: Path) -> Reconciliation:
    """Compare a manifest with what is in `known`, and write any differences to differences.jsonl in its folder.

    A message that finished longer ago than the namespace's retention counts as missing.
    """
    balance, suspects = await asyncio.to_thread(_compare, spark, manifest, known)
    differences = await _look_closer(control, suspects, balance)
    balance.missing += len(differences)
    balance.examples = differences[:EXAMPLES_MAX]
    await asyncio.to_thread(_write_differences, manifest.folder / DIFFERENCES, differences, known / REST)

    return balance


async def _write_known(control: Control, kinds: Iterable[str], path: Path) -> None:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    schema = to_schema(KNOWN_DDL)
    rows = list[tuple[str, str, str]]()

    with parquet.ParquetWriter(path, schema) as writer:
        for kind in kinds:
            async for message_id, state in control.list_known(kind):
                rows.append((kind, message_id, PLACES[state]))
                if len(rows) == WRITTEN_AT_ONCE:
                    await asyncio.to_thread(writer.write_batch, to_batch(rows, schema))
                    rows = []
        await asyncio.to_thread(writer.write_batch, to_batch(rows, schema))


def _compare(spark: "SparkSession", manifest: Manifest, known: Path) -> tuple[Reconciliation, list[Difference]]:
    """Count the rows by place, and give LOOKED_UP_MAX messages at most that have none; the others go to REST."""
    session = spark.newSession()  # with a configuration of its own
    shares = max(spark.sparkContext.defaultParallelism, manifest.messages // ROWS_PER_SHARE)
    session.conf.set("spark.sql.shuffle.partitions", str(shares))

    placed = _place(session, manifest, read_table(session, known, KNOWN_DDL)).cache()
    try:
        counts = {row["place"]: row["count"] for row in placed.groupBy("place").count().collect()}
        # receipts are read only where the server's word is missing
        unplaced = _explain(manifest, placed.where("place is null")) if counts.get(None) else placed.limit(0)
        rows = unplaced.orderBy("row").toLocalIterator()
        missing = (Difference(row["row"], row["kind"], row["id"], row["problem"]) for row in rows)
        suspects = list(islice(missing, LOOKED_UP_MAX))
        with (known / REST).open("w", encoding="utf-8") as rest:
            beyond = _write_all(rest, missing)
    finally:
        placed.unpersist()

    balance = Reconciliation(
        rows=manifest.rows,
        duplicates=manifest.duplicates,
        rejected=manifest.rejects + counts.get(None, 0) - len(suspects) - beyond,
        missing=beyond,
        **{place: counts.get(place, 0) for place in (ALIVE, FINISHED, STOPPED)},
    )
    balance.flaws += _find_flaws(manifest, sum(counts.values()), count_rows(manifest.folder / "rejects"))
    return balance, suspects


def _place(spark: "SparkSession", manifest: Manifest, known: "DataFrame") -> "DataFrame":
    """Give each message's row, name, and its place by what the server knows, null if that is nothing."""
    # a message that ended during the listing is in two places; the later one counts
    states = known.groupBy("kind", "id").agg({"state": "max"}).toDF("kind", "id", "place")
    return manifest.read_messages(spark).select("row", "kind", "id").join(states, ["kind", "id"], "left")


def _explain(manifest: Manifest, unplaced: "DataFrame") -> "DataFrame":
    """Give those that are missing, and the problem that this would mean; the rejected ones are not missing."""
    receipts = manifest.read_last_receipts(unplaced.sparkSession)
    return (
        unplaced.join(receipts, ["kind", "id"], "left")
        .where("receipt is null or receipt.outcome <> 'rejected'")
        .selectExpr(
            "row",
            "kind",
            "id",
            "if(receipt is null, 'was not started', concat('was started (run ', receipt.run_id, ')')) problem",
        )
    )


def _find_flaws(manifest: Manifest, messages: int, rejects: int) -> list[str]:
    counted = {"messages": (messages, manifest.messages), "rejects": (rejects, manifest.rejects)}
    return [
        f"{name}/ holds {found:,} rows, manifest.json says {said:,}; restore the folder, or prepare it anew"
        for name, (found, said) in counted.items()
        if found != said
    ]


async def _look_closer(control: Control, suspects: list[Difference], balance: Reconciliation) -> list[Difference]:
    """Look up each message that the index did not show; one that is found after all is added to the balance."""
    room = asyncio.Semaphore(LOOKED_UP_AT_ONCE)

    async def look_up(suspect: Difference) -> Difference | str:
        async with room:
            place, problem = await look_up_place(control, suspect.kind, suspect.id)
        return place or replace(suspect, problem=f"{suspect.problem}, and {problem}")

    looked = await asyncio.gather(*map(look_up, suspects))
    for place in (ALIVE, FINISHED, STOPPED):
        setattr(balance, place, getattr(balance, place) + looked.count(place))
    return [each for each in looked if isinstance(each, Difference)]


def _write_differences(path: Path, differences: list[Difference], rest: Path) -> None:
    if not differences and not rest.stat().st_size:
        path.unlink(missing_ok=True)
        return
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file, rest.open(encoding="utf-8") as more:
        _write_all(file, differences)
        file.writelines(more)
    part.replace(path)


def _write_all(file: IO[str], differences: Iterable[Difference]) -> int:
    """Write differences as JSON, a line each; gives their number."""
    count = 0
    for difference in differences:
        file.write(json.dumps(asdict(difference), ensure_ascii=False) + "\n")
        count += 1
    return count
