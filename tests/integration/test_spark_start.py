"""Starts on a real Spark and a real server: every message once, whatever is killed, and a receipt for each."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyspark.errors import AnalysisException
from temporalio.client import Client

from activities.handlers.echo import echo
from shared.errors import ServerUnreachable
from shared.messages.placement import workflow_id
from shared.settings import Settings
from spark.format.data_source import register_temporal
from spark.prepare.manifest import Manifest
from spark.session.session import DAEMON
from spark.start import StartOptions, StartSummary, start_manifest
from spark.tasks.options import write_settings_options
from starter.control import Control
from starter.local.embedded import EmbeddedServer
from tests.conftest import Serve, wait_until
from tests.support.alive import check_alive, count_alive, end_packs
from tests.support.handlers import note_packed
from tests.support.manifests import LATER, in_thread, make_frame, read_receipts, write_manifest
from tests.support.processes import ROOT, ending_family, is_gone, kill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

COUNT = 1000
AWAY_SECONDS = 20.0
INDEX_SECONDS = 200.0  # a killed server writes the index entry of a start in flight a minute later (seen: 57 s)
PACKS = 20
NOTHING: dict[str, str] = {}

Run = Callable[..., Awaitable[StartSummary]]


@pytest.fixture
def handled(settings: Settings) -> Settings:
    """The test's settings, with the handlers that tests have."""
    return replace(settings, handlers=("tests.support.handlers",))


@pytest.fixture
def manifest(tmp_path: Path, message_id: Callable[[], str]) -> Manifest:
    """A thousand messages that are due tomorrow, so that no worker is needed."""
    return write_manifest(tmp_path / "manifest", [{"kind": "echo", "id": message_id()} for _ in range(COUNT)])


@pytest.fixture
def run(spark: "SparkSession", server: EmbeddedServer, handled: Settings) -> Run:
    """Start a manifest, in this process."""

    async def run(manifest: Manifest, address: str = server.address, **options: Any) -> StartSummary:
        environ = {"TEMPORAL_ADDRESS": address}
        return await in_thread(
            spark, lambda: start_manifest(spark, manifest, handled, environ, StartOptions(**options))
        )

    return run


async def alive(client: Client, names: Iterable[str]) -> dict[str, str]:
    """Give the run of each of the messages named, as the server itself knows it."""
    return {name: (await client.get_workflow_handle(name).describe()).run_id for name in names}


def settled_runs(manifest: Manifest) -> dict[str, str]:
    """Give the run by name as the receipts have it; fails when a message has two receipts."""
    receipts = read_receipts(manifest)
    assert len({r["workflow_id"] for r in receipts}) == len(receipts)
    return {r["workflow_id"]: r["run_id"] for r in receipts}


async def test_each_message_is_started_and_has_a_receipt(run: Run, manifest: Manifest, client: Client) -> None:
    """The receipts name the runs that the server has, and nothing else is left in their folder."""
    summary = await run(manifest)

    assert (summary.now.started, summary.missing, summary.is_clean) == (COUNT, 0, True)
    runs = settled_runs(manifest)
    some = sorted(runs)[::20]
    assert await alive(client, some) == {name: runs[name] for name in some}
    assert all(path.suffix in (".parquet", ".crc") for path in (manifest.folder / "receipts").iterdir())


async def test_a_start_given_again_does_nothing(run: Run, manifest: Manifest) -> None:
    """What has a receipt is not sent a second time."""
    first = await run(manifest)
    runs = settled_runs(manifest)

    again = await run(manifest)

    assert (again.now.total, again.in_all) == (0, first.now)
    assert settled_runs(manifest) == runs


async def test_lost_receipts_are_told_again(run: Run, manifest: Manifest) -> None:
    """The manifest's id makes both starts one wish: the same runs are the answer."""
    await run(manifest)
    runs = settled_runs(manifest)
    for path in (manifest.folder / "receipts").iterdir():
        path.unlink()

    again = await run(manifest)

    assert again.now.started == COUNT
    assert settled_runs(manifest) == runs


