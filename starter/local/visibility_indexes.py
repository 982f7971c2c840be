"""Slims the embedded server's visibility table: drops the indexes that messages never use.

Temporal creates an index for every search attribute slot, used or not, and updates all of them on every start and
close: 59 on SQLite. Without them, only queries that dormice does not make become slower. The server does not create
them again.
"""

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from shared.temporal.connect import CALL_TIMEOUT

TABLE = "executions_visibility"
KEPT_ATTRIBUTES = ("DueAt", "State")
"""Attributes that queries search among millions: what is due soon, what is parked."""

_SYSTEM_COLUMNS = ("execution_time", "workflow_id", "workflow_type", "status", "temporal_namespace_division")
_SYSTEM = {"default_idx", *(f"by_{column}" for column in _SYSTEM_COLUMNS)}


async def read_columns(client: Client) -> dict[str, str]:
    """Ask the server in which column it keeps each search attribute: "DueAt" → "Datetime01"."""
    request = DescribeNamespaceRequest(namespace=client.namespace)
    answer = await client.workflow_service.describe_namespace(request, timeout=CALL_TIMEOUT)
    return {name: column for column, name in answer.config.custom_search_attribute_aliases.items()}


def slim_visibility(database: Path, columns: Mapping[str, str]) -> list[str]:
    """Drop unneeded indexes, while the server is down, and give their names; `columns` as `read_columns` gives them."""
    with closing(sqlite3.connect(database)) as connection:
        dropped = find_unneeded(connection, columns)
        for name in dropped:
            connection.execute(f'DROP INDEX "{name}"')
        connection.commit()
        if dropped:
            connection.execute("VACUUM")
    return dropped


def find_unneeded(connection: sqlite3.Connection, columns: Mapping[str, str]) -> list[str]:
    """Name the indexes that messages never use; `columns` as for `slim_visibility`."""
    kept = indexes_to_keep(columns)
    query = "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL"
    rows = connection.execute(query, (TABLE,))
    return sorted(name for (name,) in rows if name not in kept)


def indexes_to_keep(columns: Mapping[str, str]) -> set[str]:
    """Name the indexes that the server itself or a query of dormice needs, beside the primary key."""
    return _SYSTEM | {index_of_column(columns[name]) for name in KEPT_ATTRIBUTES if name in columns}


def index_of_column(column: str) -> str:
    """Name the index of a custom attribute's column: "KeywordList01" → "by_keyword_list_01"."""
    return "by_" + re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "_", column).lower()
