"""Moving in from PostgreSQL: a table with a due time, procrastinate, APScheduler 3, by the page's own commands."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import BaseScheduler
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from sqlalchemy.pool import NullPool

from cluster.postgres import USER, Postgres
from examples.moving_in.apscheduler_jobs import Writer
from examples.starting import SHORT_LIVED
from starter.control import Control
from tests.conftest import Serve, wait_until
from tests.support.databases import jdbc_url, run_postgres
from tests.support.moving_in import Move, item_of, move_and_return, write_ledger
from tests.support.processes import run_to_end

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

NO_SERVER = "postgresql://postgres@127.0.0.1:1/postgres"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of this module's own."""
    with run_postgres() as running:
        yield running


@pytest.fixture
def database(postgres: Postgres, kind: str) -> str:
    """The address of a database of this test's own."""
    postgres.run(f'CREATE DATABASE "{kind}"')
    return f"postgresql://{USER}@127.0.0.1:{postgres.port}/{kind}"


def execute(database: str, sql: Any, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Run one statement, and give its rows."""
    with psycopg.connect(database) as connection:
        cursor = connection.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []


class OldPoller:
    """The usual poller of a table, with a lock for each row that it works on."""

    def __init__(self, database: str, ledger: Path) -> None:
        self._database = database
        self._ledger = ledger
        columns = "id bigserial PRIMARY KEY, run_at timestamptz, payload jsonb, done_at timestamptz"
        execute(database, f"CREATE TABLE reminders ({columns})")

    def add(self, item: str, due: datetime) -> None:
        """Insert a row."""
        row = (due, json.dumps({"item": item}))
        execute(self._database, "INSERT INTO reminders (run_at, payload) VALUES (%s, %s)", row)

    async def run_due(self, *, is_all: bool = False) -> None:
        """Run row by row what is due."""
        due = "done_at IS NULL" if is_all else "done_at IS NULL AND run_at <= now()"
        where = f"WHERE {due} ORDER BY run_at LIMIT 1 FOR UPDATE SKIP LOCKED"
        claim = f"SELECT id, payload FROM reminders {where}"  # noqa: S608 — our own words
        while True:
            with psycopg.connect(self._database) as connection:
                row = connection.execute(claim).fetchone()
                if row is None:
                    return
                write_ledger(self._ledger, "old", row[1]["item"])
                connection.execute("UPDATE reminders SET done_at = now() WHERE id = %s", (row[0],))

    def pending(self) -> dict[str, datetime]:
        """Give what is not done."""
        rows = execute(self._database, "SELECT payload, run_at FROM reminders WHERE done_at IS NULL")
        return {payload["item"]: due for payload, due in rows}


@pytest.mark.heavy
@pytest.mark.timeout(400)
async def test_a_table_moves_in_and_back(
    move: Callable[..., Move], postgres: Postgres, database: str, control: Control, serve: Serve
) -> None:
    """Spark reads it while its poller and producers go on; each row runs once, by the one whose turn it is."""
    jdbc = jdbc_url(postgres).replace(f"/{USER}?", f"/{database.rpartition('/')[2]}?")
    moving = move("From a table with a due time", DB=database, JDBC=jdbc, **SHORT_LIVED)

    await move_and_return(moving, OldPoller(database, moving.ledger), control, serve, is_brief=True)


class OldWorker:
    """A worker of procrastinate; producers and jobs are its own client's."""

    def __init__(self, database: str, ledger: Path) -> None:
        self._database = database
        self._ledger = ledger
        with App(connector=SyncPsycopgConnector(conninfo=database)).open() as app:
            app.schema_manager.apply_schema()

    def add(self, item: str, due: datetime) -> None:
        """Defer a job."""
        with App(connector=SyncPsycopgConnector(conninfo=self._database)).open() as app:
            app.configure_task("remind", schedule_at=due, priority=1).defer(item=item)

    async def run_due(self, *, is_all: bool = False) -> None:
        """Run a worker until nothing is due."""
        if is_all:
            execute(self._database, "UPDATE procrastinate_jobs SET scheduled_at = now() WHERE status = 'todo'")
        app = App(connector=PsycopgConnector(conninfo=self._database))

        @app.task(name="remind")
        def remind(item: str) -> None:
            write_ledger(self._ledger, "old", item)

        async with app.open_async():
            await app.run_worker_async(wait=False, install_signal_handlers=False)

    def pending(self) -> dict[str, datetime]:
        """Give the jobs that wait."""
        rows = execute(self._database, "SELECT args, scheduled_at FROM procrastinate_jobs WHERE status = 'todo'")
        return {arguments["item"]: due for arguments, due in rows}


@pytest.mark.parametrize("encoding", ["pack"])
async def test_procrastinate_moves_in_and_back(
    move: Callable[..., Move], database: str, control: Control, serve: Serve, encoding: str
) -> None:
    """Into packs, while its worker and producers go on; each job runs once, by the one whose turn it is."""
    moving = move("From procrastinate", DB=database)

    await move_and_return(moving, OldWorker(database, moving.ledger), control, serve)


class OldScheduler:
    """A scheduler of APScheduler 3, whose jobs call a function of the application."""

    def __init__(self, store: str, folder: Path, ledger: Path) -> None:
        self._store = store
        self._ledger = ledger
        text = "from pathlib import Path\n\nfrom tests.support.moving_in import write_ledger\n\n\ndef remind(item):\n"
        (folder / "shop.py").write_text(f"{text}    write_ledger(Path({str(ledger)!r}), 'old', item)\n")

    def add(self, item: str, due: datetime) -> None:
        """Add a job with a date."""
        scheduler = open_scheduler(self._store, Writer)
        scheduler.add_job("shop:remind", "date", run_date=due, kwargs={"item": item}, id=item)
        scheduler.shutdown()

    async def run_due(self, *, is_all: bool = False) -> None:
        """Run a scheduler until nothing is due."""
        scheduler = open_scheduler(self._store, BackgroundScheduler)
        for job in scheduler.get_jobs() if is_all else ():
            scheduler.modify_job(job.id, next_run_time=datetime.now(UTC))
        scheduler.resume()
        await wait_until(lambda: not self._has_due(scheduler), "no job is due")
        await asyncio.to_thread(scheduler.shutdown)  # waits for jobs at work

    def pending(self) -> dict[str, datetime]:
        """Give the jobs that wait."""
        scheduler = open_scheduler(self._store, Writer)
        found = {item_of({"kwargs": job.kwargs}): job.next_run_time for job in scheduler.get_jobs()}
        scheduler.shutdown()
        return found

    def _has_due(self, scheduler: Any) -> bool:
        return any(job.next_run_time <= datetime.now(UTC) for job in scheduler.get_jobs())


def open_scheduler(store: str, class_: type[BaseScheduler]) -> Any:
    """Open a scheduler that runs nothing yet."""
    scheduler: Any = class_(timezone=UTC, job_defaults={"misfire_grace_time": None})
    # a BackgroundScheduler opens a connection again after its shutdown
    scheduler.add_jobstore(SQLAlchemyJobStore(store, engine_options={"poolclass": NullPool}))
    scheduler.start(paused=True)
    return scheduler


@pytest.fixture
def store(database: str) -> str:
    """The same address, as SQLAlchemy writes it."""
    return database.replace("postgresql:", "postgresql+psycopg:")


@pytest.fixture
def _shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the application's module be imported."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("shop", None)


@pytest.mark.usefixtures("_shop")
async def test_apscheduler_moves_in_and_back(
    move: Callable[..., Move], database: str, store: str, control: Control, serve: Serve
) -> None:
    """While its scheduler and producers go on; each job runs once, by the one whose turn it is."""
    moving = move("From APScheduler 3", DB=database, STORE=store)

    await move_and_return(moving, OldScheduler(store, moving.folder, moving.ledger), control, serve)


@pytest.mark.usefixtures("_shop")
async def test_jobs_that_cant_be_carried_over_are_listed(move: Callable[..., Move], database: str, store: str) -> None:
    """A calendar, a paused job, arguments that are no JSON, another function; an interval keeps its beat and end."""
    moving = move("From APScheduler 3")
    OldScheduler(store, moving.folder, moving.ledger)
    scheduler = open_scheduler(store, Writer)
    later = datetime(2030, 1, 1, tzinfo=UTC)
    add: Any = scheduler.add_job
    add("shop:remind", "interval", hours=2, start_date=later, end_date=later.replace(year=2031), args=["a"], id="each")
    add("shop:remind", "cron", hour=8, args=["a"], id="cron")
    add("shop:remind", "date", run_date=later, args=["a"], id="paused", next_run_time=None)
    add("shop:remind", "date", run_date=later, args=[{1, 2}], id="set")
    add("tests.support.moving_in:item_of", "date", run_date=later, args=["a"], id="other")
    scheduler.shutdown()
    command = ("export", store, "--kind", "shop:remind=kind", "--to", "out.jsonl")
    code, _, err = await _run(moving, "apscheduler_jobs", *command)
    (line,) = [json.loads(text) for text in (moving.folder / "out.jsonl").read_text().splitlines()]

    assert code == 1
    assert err.splitlines() == [
        "left out: cron: its trigger is cron[hour='8']; give its handler a calendar: Again(at=cron(...))",
        "left out: other: its function has no kind; add --kind tests.support.moving_in:item_of=KIND",
        "left out: paused: is paused; resume or remove it",
        "left out: set: what it holds is no JSON (Object of type set is not JSON serializable)",
        "1 written, 4 left out",
    ]
    assert line == {
        "kind": "kind",
        "id": "each",
        "scheduled_at": "2030-01-01T00:00:00Z",
        "payload": {"args": ["a"], "kwargs": {}, "every_seconds": 7200.0},
        "expires_at": "2031-01-01T00:00:00+00:00",
    }

    execute(database, "UPDATE apscheduler_jobs SET job_state = 'no pickle' WHERE id = 'other'")
    code, _, err = await _run(moving, "apscheduler_jobs", *command)

    assert code == 1
    assert err.splitlines()[1].startswith("left out: other: can't be read (")
    assert err.splitlines()[-1] == "1 written, 4 left out"


@pytest.mark.usefixtures("_shop")
async def test_a_message_that_no_job_can_be_is_listed_and_stays(move: Callable[..., Move], store: str) -> None:
    """A function that nobody can import, and an interval that is no number; all others are put back."""
    moving = move("From APScheduler 3")
    scheduler = OldScheduler(store, moving.folder, moving.ledger)
    payload: dict[str, Any] = {"args": ["a"], "kwargs": {}}
    messages: list[tuple[str, dict[str, Any]]] = [
        ("gone", payload),
        ("kind", {**payload, "every_seconds": "often"}),
        ("kind", {"args": [], "kwargs": {"item": "b"}}),
    ]
    lines = [
        {"kind": kind, "id": str(n), "scheduled_at": "2030-01-01T00:00:00Z", "payload": each}
        for n, (kind, each) in enumerate(messages)
    ]
    (moving.folder / "pending.jsonl").write_text("\n".join(map(json.dumps, lines)))
    kinds = ("--kind", "shop:remind=kind", "--kind", "nowhere:remind=gone")
    files = ("--from", "pending.jsonl", "--to", "returned.jsonl")
    code, _, err = await _run(moving, "apscheduler_jobs", "put-back", store, *kinds, *files)

    *left_out, summary = err.splitlines()
    assert (code, summary) == (1, "1 written, 2 left out")
    assert left_out[0].startswith("left out: gone:0: can't be a job (")
    assert left_out[1].startswith("left out: kind:1: can't be a job (")
    assert list(scheduler.pending()) == ["b"]


async def test_what_procrastinate_can_only_do_is_listed(move: Callable[..., Move], database: str) -> None:
    """Jobs of other tasks, with a lock, and at work; a lock may be ignored."""
    moving = move("From procrastinate")
    OldWorker(database, moving.ledger)
    with App(connector=SyncPsycopgConnector(conninfo=database)).open() as app:
        app.configure_task("other").defer()
        app.configure_task("remind", lock="order 7").defer(item="a")
        app.configure_task("remind").defer(item="b")
    execute(database, "UPDATE procrastinate_jobs SET status = 'doing' WHERE id = 3")
    command = ("export", database, "--kind", "remind=kind", "--to", "out.jsonl")
    code, _, err = await _run(moving, "procrastinate_jobs", *command)
    _, _, ignoring = await _run(moving, "procrastinate_jobs", *command, "--ignore-locks")

    assert code == 1
    assert err.splitlines() == [
        "left out: job 1: its task other has no kind; add --kind other=KIND",
        "left out: job 2: has the lock order 7; --ignore-locks exports it without that",
        "left out: job 3: is at work, or its worker was killed at it",
        "0 written, 3 left out",
    ]
    assert ignoring.endswith("1 written, 2 left out\n")


async def test_a_job_that_no_message_can_be_ends_no_export(move: Callable[..., Move], database: str) -> None:
    """A moment that never comes or is after the year 9999, and a number that no reader takes, are listed."""
    moving = move("From procrastinate")
    OldWorker(database, moving.ledger)
    due = datetime(2030, 1, 1, 12, 30, 15, 123_457, tzinfo=UTC)
    with App(connector=SyncPsycopgConnector(conninfo=database)).open() as app:
        for item in ("never", "late", "number", "good"):
            app.configure_task("remind", schedule_at=due).defer(item=item)
    update = "UPDATE procrastinate_jobs SET {} WHERE id = {}"
    changes = ("scheduled_at = 'infinity'", "scheduled_at = '20000-01-01Z'", """args = '{"item": 1e5000}'""")
    for number, change in enumerate(changes, start=1):
        execute(database, update.format(change, number))
    code, _, err = await _run(
        moving, "procrastinate_jobs", "export", database, "--kind", "remind=kind", "--to", "out.jsonl"
    )
    (line,) = [json.loads(text) for text in (moving.folder / "out.jsonl").read_text().splitlines()]

    *left_out, summary = err.splitlines()
    assert (code, summary) == (1, "1 written, 3 left out")
    assert left_out[:2] == ["left out: job 1: inf is no moment", "left out: job 2: 568971820800.0 is no moment"]
    assert left_out[2].startswith("left out: job 3: what it holds can't be read (")
    assert (line["id"], line["payload"]) == ("4", {"item": "good"})
    assert datetime.fromisoformat(line["scheduled_at"]) == due


@pytest.mark.parametrize(
    ("program", "url", "sentence"),
    [
        ("procrastinate_jobs", NO_SERVER, "connection failed: "),
        ("procrastinate_jobs", "{database}", 'relation "procrastinate_jobs" does not exist'),
        ("apscheduler_jobs", NO_SERVER.replace(":", "+psycopg:", 1), "(psycopg.OperationalError) connection failed: "),
        ("apscheduler_jobs", "{store}", '(psycopg.errors.UndefinedTable) relation "apscheduler_jobs" does not exist'),
    ],
)
async def test_wrong_input_is_one_sentence(  # noqa: PLR0917 — the fixtures of three systems
    move: Callable[..., Move], database: str, store: str, program: str, url: str, sentence: str
) -> None:
    """No server, and no such table: nothing is written."""
    moving = move("From procrastinate")
    place = url.format(database=database, store=store)
    code, out, err = await _run(moving, program, "export", place, "--kind", "a:b=kind", "--to", "out.jsonl")

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{program}: {sentence}")
    assert not list(moving.folder.glob("out*"))


async def _run(moving: Move, program: str, *arguments: str) -> tuple[int, str, str]:
    command = ("-m", f"examples.moving_in.{program}", *arguments)
    return await run_to_end("python", *command, cwd=moving.folder, env=moving.environment)
