"""`dormice outbox` in trouble: outboxes, database and server are killed while an application goes on writing."""

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from examples.ledger import Ledger
from shared.settings import Settings
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from tests.conftest import wait_until
from tests.support.databases import run_postgres
from tests.support.outboxes import TableUnderTest, insert_row
from tests.support.processes import kill_and_restart, outbox_process, worker_process
from tests.support.records import Noted

pytestmark = [pytest.mark.fault, pytest.mark.heavy, pytest.mark.long, pytest.mark.timeout(300)]

COUNTS = {"noted": 40, "noted-packed": 400}
PREFIX = "outbox"


@dataclass(slots=True)
class Shop:
    """An application: in one transaction it counts a revision of its own and writes a row for each message."""

    rows: TableUnderTest
    committed: int = 0
    names: list[tuple[str, str]] = field(
        default_factory=lambda: [(kind, f"{PREFIX}-{kind}-{n}") for kind, count in COUNTS.items() for n in range(count)]
    )

    def write(self) -> bool:
        """Write a revision; False if the database was gone, before or after the commit."""
        try:
            with self.rows.connect() as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS revisions (number int PRIMARY KEY)")
                found = connection.execute("SELECT coalesce(max(number), -1) + 1 FROM revisions").fetchone()
                assert found is not None
                self.committed = found[0]
                with connection.transaction():
                    connection.execute("INSERT INTO revisions VALUES (%s)", (self.committed,))
                    for kind, name in self.names:
                        row = {"action": "upsert", "kind": kind, "id": name, "payload": f"r{self.committed:03}"}
                        insert_row(connection, self.rows.table, row)
                self.committed += 1
        except psycopg.OperationalError:
            return False

        return True

    async def open(self, stopping: asyncio.Event) -> None:
        """Write a revision every three seconds until told to stop, and a last one."""
        while not stopping.is_set():
            await asyncio.to_thread(self.write)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3):
                    await stopping.wait()
        while not await asyncio.to_thread(self.write):  # noqa: ASYNC110 — the database is asked
            await asyncio.sleep(0.2)

    @property
    def newest(self) -> dict[str, str]:
        """What each message must end with."""
        return {name: f"r{self.committed - 1:03}" for _, name in self.names}


def find_disorder(ledger: Ledger) -> list[str]:
    """Name the messages that were called with an older revision after a newer one."""
    called: defaultdict[str, list[str]] = defaultdict(list)
    for entry in ledger.entries:
        if entry.what == "again":
            called[entry.id].append(entry.note)
    return [name for name, notes in called.items() if notes != sorted(notes)]


async def test_rows_survive_the_kills_of_outbox_database_and_server(
    settings: Settings, ledger: Ledger, tmp_path: Path
) -> None:
    """Of every message the last revision arrives, none acts twice or after a newer one, and no row is left."""
    chance = random.Random(7)
    noted = Noted(ledger, PREFIX)
    stopping = asyncio.Event()
    soon = ("--set", f"workflow_task_timeout={settings.workflow_task_timeout.total_seconds():.0f}s")
    options = EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None)
    with run_postgres() as database:
        rows = TableUnderTest.make(database, "shop_outbox")
        shop = Shop(rows)

        def outbox() -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
            return outbox_process(server, settings, rows.dsn, "--table", "shop_outbox", "--poll-seconds", "1", *soon)

        async with run_embedded(options) as server, worker_process(server, settings), outbox():
            writing = asyncio.create_task(shop.open(stopping))
            try:
                for number in range(4):
                    async with outbox() as victim:
                        await _wait_for_calls(noted)
                        await asyncio.sleep(chance.uniform(0, 0.5))
                        victim.kill()
                        await victim.wait()
                    if number % 2:
                        await asyncio.to_thread(database.kill)
                        await asyncio.sleep(chance.uniform(0, 1))
                        await asyncio.to_thread(database.start)
                    else:
                        await kill_and_restart(server)
                await wait_until(lambda: shop.committed > 5, "revisions come after the kills, too", seconds=60)
            finally:
                stopping.set()
                await writing
            try:
                await wait_until(lambda: not rows.read(), "no row is left", seconds=120)
                await wait_until(lambda: noted.newest == shop.newest, "all have their newest revision", seconds=60)
            finally:
                print(shop.committed, rows.read("kind, count(*) OVER (PARTITION BY kind)")[:1])  # noqa: T201 — as below
                for log in ("outbox.log", "worker.log"):
                    print((tmp_path / log).read_text()[-3000:])  # noqa: T201 — shown when it fails

    assert noted.doubled == set()
    assert find_disorder(ledger) == []


async def _wait_for_calls(noted: Noted) -> None:
    before = noted.calls
    is_moving: Callable[[], bool] = lambda: noted.calls > before + 50  # noqa: E731 — read at once
    await wait_until(is_moving, "rows become calls", seconds=60)
