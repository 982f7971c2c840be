"""`dormice outbox` as people run it: its table, its wrong inputs, its end, and the examples of its page."""

import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from psycopg.types.json import Json

from cluster.postgres import Postgres
from tests.acceptance.conftest import Run, Spawn
from tests.conftest import Serve, wait_until
from tests.support.databases import run_postgres
from tests.support.outboxes import TableUnderTest, write_dsn

PAGE = (Path(__file__).parents[2] / "docs" / "outbox.md").read_text("utf-8")
SECRET = "no-one-may-see-this"  # noqa: S105 — of a database of this test


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """A PostgreSQL of this module's own."""
    with run_postgres() as running:
        running.run(f"CREATE ROLE app LOGIN PASSWORD '{SECRET}'; CREATE ROLE guest LOGIN; CREATE SCHEMA shop")
        yield running


@pytest.fixture
def environment(environment: dict[str, str], database: Postgres) -> dict[str, str]:
    """That of every program here, with the database in the setting."""
    return {**environment, "DORMICE_OUTBOX_DSN": write_dsn(database)}


async def test_the_printed_ddl_makes_the_table_and_may_be_run_again(run: Run, database: Postgres) -> None:
    """Under any name, with numbers beyond those of an earlier table of that name."""
    for name in ("shop.outbox", 'shop.O\'Odd "$$" name'):
        ddl = (await run("outbox", "ddl", "--table", name)).out
        database.run(ddl)
        rows = TableUnderTest.make(database, name)
        with rows.connect() as connection:
            quoted = '"shop"."' + rows.table.name.replace('"', '""') + '"'
            insert = f"INSERT INTO {quoted} (kind, id) VALUES ('noted', 'a') RETURNING seq"  # noqa: S608 — a test's own
            first = connection.execute(insert.encode()).fetchone()
            connection.execute(f"DROP TABLE {quoted}".encode())
            database.run(ddl)
            second = connection.execute(insert.encode()).fetchone()
        assert first is not None
        assert second is not None
        assert first < second

        checked = await run("outbox", "status", "--table", name, "--json")

        assert (checked.document["table"], checked.document["waiting"]) == (name, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["outbox", "host"], 2, "outbox_dsn: is no connection string of PostgreSQL; write"),
        (["outbox", f"postgresql://app:{SECRET}@h/d"], 2, "DSN: holds a password, which everybody on this machine"),
        (["outbox", "--table", "a.b.c"], 2, "--table: is 'a.b.c'; write NAME or SCHEMA.NAME"),
        (["outbox", "--poll-seconds", "0"], 2, "--poll-seconds: is 0; give seconds above 0"),
        (["outbox", "--table", "nowhere"], 2, 'table nowhere: relation "nowhere" does not exist; \'dormice outbox'),
        (["outbox", "--table", "short"], 2, "table short: column "),
        (["outbox", "--table", "pg_catalog.pg_class"], 2, "table pg_catalog.pg_class: column "),
        (["outbox", "postgresql://app@127.0.0.1:1/d"], 3, "outbox_dsn: connection failed: connection to server at"),
    ],
)
async def test_a_wrong_input_gets_one_sentence(
    run: Run, database: Postgres, arguments: list[str], code: int, sentence: str
) -> None:
    """With code 2, or 3 where the same may succeed later; no password is shown."""
    database.run("CREATE TABLE IF NOT EXISTS short (seq bigint)")

    ran = await run(*arguments)

    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(f"dormice: {sentence}")
    assert ran.err.count("\n") == 1
    assert SECRET not in ran.err


