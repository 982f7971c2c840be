"""The cluster's tables: Temporal's own for PostgreSQL, without the indexes that messages never use."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cluster.postgres import USER, Postgres
from cluster.program import Program, run_program
from starter.local.visibility_indexes import TABLE, indexes_to_keep

CORE, VISIBILITY = "temporal", "temporal_visibility"

# Temporal indexes lists and texts with GIN, which needs the extension btree_gin. A small PostgreSQL lacks it, and
# dormice searches neither lists nor texts.
_EXTENSION = re.compile(
    r"^DO LANGUAGE 'plpgsql' \$\$\n.*?CREATE EXTENSION btree_gin;.*?^\$\$;\n", re.MULTILINE | re.DOTALL
)
_GIN_INDEX = re.compile(r"^CREATE INDEX [^;]*USING GIN[^;]*;[^\n]*$", re.MULTILINE)


def make_tables(postgres: Postgres, program: Program) -> None:
    """Create both databases on a new PostgreSQL; complete ones are left as they are."""
    there = set(postgres.run("SELECT datname FROM pg_database"))
    for database, schema in ((CORE, "temporal"), (VISIBILITY, "visibility")):
        if database in there and not _is_whole(postgres, database):
            postgres.run(f'DROP DATABASE "{database}"')
            there.remove(database)
        if database not in there:
            postgres.run(f'CREATE DATABASE "{database}"')
            _set_up(postgres, program, database, schema)


def _is_whole(postgres: Postgres, database: str) -> bool:
    """Say whether all tables were created: their version is stored last."""
    if not postgres.run("SELECT 1 FROM pg_tables WHERE tablename = 'schema_version'", database):
        return False
    return bool(postgres.run("SELECT 1 FROM schema_version", database))


def slim_tables(postgres: Postgres, columns: Mapping[str, str]) -> None:
    """Drop the visibility indexes that dormice does not need; may be repeated.

    `columns` maps the names of attributes to their columns, as the server reports them.
    """
    kept = indexes_to_keep(columns) | {f"{TABLE}_pkey"}
    found = postgres.run("SELECT tablename, indexname FROM pg_indexes", VISIBILITY)
    indexes = {name for table, _, name in (row.partition("|") for row in found) if table == TABLE}
    if unneeded := sorted(indexes - kept):
        postgres.run(f"DROP INDEX {', '.join(unneeded)}", VISIBILITY)


def without_gin(schema: str) -> str:
    """Give the SQL of visibility tables without GIN indexes, which any PostgreSQL can create."""
    return _GIN_INDEX.sub("", _EXTENSION.sub("", schema))


def _set_up(postgres: Postgres, program: Program, database: str, schema: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schema.sql")
        path.write_text(without_gin(program.schema(schema).read_text()))
        command = [str(program.sql_tool), "--plugin", "postgres12", "--endpoint", "127.0.0.1"]
        command += ["--port", str(postgres.port), "--user", USER, "--database", database]
        command += ["setup-schema", "--version", program.schema_version(schema), "--schema-file", str(path)]
        run_program(command, f"the tables of {database} could not be made")
