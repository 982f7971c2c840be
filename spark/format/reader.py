"""The read side of the format `temporal`: messages as rows, read from the server's index."""

import asyncio
import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType
from temporalio.client import WorkflowExecution, WorkflowExecutionAsyncIterator, WorkflowExecutionStatus
from temporalio.service import RPCError

from shared.messages.placement import MESSAGE_WORKFLOW, PACK_WORKFLOW, identity_of
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_error
from shared.temporal.search_attributes import DUE_AT, EARLIEST_AT, LANE
from spark.format.filters import push_down
from spark.format.windows import Window, cut_windows
from spark.tasks.options import ReadOptions, read_read_options
from spark.tasks.pickling import PicklableByName
from spark.tasks.starting import connect_patiently, connect_quietly
from starter.starting.calls import RetryingCaller
from starter.steering.status.listing import state_of

_arrow: Any = importlib.import_module("pyarrow")  # it has no type stubs

COLUMNS = (
    "workflow_id string, kind string, id string, pack int, lane string, state string, due_at timestamp, "
    "earliest_at timestamp, started_at timestamp, history_length bigint, run_id string"
)
"""The columns, in Spark's syntax. A pack is one row, with its number in `pack` and no `id`."""

_MOMENT = _arrow.timestamp("us", tz="UTC")
_SCHEMA = _arrow.schema(
    [
        ("workflow_id", _arrow.string()),
        ("kind", _arrow.string()),
        ("id", _arrow.string()),
        ("pack", _arrow.int32()),
        ("lane", _arrow.string()),
        ("state", _arrow.string()),
        ("due_at", _MOMENT),
        ("earliest_at", _MOMENT),
        ("started_at", _MOMENT),
        ("history_length", _arrow.int64()),
        ("run_id", _arrow.string()),
    ]
)

_PAGE = 1000
"""Most workflows that the server returns in one page."""

# a message continues as new every few cycles; its earlier runs are not messages of their own
_BASE = f"WorkflowType IN ('{MESSAGE_WORKFLOW}', '{PACK_WORKFLOW}') AND ExecutionStatus != 'ContinuedAsNew'"


@dataclass
class WindowPartition(InputPartition):
    """What one task reads: a window of start times, at its share of the call rate."""

    window: Window
    calls_per_second: float


class TemporalReader(PicklableByName, DataSourceReader):
    """Lists messages and packs, in windows of start times, at a limited rate of visibility calls."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Read the options; raises InvalidSetting in one sentence."""
        self._options: ReadOptions = read_read_options(given)
        self._wanted = schema.fieldNames()
        self._query = _BASE

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 — Spark's own name
        """Add conditions to the query, and give those that Spark must still check."""
        parts, left = push_down(filters)
        self._query = " AND ".join([_BASE, *parts])
        return left

    def partitions(self) -> list[WindowPartition]:
        """Count the messages and cut them into windows; raises ServerUnreachable when no server answers."""
        windows = asyncio.run(self._cut())
        return [WindowPartition(window, self._options.calls_per_second / len(windows)) for window in windows]

    async def _cut(self) -> list[Window]:
        client = await connect_quietly(self._options.connection, self._options.settings)
        caller = RetryingCaller(self._options.settings.patience, self._options.calls_per_second)

        async def count(window: Window) -> int:
            query = _join(self._query, window)
            answer, _ = await caller.call(lambda: client.count_workflows(query, rpc_timeout=CALL_TIMEOUT))
            if isinstance(answer, RPCError):
                raise translate_rpc_error(answer) from answer
            return answer.count

        return await cut_windows(count, self._options.partitions, datetime.now(UTC))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Give a window's messages as Arrow batches, page by page."""
        if not isinstance(partition, WindowPartition):
            raise TypeError(f"Spark gave a {type(partition).__name__} that is none of ours")
        with asyncio.Runner() as runner:
            client = runner.run(connect_patiently(self._options.connection, self._options.settings))
            caller = RetryingCaller(self._options.settings.patience, partition.calls_per_second)
            pages = client.list_workflows(_join(self._query, partition.window), page_size=_PAGE)
            while (page := runner.run(_next_page(caller, pages))) is not None:
                yield _to_batch(page).select(self._wanted)


async def _next_page(caller: RetryingCaller, pages: WorkflowExecutionAsyncIterator) -> list[WorkflowExecution] | None:
    if pages.current_page is not None and pages.next_page_token is None:
        return None
    failure, _ = await caller.call(pages.fetch_next_page)
    if failure is not None:
        raise translate_rpc_error(failure) from failure
    return list(pages.current_page or ())


def _join(query: str, window: Window) -> str:
    return " AND ".join(part for part in (query, window.to_query()) if part)


def _to_batch(page: list[WorkflowExecution]) -> Any:
    rows = [dict(zip(_SCHEMA.names, _to_row(execution), strict=True)) for execution in page]
    return _arrow.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def _to_row(execution: WorkflowExecution) -> tuple[Any, ...]:
    attributes = execution.typed_search_attributes
    kind, message_id, pack = _identify(execution)
    is_alive = execution.status is WorkflowExecutionStatus.RUNNING
    return (
        execution.id,
        kind,
        message_id,
        pack,
        attributes.get(LANE, ""),
        state_of(execution),
        attributes.get(DUE_AT),
        attributes.get(EARLIEST_AT),
        execution.start_time,
        None if is_alive else execution.history_length,  # the index has it only when the workflow ends
        execution.run_id,
    )


def _identify(execution: WorkflowExecution) -> tuple[str, str | None, int | None]:
    if execution.workflow_type == PACK_WORKFLOW:
        kind, _, index = execution.id.rpartition("~")
        return kind, None, int(index)
    kind, message_id = identity_of(execution.id)
    return kind, message_id, None