async def test_a_row_that_can_not_be_started_is_a_receipt(
    run: Run, tmp_path: Path, message_id: Callable[[], str]
) -> None:
    """It fails nothing else, and is tried again only when asked."""
    rows = [{"kind": kind, "id": message_id()} for kind in ("echo", "nobody", "echo")]
    manifest = write_manifest(tmp_path / "manifest", rows)

    summary = await run(manifest)
    again = await run(manifest)
    tried = await run(manifest, retries_rejected=True)

    assert (summary.now.started, summary.now.rejected, summary.is_clean) == (2, 1, False)
    (refused, _) = [r for r in read_receipts(manifest) if r["outcome"] == "rejected"]
    assert refused["kind"] == "nobody"
    assert refused["reason"].startswith(
        "kind: no handler for 'nobody' is loaded; loaded: celery, dormice-canary, echo, "
    )
    assert (again.now.total, again.in_all) == (0, summary.now)
    assert tried.in_all == summary.now


async def test_packed_messages_arrive_pack_by_pack(
    run: Run, serve: Serve, client: Client, tmp_path: Path, message_id: Callable[[], str]
) -> None:
    """Each task owns its packs, so a pack gets all its messages in one call, which starts it: no worker is asked."""
    kind = note_packed.kind
    rows = [{"kind": kind, "id": message_id()} for _ in range(2 * COUNT)]
    manifest = write_manifest(tmp_path / "manifest", rows)
    await end_packs(client, kind, PACKS)
    async with serve(note_packed):
        summary = await run(manifest)
        again = await run(manifest)

    assert (summary.now.started, summary.is_clean, again.now.total) == (2 * COUNT, True, 0)
    receipts = read_receipts(manifest)
    assert sorted(r["workflow_id"] for r in receipts) == sorted(workflow_id(kind, row["id"]) for row in rows)
    runs_by_attempt = {(r["run_id"], r["attempts"]) for r in receipts}
    assert len(runs_by_attempt) == PACKS


@contextlib.asynccontextmanager
async def driver(
    server: EmbeddedServer, settings: Settings, manifest: Manifest, *arguments: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run `dormice spark start` as people do; ended with SIGKILL if it is still alive."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "starter", "spark", "start", str(manifest.folder), "--json"),
        *("--master", "local[2,4]", "--conf", "spark.driver.memory=1g", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "TEMPORAL_ADDRESS": server.address,
            "DORMICE_HANDLERS": "tests.support.handlers",
            "DORMICE_TASK_QUEUE_PREFIX": settings.task_queue_prefix,
            "DORMICE_IN_FLIGHT": "8",
        },
    )
    async with ending_family(process):
        yield process


@pytest.mark.long
async def test_a_driver_killed_in_mid_start_is_started_again(
    run: Run, server: EmbeddedServer, handled: Settings, manifest: Manifest, client: Client
) -> None:
    """Receipts of tasks that had finished survive, the rest is sent again, and each message has one run."""
    async with driver(server, handled, manifest, "--tasks", "10", "--set", "starts_per_second=200") as process:
        receipts = manifest.folder / "receipts"
        await wait_until(lambda: len(list(receipts.glob("*.parquet"))) >= 2, "two tasks finish", seconds=100)
        family = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        # a task that is just finishing may still write its receipts
        await wait_until(lambda: is_gone(family), "what it had started ends by itself")
    before = settled_runs(manifest)

    summary = await run(manifest)

    runs = settled_runs(manifest)
    assert 0 < len(before) < COUNT
    assert (summary.now.total, summary.is_clean) == (COUNT - len(before), True)
    assert summary.now.already_running == 0
    assert runs.items() >= before.items()
    assert len(runs) == COUNT
    await check_alive(client, handled, COUNT)


