"""Reconcile against a real server: each row of a source is where it should be, or is reported."""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.client import Client

from activities import Again, Context, Done, Message
from activities.api.handler import handler
from shared.messages.envelope import Envelope, EnvelopeRules
from shared.settings import Settings
from spark.prepare.manifest import Manifest
from spark.prepare.prepare import PrepareOptions, prepare
from spark.report.reconcile import DIFFERENCES, Reconciliation, reconcile
from spark.source.source import Source
from starter.control import Control
from starter.starting.bulk import BulkStarter
from tests.conftest import Serve, wait_until
from tests.support.subjects import declare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

MESSAGES = 40
MISSED = "7"
LOST = "8"
REFUSED = "9"


@pytest.fixture
async def manifest(spark: "SparkSession", tmp_path: Path, kind: str) -> Manifest:
    """Forty messages, two duplicates and a reject."""
    lines = [json.dumps({"kind": kind, "id": str(n % MESSAGES)}) for n in range(MESSAGES + 2)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*lines, "{"]), "utf-8")
    options = PrepareOptions(rules=EnvelopeRules({kind: "short"}))
    source = Source(place=str(path), form="jsonl")
    return await asyncio.to_thread(prepare, spark, source, tmp_path / "manifest", options)


async def start(starter: BulkStarter, kind: str, ids: list[str]) -> list[tuple[str, str]]:
    """Start messages and give (id, run id)."""

    async def envelopes() -> AsyncIterator[tuple[str, Envelope]]:
        for message_id in ids:
            yield message_id, Envelope(kind=kind, id=message_id, lane="short")

    return [(receipt.tag, receipt.run_id) async for receipt in starter.start_all(envelopes())]


def write_receipts(manifest: Manifest, number: int, kind: str, receipts: list[tuple[str, str, str, str]]) -> None:
    """Write (id, outcome, reason, run id) as a start does."""
    rows = [
        {
            "workflow_id": f"{kind}:{message_id}", "kind": kind, "id": message_id, "run_id": run_id, "outcome": outcome,
            "reason": reason, "attempts": 1, "started_at": datetime.now(UTC),
        }
        for message_id, outcome, reason, run_id in receipts
    ]  # fmt: skip
    (manifest.folder / "receipts").mkdir(exist_ok=True)
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows), manifest.folder / "receipts" / f"{number}.parquet")


def differences(manifest: Manifest) -> dict[str, str]:
    """Give what was written down, by id."""
    lines = (manifest.folder / DIFFERENCES).read_text("utf-8").splitlines()
    return {line["id"]: line["problem"] for line in map(json.loads, lines)}


async def test_each_row_is_found_or_told(
    *,
    spark: "SparkSession",
    manifest: Manifest,
    client: Client,
    control: Control,
    settings: Settings,
    serve: Serve,
    kind: str,
    encoding: str,
) -> None:
    """What is not alive, finished, stopped or rejected is listed as missing, until a second start puts it there."""

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Again | Done:
        return Done() if int(message.id) < 5 else Again(after=timedelta(days=1))

    starter = BulkStarter(client, settings, encodings=declare(encoding, kind))
    ids = [str(n) for n in range(MESSAGES) if str(n) not in (MISSED, LOST, REFUSED)]
    async with serve(work):
        runs = await start(starter, kind, ids)
        receipts = [(message_id, "started", "", run_id) for message_id, run_id in runs]
        told = [(LOST, "started", "", "gone"), (REFUSED, "rejected", "is too large", "")]
        write_receipts(manifest, 0, kind, receipts + told)
        await control.stop(kind, "39")

        async def has_settled() -> bool:
            shown = [await control.look_up(kind, str(n)) for n in (*range(5), 39)]
            return [listed.state for listed in shown] == ["done"] * 5 + ["stopped"]

        await wait_until(has_settled, "five messages are done and one is stopped")
        first = await reconcile(spark, manifest, control)
        problems = differences(manifest)
        await start(starter, kind, [MISSED, LOST])
        write_receipts(manifest, 1, kind, [(name, "started", "", "r") for name in (MISSED, LOST)])
        second = await reconcile(spark, manifest, control)

    assert _counts(first) == {"alive": 31, "finished": 5, "stopped": 1, "rejected": 2, "duplicates": 2, "missing": 2}
    assert not first.is_complete
    assert problems == {
        MISSED: "was not started, and the server knows nothing of it",
        LOST: "was started (run gone), and the server knows nothing of it",
    }
    assert _counts(second) == {"alive": 33, "finished": 5, "stopped": 1, "rejected": 2, "duplicates": 2, "missing": 0}
    assert second.is_complete
    assert (
        sorted(path.name for path in manifest.folder.iterdir() if "part" in path.name or path.suffix == ".jsonl") == []
    )


def _counts(balance: Reconciliation) -> dict[str, int]:
    names = ("alive", "finished", "stopped", "rejected", "duplicates", "missing")
    return {name: getattr(balance, name) for name in names}


async def test_what_ended_otherwise_and_what_the_folder_lost_are_told(
    *, spark: "SparkSession", manifest: Manifest, client: Client, control: Control, settings: Settings, kind: str
) -> None:
    """A terminated workflow is no message that finished; a manifest without its rejects proves nothing."""
    await start(BulkStarter(client, settings), kind, [str(n) for n in range(MESSAGES)])
    await client.get_workflow_handle(f"{kind}:3").terminate()
    for path in (manifest.folder / "rejects").glob("*.parquet"):
        path.unlink()

    async def is_indexed() -> bool:
        known = {message_id async for message_id, _ in control.list_known(kind)}
        return known == {str(n) for n in range(MESSAGES) if n != 3}

    await wait_until(is_indexed, "the index, which lags behind, shows what was started and terminated")
    balance = await reconcile(spark, manifest, control)

    assert (balance.alive, balance.missing, balance.is_complete) == (MESSAGES - 1, 1, False)
    assert balance.examples[0].problem == f"was not started, and its workflow {kind}:3 is terminated"
    assert balance.flaws == ["rejects/ holds 0 rows, manifest.json says 1; restore the folder, or prepare it anew"]
