"""The report on real Spark: events become tables that add up, and a page that a browser shows."""

import asyncio
import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer

from shared.errors import GiveUp
from shared.messages.envelope import EnvelopeRules
from shared.settings import Settings
from spark.prepare.manifest import Manifest
from spark.prepare.prepare import PrepareOptions, prepare
from spark.report.page import Table
from spark.report.report import make_report, read_outcomes
from spark.source.source import Source
from spark.tables import to_uri
from starter.local.kafka.broker import EmbeddedBroker
from tests.support.topics import create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
MESSAGES = 20
CHROMIUM = shutil.which("chromium") or ""


@pytest.fixture
def manifest(spark: "SparkSession", tmp_path: Path) -> Manifest:
    """Twenty messages, half of them with receipts, and a reject."""
    lines = [json.dumps({"kind": "feed", "id": f"<b>{n}</b>"}) for n in range(MESSAGES)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*lines, '{"kind":"<i>"}']), "utf-8")
    options = PrepareOptions(rules=EnvelopeRules({"feed": "short"}), begin=NOON)
    made = prepare(spark, Source(place=str(path), form="jsonl"), tmp_path / "manifest", options)
    receipts = spark.range(MESSAGES // 2).selectExpr(
        "concat('feed:<b>', id, '</b>') workflow_id", "'feed' kind", "concat('<b>', id, '</b>') id", "'r' run_id",
        "if(id = 0, 'rejected', 'started') outcome", "'' reason", "1L attempts", "now() started_at",
    )  # fmt: skip
    receipts.write.parquet(to_uri(made.folder / "receipts"))

    return made


def make_events() -> list[dict[str, Any]]:
    """Ten cycles of each message, of which every second visit finds a change; the last one parks message 0."""
    events: list[dict[str, Any]] = []
    for n in range(MESSAGES):
        for version in range(10):
            due = NOON + timedelta(hours=version)
            is_end = n == 0 and version == 9
            events.append(
                {
                    "schema_version": 1,
                    "kind": "feed",
                    "id": f"<b>{n}</b>",
                    "version": version,
                    "outcome": "reject" if is_end else "again",
                    "state": "parked" if is_end else "active",
                    "reason": "<script>alert(1)</script>"
                    if is_end
                    else ("unchanged, 304", "changed, 200")[version % 2],
                    "lane": "short",
                    "priority": 3,
                    "due_at": _write(due),
                    "started_at": _write(due + timedelta(seconds=n)),
                    "duration_seconds": 0.25,
                    "lateness_seconds": float(n),
                    "attempt": 1,
                    "next_due_at": None if is_end else _write(due + timedelta(hours=1, seconds=n)),
                    "correlation_id": "",
                }
            )

    stranger = {**events[0], "id": "another's"}
    return [*events, events[5], stranger]  # one comes twice


