"""Loads: every row of a file is started once, refused with its reason, or told to have failed."""

import asyncio
import dataclasses
import json
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities import Context, Done, Message, handler
from shared.errors import GiveUp
from shared.messages.envelope import EnvelopeRules
from shared.settings import Settings
from starter.files.load import Load, LoadOptions
from starter.files.mapping import RowMapping
from starter.files.rows import RowSource
from starter.files.threaded_iterator import ThreadedIterator
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from starter.records.mapping import FormatOptions
from starter.starting.bulk import BulkStarter
from tests.conftest import Serve, wait_until

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")

LATER = (datetime.now(UTC) + timedelta(days=1)).isoformat()
RULES = EnvelopeRules({"sleeper": "short", "errand": "medium"})


@dataclasses.dataclass
class Folder:
    """A folder with one file to load."""

    path: Path
    prefix: str

    @property
    def rejects(self) -> Path:
        """Where refused rows go."""
        return self.path / "rows.jsonl.rejects.jsonl"

    def write(self, *rows: dict[str, Any] | str) -> None:
        """Write the file: objects as JSON with an id of this test's own, text as it is."""
        lines = [row if isinstance(row, str) else json.dumps(self.complete(row)) for row in rows]
        (self.path / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def complete(self, row: dict[str, Any]) -> dict[str, Any]:
        """Put what every row needs around what a test says of it."""
        return {"kind": "sleeper", "scheduled_at": LATER, **row, "id": f"{self.prefix}-{row.get('id', 0)}"}

    def read_rejects(self) -> list[dict[str, Any]]:
        """Read the refused rows."""
        return [json.loads(line) for line in self.rejects.read_bytes().splitlines()]

    async def load(
        self, starter: BulkStarter | None, name: str = "rows.jsonl", mapping: RowMapping | None = None, **options: Any
    ) -> Load:
        """Load the file once."""
        with RowSource(str(self.path / name), mapping=mapping) as source:
            load = Load(source, LoadOptions(rules=RULES, rejects=self.rejects, **options))
            await load.run(starter)
        return load


@pytest.fixture
def folder(tmp_path: Path, message_id: Callable[[], str]) -> Folder:
    """A folder of this test's own."""
    return Folder(tmp_path, message_id())


@pytest.fixture
def starter(client: Client, settings: Settings) -> BulkStarter:
    """What starts messages."""
    return BulkStarter(client, settings)


def counts(load: Load) -> tuple[int, int, int, int]:
    """Give started, already running, rejected and failed."""
    summary = load.summary
    return summary.started, summary.already_running, summary.rejected, summary.failed


async def test_every_row_becomes_a_message(
    client: Client, settings: Settings, starter: BulkStarter, folder: Folder
) -> None:
    """On its handler's lane or its own, with the payload that it brought."""
    folder.write({"id": 1}, {"id": 2, "lane": "long", "payload": {"a": 1}})

    load = await folder.load(starter)
    described = await client.get_workflow_handle(f"sleeper:{folder.prefix}-2").describe()

    assert counts(load) == (2, 0, 0, 0)
    assert described.task_queue == f"{settings.task_queue_prefix}-long"
    assert not folder.rejects.exists()


async def test_defaults_fill_what_rows_leave_out(
    client: Client, settings: Settings, starter: BulkStarter, folder: Folder
) -> None:
    """A row that names its own kind or lane keeps them."""
    folder.write({"id": 1, "kind": None}, {"id": 2, "kind": "errand", "lane": "short"})

    load = await folder.load(starter, mapping=RowMapping(FormatOptions(kind="sleeper"), "medium"))
    queues = [
        (await client.get_workflow_handle(f"{name}").describe()).task_queue
        for name in (f"sleeper:{folder.prefix}-1", f"errand:{folder.prefix}-2")
    ]

    assert counts(load) == (2, 0, 0, 0)
    assert queues == [f"{settings.task_queue_prefix}-medium", f"{settings.task_queue_prefix}-short"]


async def test_refused_rows_are_written_down_with_their_reasons(starter: BulkStarter, folder: Folder) -> None:
    """Line, field, reason and the row as it was; the others are started all the same."""
    folder.write({"id": 1}, "no json", {"id": 2, "priority": 9}, {"id": 3, "kind": "alien"}, '{"kind": "sleeper"}')

    load = await folder.load(starter)
    rejects = folder.read_rejects()

    assert counts(load) == (1, 0, 4, 0)
    assert [(entry["line"], entry["field"]) for entry in rejects] == [
        (2, "envelope"),
        (3, "priority"),
        (4, "kind"),
        (5, "id"),
    ]
    assert rejects[0]["reason"].startswith("is no JSON")
    assert rejects[0]["row"] == "no json"
    assert json.loads(rejects[1]["row"])["priority"] == 9
    assert not folder.rejects.with_name(f"{folder.rejects.name}.part").exists()


async def test_a_load_run_again_starts_nothing_twice(
    client: Client, settings: Settings, serve: Serve, folder: Folder
) -> None:
    """Not those that are alive, nor those that have finished."""

    @handler("errand", lane="medium")
    async def run(message: Message, ctx: Context) -> Done:
        return Done()

    folder.write({"id": 1}, {"id": 2}, {"id": 3, "kind": "errand", "scheduled_at": None})
    async with serve(run, lanes=("medium",)):
        first = await folder.load(BulkStarter(client, settings))
        await client.get_workflow_handle(f"errand:{folder.prefix}-3").result()
        second = await folder.load(BulkStarter(client, settings))
        anew = await folder.load(BulkStarter(client, settings, restarts_finished=True))

    assert [counts(load) for load in (first, second, anew)] == [(3, 0, 0, 0), (0, 3, 0, 0), (1, 2, 0, 0)]


@pytest.mark.parametrize(
    ("rule", "payloads"), [(None, {"a": 2, "b": 5}), ("newest", {"a": 2, "b": 5}), ("first", {"a": 0, "b": 3})]
)
async def test_of_several_rows_with_one_name_one_counts(
    client: Client, starter: BulkStarter, folder: Folder, rule: Any, payloads: dict[str, int]
) -> None:
    """By the rule of `spark prepare`, whose test has the same rows; refused rows are neither newest nor first."""
    moments = ("2036-06-01T00:00:00Z", "2036-06-03T00:00:00Z", "2036-06-03T01:00:00+01:00", None, None, None)
    rows = [{"id": "aaabbb"[n], "scheduled_at": moments[n], "payload": n, "lane": "long"} for n in range(6)]
    bad = {"id": "a", "scheduled_at": "2036-06-09T00:00:00Z", "priority": 9}
    folder.write(bad, *rows, {"id": "c"})

    load = await folder.load(starter, duplicates=rule)

    assert counts(load) == (3, 0, 1, 0)
    assert (load.summary.rows, load.summary.duplicates) == (8, 4)
    for name, payload in payloads.items():
        started = await anext(client.get_workflow_handle(f"sleeper:{folder.prefix}-{name}").fetch_history_events())
        inputs = started.workflow_execution_started_event_attributes.input.payloads
        (state,) = await client.data_converter.decode(inputs, [dict[str, Any]])
        assert state["payload"] == payload


async def test_rejects_are_replaced_whole_and_removed_by_a_clean_load(starter: BulkStarter, folder: Folder) -> None:
    """The file is always that of the last load."""
    folder.write("bad", "worse")
    await folder.load(starter)
    folder.write({"id": 1}, "bad again")
    await folder.load(starter)
    second = folder.read_rejects()
    folder.write({"id": 1})
    await folder.load(starter)

    assert [entry["row"] for entry in second] == ["bad again"]
    assert not folder.rejects.exists()


async def test_text_that_is_no_text_survives_into_the_rejects(folder: Folder) -> None:
    """Lone surrogates, control characters and foreign letters come out as JSON that can be read."""
    folder.write('{"kind": "sleeper", "id": "\\ud800"}', '{"kind": "sleeper", "id": "\\u0007"}', "é \u2028 🐭")

    await folder.load(None)

    assert [entry["row"] for entry in folder.read_rejects()] == [
        '{"kind": "sleeper", "id": "\\ud800"}',
        '{"kind": "sleeper", "id": "\\u0007"}',
        "é \u2028 🐭",
    ]


async def test_a_dry_run_judges_all_rows_and_starts_none(client: Client, folder: Folder) -> None:
    """The refused rows are written, so that they can be corrected before the load."""
    folder.write({"id": 1}, "bad", {"id": 2})

    load = await folder.load(None)

    assert (load.summary.rows, load.summary.valid, counts(load)) == (3, 2, (0, 0, 1, 0))
    assert [entry["line"] for entry in folder.read_rejects()] == [2]
    assert await client.count_workflows(f"WorkflowId = 'sleeper:{folder.prefix}-1'") == (
        await client.count_workflows("WorkflowId = 'nobody'")
    )


async def test_a_stopped_load_lets_its_starts_settle_and_can_be_run_again(
    client: Client, settings: Settings, folder: Folder
) -> None:
    """What was counted as started is alive, and the next run starts exactly the rest."""
    folder.write("bad", *({"id": number} for number in range(200)))
    with RowSource(str(folder.path / "rows.jsonl")) as source:
        load = Load(source, LoadOptions(rules=RULES, rejects=folder.rejects))
        loading = asyncio.create_task(load.run(BulkStarter(client, dataclasses.replace(settings, in_flight=8))))
        await wait_until(lambda: load.summary.started >= 50, "the load is under way")
        load.stop()
        await loading
    started, already_running, rejected, failed = counts(load)

    again = await folder.load(BulkStarter(client, settings))

    assert 50 <= started < 200
    assert (already_running, rejected, failed) == (0, 1, 0)
    assert counts(again) == (200 - started, started, 1, 0)


async def test_an_input_that_breaks_off_is_told_after_its_rows_were_taken(folder: Folder) -> None:
    """The rejects of the load before stay: nobody knows what the rest would have said."""
    path = folder.path / "rows.parquet"
    ids = [f"{number:06}" for number in range(6000)]
    table = pa.table({"kind": ["sleeper"] * 6000, "id": ids})
    pq.write_table(table, path, row_group_size=2000, compression="NONE", use_dictionary=False)
    content = bytearray(path.read_bytes())
    place = content.index(b"004500")
    content[place - 4000 : place] = b"\xff" * 4000
    path.write_bytes(content)
    folder.rejects.write_text("{}")

    load = await folder.load(None, "rows.parquet")

    assert 0 < load.summary.valid < 6000
    assert str(load.flaw).startswith(f"{path}: can't be read after row {load.summary.valid} (")
    assert folder.rejects.read_text() == "{}"


async def test_rejects_that_cannot_be_written_end_the_load(starter: BulkStarter, folder: Folder) -> None:
    """A load that can't write what it refused must not go on."""
    folder.write("bad", {"id": 1})
    folder.rejects.mkdir()

    with pytest.raises(GiveUp, match=r"--rejects: .* can't be written \(Is a directory\); give another path"):
        await folder.load(starter)


async def test_a_server_that_stays_away_ends_the_load_instead_of_failing_every_row(
    settings: Settings, folder: Folder
) -> None:
    """After as many failures in a row as starts are in flight, the rest is left for the next run."""
    options = EmbeddedOptions(data=folder.path / "server", port=find_free_port(), ui_port=None, slim=False)
    async with run_embedded(options) as server:
        client = await server.connect()
    impatient = dataclasses.replace(settings, in_flight=8, patience=timedelta(seconds=0.2))
    folder.write(*({"id": number} for number in range(500)))

    load = await folder.load(BulkStarter(client, impatient), failures_max=8)

    assert load.is_stopped
    assert 8 <= load.summary.failed < 100
    assert load.summary.started == 0


async def test_memory_stays_flat_whatever_the_size_of_the_file(folder: Folder) -> None:
    """Fifteen megabytes pass through less than five."""
    folder.write(*({"id": number, "payload": "x" * 3000} for number in range(5000)))
    tracemalloc.start()
    try:
        load = await folder.load(None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert load.summary.valid == 5000
    assert (folder.path / "rows.jsonl").stat().st_size > 15_000_000
    assert peak < 5_000_000


async def test_a_feed_gives_its_items_in_order_and_then_the_error() -> None:
    """Nothing that was read before is lost."""

    def read() -> Iterator[int]:
        yield from range(1000)
        raise GiveUp("it broke")

    items: list[int] = []

    async def take() -> None:
        async for item in ThreadedIterator(read()):
            items.append(item)  # noqa: PERF401 — what came before the error counts

    with pytest.raises(GiveUp, match="it broke"):
        await take()

    assert items == list(range(1000))


async def test_a_feed_whose_source_blocks_holds_nobody_up() -> None:
    """An item is given before the next one exists, and stopping does not wait for it."""
    gate = threading.Event()

    def read() -> Iterator[int]:
        yield 1
        gate.wait()
        yield 2

    iterator = ThreadedIterator(read())
    items: list[int] = []
    try:
        async for item in iterator:
            items.append(item)
            iterator.stop()
    finally:
        gate.set()

    assert items == [1]


async def test_a_feed_runs_ahead_by_a_bounded_number_of_items() -> None:
    """A source that is faster than its consumer waits."""
    read: list[int] = []

    def count() -> Iterator[int]:
        for number in range(100_000):
            read.append(number)
            yield number

    iterator = ThreadedIterator(count())
    async for _ in iterator:
        await wait_until(lambda: len(read) > 256, "the reader runs ahead")
        await asyncio.sleep(0)
        iterator.stop()

    assert len(read) < 1000