@pytest.mark.fault
@pytest.mark.long
async def test_a_killed_python_worker_is_replaced(
    server: EmbeddedServer, handled: Settings, manifest: Manifest, client: Client
) -> None:
    """Spark runs its task once more, and the server answers it as it did the first time."""
    async with driver(server, handled, manifest, "--tasks", "2", "--set", "starts_per_second=100") as process:
        await wait_until(lambda: count_alive(client, handled), "the first starts", seconds=100)
        killed = await wait_until(lambda: find_workers(process.pid), "a worker of Spark")
        killed[0].kill()
        out, err = await process.communicate()

    assert process.returncode == 0, err.decode()
    assert json.loads(out)["now"] == {"started": COUNT, "already_running": 0, "rejected": 0}
    assert len(settled_runs(manifest)) == COUNT
    await check_alive(client, handled, COUNT)


def find_workers(driver_id: int) -> list[psutil.Process]:
    """Give the Python processes in which tasks of a driver run: the children of Spark's daemon."""
    found: list[psutil.Process] = []
    for process in psutil.Process(driver_id).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = process.parent()
            if parent is not None and DAEMON in process.cmdline() and DAEMON in parent.cmdline():
                found.append(process)
    return found


@pytest.mark.fault
@pytest.mark.long
async def test_a_server_that_goes_away_is_waited_for(
    run: Run, server: EmbeddedServer, handled: Settings, manifest: Manifest, client: Client
) -> None:
    """Killed in mid-start and started again twenty seconds later, it has each message once."""
    running = asyncio.ensure_future(run(manifest, tasks=4))

    async def is_under_way() -> bool:
        return running.done() or await count_alive(client, handled) > 0

    await wait_until(is_under_way, "the first starts", seconds=100)
    assert not running.done()
    await kill(server)
    await asyncio.sleep(AWAY_SECONDS)
    await server.start()
    summary = await running

    assert (summary.now.total, summary.is_clean) == (COUNT, True)
    assert len(settled_runs(manifest)) == COUNT
    await check_alive(client, handled, COUNT, INDEX_SECONDS)


@pytest.fixture
def frame(spark: "SparkSession", message_id: Callable[[], str]) -> "DataFrame":
    """A frame of messages, as users make them."""
    register_temporal(spark)
    rows = [("echo", message_id(), LATER, '{"delay": 5}') for _ in range(100)]
    return make_frame(spark, rows, "kind string, id string, scheduled_at timestamp, payload string")


@pytest.fixture
def options(server: EmbeddedServer, handled: Settings, tmp_path: Path) -> dict[str, str]:
    """What a save needs."""
    receipts = str(tmp_path / "receipts")
    return {"address": server.address, "receipts": receipts, **write_settings_options(handled)}


async def test_a_frame_is_appended(frame: "DataFrame", options: dict[str, str], client: Client) -> None:
    """Each save is a wish of its own: the second one finds all of them running, with the same runs."""
    writing = frame.repartition(3).write.format("temporal").mode("append").options(**options)
    await in_thread(frame.sparkSession, writing.save)
    first = read_receipts(options["receipts"])
    await in_thread(frame.sparkSession, writing.save)

    both = read_receipts(options["receipts"])
    assert [r["outcome"] for r in first] == ["started"] * 100
    assert sorted(r["outcome"] for r in both) == ["already running"] * 100 + ["started"] * 100
    assert {(r["workflow_id"], r["run_id"]) for r in both} == {(r["workflow_id"], r["run_id"]) for r in first}
    name = first[0]["workflow_id"]
    assert await alive(client, [name]) == {name: first[0]["run_id"]}