def _write(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def by_name(tables: list[Table]) -> dict[str, list[tuple[Any, ...]]]:
    """Give the rows of each table."""
    return {table.name: table.rows for table in tables}


def check(rows: dict[str, list[tuple[Any, ...]]]) -> None:
    """Every event of the manifest's messages counts once."""
    assert dict(rows["starts"]) == {
        "rows of the source": 21, "duplicates": 0, "rejected at prepare": 1, "messages": 20, "started": 9,
        "already running": 0, "rejected by the server": 1, "missing": 10,
    }  # fmt: skip
    assert rows["outcomes"] == [("feed", "short", "again", 199, 0.25), ("feed", "short", "reject", 1, 0.25)]
    assert rows["lateness_by_lane"][0][:2] == ("short", 200)
    assert rows["lateness_by_lane"][0][-1] == 19.0
    assert [count for _, count in rows["lateness"][:4]] == [10, 40, 100, 50]  # below 1 s, 1 s, 5 s, 15 s
    assert {begin: count for begin, count in rows["intervals"] if count} == {3600.0: 199}
    assert {begin: count for begin, count in rows["changes"] if count} == {0.4: 1, 0.5: 19}
    assert rows["parked"] == [("feed", "<script>alert(1)</script>", 1)]


@pytest.mark.long
def test_a_report_adds_up_and_can_be_read(spark: "SparkSession", manifest: Manifest, tmp_path: Path) -> None:
    """From JSON lines and from Parquet alike; the page asks nobody for anything, and runs nothing that messages say."""
    lines = tmp_path / "events.jsonl"
    lines.write_text("\n".join([*map(json.dumps, make_events()), "{"]), "utf-8")
    events = read_outcomes(spark, str(lines), Settings())
    events.write.parquet(to_uri(tmp_path / "events"))
    tables = make_report(spark, manifest, events, tmp_path / "report")
    same = make_report(spark, manifest, read_outcomes(spark, str(tmp_path / "events"), Settings()), tmp_path / "same")

    check(by_name(tables))
    assert by_name(same) == by_name(tables)
    for table in tables:
        written = spark.read.parquet(to_uri(tmp_path / "report" / f"{table.name}.parquet"))
        assert (tuple(written.columns), written.count()) == (table.columns, len(table.rows))
    page = (tmp_path / "report" / "report.html").read_text("utf-8")
    assert "<script" not in page
    assert all(source.startswith("data:image/png;base64,") for source in re.findall(r'(?:src|href)="([^"]*)', page))
    assert page.count("<h2>") == len(tables) + 1


def test_a_report_of_starts_alone_needs_no_events(spark: "SparkSession", manifest: Manifest, tmp_path: Path) -> None:
    """Before anything has run."""
    tables = make_report(spark, manifest, None, tmp_path / "report")

    assert [table.name for table in tables] == ["starts", "rejects"]
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.long
async def test_events_are_read_from_their_topic(
    spark: "SparkSession", manifest: Manifest, broker: EmbeddedBroker, settings: Settings, tmp_path: Path
) -> None:
    """What is no event there is left out."""
    topic = settings.task_queue_prefix
    await create_topic(broker.address, topic, 2)
    producer: Any = AIOKafkaProducer(bootstrap_servers=broker.address)
    await producer.start()
    try:
        for n, event in enumerate(make_events()):
            await producer.send(topic, json.dumps(event).encode(), partition=n % 2)
        await producer.send(topic, b"{")
        await producer.flush()
    finally:
        await producer.stop()

    def report() -> list[Table]:
        events = read_outcomes(spark, f"kafka:{topic}", Settings(kafka_servers=broker.address))
        return make_report(spark, manifest, events, tmp_path / "report")

    check(by_name(await asyncio.to_thread(report)))


def test_a_table_that_holds_no_events_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    """By the first column that it lacks."""
    spark.range(3).write.parquet(to_uri(tmp_path / "numbers"))

    with pytest.raises(GiveUp, match=r"--outcomes: .*numbers has no column 'kind'; give events as dormice writes them"):
        read_outcomes(spark, str(tmp_path / "numbers"), Settings())


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium to render a page")
def test_the_page_renders(spark: "SparkSession", manifest: Manifest, tmp_path: Path) -> None:
    """A headless browser shows its headings, tables and pictures, and nothing that messages say acts."""
    lines = tmp_path / "events.jsonl"
    lines.write_text("\n".join(map(json.dumps, make_events())), "utf-8")
    make_report(spark, manifest, read_outcomes(spark, str(lines), Settings()), tmp_path / "report")
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}")
    page = (tmp_path / "report" / "report.html").as_uri()
    shot = tmp_path / "page.png"
    done = subprocess.run(
        (CHROMIUM, *options, "--window-size=1000,2400", f"--screenshot={shot}", page),
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    dom = subprocess.run((CHROMIUM, *options, "--dump-dom", page), capture_output=True, check=True, timeout=60).stdout

    assert shot.read_bytes().startswith(b"\x89PNG"), done.stderr
    assert shot.stat().st_size > 30_000  # not an empty page
    assert b"Revisit intervals" in dom
    assert b"&lt;script&gt;alert(1)" in dom