async def test_a_user_without_rights_and_a_wrong_password_are_refused(run: Run, database: Postgres) -> None:
    """As what a person must change, whatever language the database speaks."""
    TableUnderTest.make(database, "forbidden")
    hba = database.folder / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text(f"host all app 127.0.0.1/32 scram-sha-256\n{before}")
    try:
        database.run("SELECT pg_reload_conf()")
        address = f"127.0.0.1:{database.port}/postgres"
        wrong = await run("outbox", DORMICE_OUTBOX_DSN=f"postgresql://app:wrong-{SECRET}@{address}")
        guest = await run("outbox", f"postgresql://guest@{address}", "--table", "forbidden")
    finally:
        hba.write_text(before)
        database.run("SELECT pg_reload_conf()")

    assert (wrong.code, guest.code) == (2, 2)
    assert "password authentication failed" in wrong.err
    assert wrong.err.rstrip().endswith("correct the connection string or the password")
    assert SECRET not in wrong.err
    assert guest.err.startswith("dormice: table forbidden: permission denied for table forbidden; ")


async def test_once_ends_when_nothing_is_left_and_says_what_failed(run: Run, serve: Serve, database: Postgres) -> None:
    """With code 1 if a row failed; the next run, after its correction, with code 0."""
    rows = TableUnderTest.make(database, "drained")
    rows.insert(
        {"kind": "noted", "id": "drained-1"},
        {"kind": "noted", "id": "drained-1", "action": "stop"},
        {"kind": "unknown", "id": "drained-2"},
    )

    first = await run("outbox", "--once", "--table", "drained")
    status = await run("outbox", "status", "--table", "drained")
    with rows.connect() as application:
        application.execute("UPDATE drained SET kind = 'noted'")
    second = await run("outbox", "--once", "--table", "drained")

    assert first.code == 1
    assert first.err.splitlines()[-1] == "ended; 2 rows done, 1 row failed and stays"
    assert "failed   1" in status.out
    assert "unknown:drained-2" in status.out
    assert (second.code, second.err.splitlines()[-1]) == (0, "ended; 1 row done")


@pytest.mark.long
async def test_sigterm_ends_it_and_what_is_not_stored_stays(
    spawn: Spawn, run: Run, environment: dict[str, str], database: Postgres
) -> None:
    """Also while rows can't be stored, because no worker serves their packs."""
    rows = TableUnderTest.make(database, "ended")
    rows.insert({"kind": "standby", "id": "ended-1", "action": "upsert"})
    rows.insert({"kind": "noted", "id": "ended-2"})
    process = await spawn("outbox", "--table", "ended", "--drain-seconds", "1", env=environment)
    await wait_until(lambda: len(rows.read()) < 2, "the other row is stored")
    process.send_signal(signal.SIGTERM)
    _, err = await process.communicate()

    assert process.returncode == 0
    assert b"draining: once more leaves at once\n" in err
    assert err.splitlines()[-1].startswith(b"drained; ")


async def test_the_examples_of_the_page_write_rows_that_are_taken(run: Run, database: Postgres) -> None:
    """Both, as they stand, in one transaction with the application's own change."""
    rows = TableUnderTest.make(database, "dormice_outbox")
    database.run("CREATE TABLE orders (id text PRIMARY KEY, state text); INSERT INTO orders VALUES ('o7', 'new')")
    with_psycopg, with_sqlalchemy = (
        textwrap.dedent(block.partition("\n```")[0]) for block in PAGE.split("```python\n")[1:3]
    )
    with rows.connect() as connection:
        exec(with_psycopg, {"connection": connection, "Json": Json})  # noqa: S102 — the page's own
    engine = sqlalchemy.create_engine(rows.dsn.replace("postgresql:", "postgresql+psycopg:"))
    try:
        outbox, orders = (
            sqlalchemy.Table(n, sqlalchemy.MetaData(), autoload_with=engine)
            for n in (
                "dormice_outbox",
                "orders",
            )
        )
        names: dict[str, Any] = {"engine": engine, "outbox": outbox, "orders": orders}
        exec(with_sqlalchemy, {**names, "insert": sqlalchemy.insert, "update": sqlalchemy.update})  # noqa: S102 — as above
    finally:
        engine.dispose()

    assert rows.read("action, kind, id, payload") == [("upsert", "order", "o7", {"state": "sent"})] * 2
    assert database.run("SELECT state FROM orders") == ["sent"]