async def test_a_frame_is_upserted_once_a_session(
    frame: "DataFrame", options: dict[str, str], serve: Serve, control: Control
) -> None:
    """What is alive gets its row's payload, however often the save is repeated; a new id is started."""
    from pyspark.sql.functions import lit  # noqa: PLC0415 — imports Spark's functions for this test alone

    session = frame.sparkSession
    frame = frame.limit(20).cache()
    append = frame.limit(19).write.format("temporal").mode("append").options(**options)
    upsert = frame.withColumn("payload", lit('{"delay": 6}')).write.format("temporal").mode("append")
    upsert = upsert.options(**options, upsert="true", session=uuid.uuid4().hex)
    await in_thread(session, append.save)
    await in_thread(session, upsert.save)
    await in_thread(session, upsert.save)
    outcomes = Counter(r["outcome"] for r in read_receipts(options["receipts"]))
    ids = [row.id for row in frame.select("id").collect()]

    async def read_all() -> list[tuple[Any, int]] | None:
        found = [(await control.show("echo", message_id)).status for message_id in ids]
        known = [(status["payload"], status["revision"]) for status in found if status is not None]
        return known if len(known) == len(ids) else None

    assert outcomes == {"started": 19 + 1 + 1, "revised": 19 + 19}
    async with serve(echo):
        # a busy server may lose a task on its way to a worker, and tells it anew after a minute
        found = await wait_until(read_all, "all messages answer", seconds=150)
    assert [payload for payload, _ in found] == [{"delay": 6}] * 20
    assert Counter(revision for _, revision in found) == {1: 19, 0: 1}


async def test_a_task_that_fails_twice_starts_nothing_twice(
    spark: "SparkSession", frame: "DataFrame", options: dict[str, str], client: Client, handled: Settings
) -> None:
    """Its first attempts end behind some of its rows; only the one that finished leaves receipts."""
    from pyspark.sql.functions import udf  # noqa: PLC0415 — imports Spark's functions for this test alone

    def fail_twice(message_id: str) -> str:
        from pyspark import TaskContext  # noqa: PLC0415 — in the worker

        context = TaskContext.get()
        if context is not None and context.attemptNumber() < 2 and message_id.endswith("7"):
            raise ValueError("the first attempts fail")
        return message_id

    shaky = frame.coalesce(1).withColumn("id", udf(fail_twice, "string", useArrow=False)("id"))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "5")
    try:
        await in_thread(spark, shaky.write.format("temporal").mode("append").options(**options).save)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")

    assert [r["outcome"] for r in read_receipts(options["receipts"])] == ["started"] * 100
    await check_alive(client, handled, 100)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("*", "overwrite", NOTHING), "mode: is overwrite, but messages that are alive stay; use append"),
        (("*", "ignore", NOTHING), "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        (("kind", "append", NOTHING), "the frame: has no column 'id'; its columns are 'kind'"),
        (("id", "append", NOTHING), "the frame: has no column 'kind'; add one, for example with lit('feed')"),
        (("kind, 1 as id", "append", NOTHING), "the frame: column 'id' is of type int; cast it to string"),
        (
            ("*", "append", {"receipt": "x"}),
            "receipt: there is no such option; known: address, encryptionKey, encryptionKeysFile,",
        ),
        (("*", "append", {"handlers": "nowhere"}), "handlers: module 'nowhere' can't be imported"),
        (("*", "append", {"address": "127.0.0.1:9"}), "no Temporal server answers at 127.0.0.1:9"),
        (
            ("*", "append", {"namespace": "nowhere"}),
            "the server has no namespace 'nowhere'; create it or set TEMPORAL_",
        ),
    ],
)
async def test_what_can_not_work_is_refused_before_a_row_is_started(
    frame: "DataFrame", options: dict[str, str], client: Client, change: tuple[str, str, dict[str, str]], sentence: str
) -> None:
    """One sentence, on the driver; no task has run."""
    columns, mode, more = change
    writing = frame.selectExpr(*columns.split(", ")).write.format("temporal").mode(mode).options(**{**options, **more})

    with pytest.raises(AnalysisException) as refused:
        await in_thread(frame.sparkSession, writing.save)

    assert sentence in str(refused.value)
    assert read_receipts(options["receipts"]) == []
    prefix = options["taskQueuePrefix"]
    assert (await client.count_workflows(f"TaskQueue = '{prefix}-short'")).count == 0


async def test_a_server_that_is_not_there_is_told_in_a_sentence(run: Run, manifest: Manifest) -> None:
    """Before any row is started."""
    with pytest.raises(ServerUnreachable, match=r"no Temporal server answers at 127\.0\.0\.1:9 "):
        await run(manifest, "127.0.0.1:9")
    assert not (manifest.folder / "receipts").exists()
