"""The read side of the format `temporal`: messages as rows, from the index and from packs, and Spark's conditions."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError

from shared.errors import InvalidSetting
from shared.messages.placement import MESSAGE_WORKFLOW, PACK_WORKFLOW, identity_of, pack_of
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_error
from shared.temporal.search_attributes import DUE_AT, EARLIEST_AT, LANE
from spark.format.packs import PackPartition, cut_packs, read_packed
from spark.format.windows import Window, cut_windows
from spark.tables import to_batch, to_schema
from spark.tasks.options import OF_SERVER, Options
from spark.tasks.pickling import PicklableByName
from spark.tasks.starting import connect_patiently, connect_quietly
from starter.starting.calls import RetryingCaller
from starter.steering.selection import quote
from starter.steering.status.listing import ENDED_OTHERWISE, state_of

COLUMNS = (
    "workflow_id string, kind string, id string, pack int, lane string, state string, due_at timestamp, "
    "earliest_at timestamp, started_at timestamp, history_length long, run_id string"
)
"""The columns, in Spark's syntax. A row of a pack itself has its number in `pack` and no `id`."""

MESSAGES = "messages"
PACKS = "packs"
NONE = "none"

_PAGE = 1000  # most workflows that the server returns in one page

# a message continues as new every few cycles; its earlier runs are not messages of their own
_RUNS = "ExecutionStatus != 'ContinuedAsNew'"
_SOLO = f"WorkflowType = '{MESSAGE_WORKFLOW}' AND {_RUNS}"
_SOLO_AND_PACKS = f"WorkflowType IN ('{MESSAGE_WORKFLOW}', '{PACK_WORKFLOW}') AND {_RUNS}"

_NAMES = {"kind": "Kind", "lane": "Lane", "state": "State", "due_at": "DueAt"}
_SIGNS: dict[Any, str] = {
    datasource.GreaterThan: ">",
    datasource.GreaterThanOrEqual: ">=",
    datasource.LessThan: "<",
    datasource.LessThanOrEqual: "<=",
    datasource.EqualTo: "=",
}
_STATUSES = {word: status.name.title().replace("_", "") for status, word in ENDED_OTHERWISE.items()}
"""States queried by the workflow's status: such a workflow ended without updating its State attribute."""


class TemporalReader(PicklableByName, DataSourceReader):
    """Lists solo messages in windows of start times, at a limited rate of visibility calls, and packed ones by pack."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options(given, ("partitions", "callsPerSecond", "packed", "path", *OF_SERVER))
        self._connection = options.connection()
        self._settings = options.settings(1)
        self.tasks = options.count("partitions", 2)
        self.calls_per_second = options.count("callsPerSecond", 10)  # a namespace's default limit
        self._wanted = schema.fieldNames()

        self._packed = options.text("packed") or MESSAGES
        if self._packed not in (MESSAGES, PACKS, NONE):
            raise InvalidSetting(f"packed: is {self._packed!r}; write {MESSAGES}, {PACKS} or {NONE}")

        self._base = self._query = _SOLO_AND_PACKS if self._packed == PACKS else _SOLO
        self._accepted: dict[str, frozenset[str]] = {}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 — Spark's own name
        """Add conditions to the query, and give those that Spark must still check."""
        parts, left = push_down(filters)
        self._query = " AND ".join([self._base, *parts])
        self._accepted = find_accepted(filters)
        return left

    def partitions(self) -> list[InputPartition]:
        """Cut the messages into windows, which share the call rate, and ranges of packs; raises ServerUnreachable."""
        windows, ranges = asyncio.run(self._cut())
        solo = [InputPartition((window, self.calls_per_second / len(windows))) for window in windows]
        return [*solo, *(InputPartition((part, 0.0)) for part in ranges)]

    async def _cut(self) -> tuple[list[Window], list[PackPartition]]:
        client = await connect_quietly(self._connection, self._settings)
        caller = RetryingCaller(self._settings.patience, self.calls_per_second)

        async def count(window: Window) -> int:
            query = window.narrow(self._query)
            answer, _ = await caller.call(lambda: client.count_workflows(query, rpc_timeout=CALL_TIMEOUT))
            if isinstance(answer, RPCError):
                raise translate_rpc_error(answer) from answer
            return answer.count

        windows = await cut_windows(count, self.tasks, datetime.now(UTC))
        if self._packed != MESSAGES:
            return windows, []
        return windows, await cut_packs(client, self._settings, self._accepted, self.tasks)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Give the messages of a window, or of a range of packs, as Arrow batches."""
        part, calls_per_second = partition.value
        schema = to_schema(COLUMNS)
        with asyncio.Runner() as runner:
            client = runner.run(connect_patiently(self._connection, self._settings))
            if isinstance(part, PackPartition):
                found = read_packed(runner, client, self._settings, part, self._accepted)
            else:
                found = self._read_window(runner, client, part, calls_per_second)
            for rows in found:
                yield to_batch(rows, schema).select(self._wanted)

    def _read_window(
        self, runner: asyncio.Runner, client: Client, window: Window, calls_per_second: float
    ) -> Iterator[list[tuple[Any, ...]]]:
        caller = RetryingCaller(self._settings.patience, calls_per_second)
        pages = client.list_workflows(window.narrow(self._query), page_size=_PAGE)
        while pages.current_page is None or pages.next_page_token is not None:
            failure, _ = runner.run(caller.call(pages.fetch_next_page))
            if failure is not None:
                raise translate_rpc_error(failure) from failure
            yield list(map(_to_row, pages.current_page or ()))


def _to_row(execution: WorkflowExecution) -> tuple[Any, ...]:
    attributes = execution.typed_search_attributes
    if execution.workflow_type == PACK_WORKFLOW:
        kind, index = pack_of(execution.id)
        identity = kind, None, index
    else:
        identity = *identity_of(execution.id), None

    return (
        execution.id,
        *identity,
        attributes.get(LANE, ""),
        state_of(execution),
        attributes.get(DUE_AT),
        attributes.get(EARLIEST_AT),
        execution.start_time,
        # the index has it only when the workflow ends
        None if execution.status is WorkflowExecutionStatus.RUNNING else execution.history_length,
        execution.run_id,
    )


def push_down(filters: Sequence[Any]) -> tuple[list[str], list[Filter]]:
    """Give the conditions as parts of the visibility query, and the conditions that Spark must still check."""
    found = [(wanted, _translate(wanted)) for wanted in filters]
    # conditions on due times are in both, because the server stores moments less exactly
    left = [wanted for wanted, part in found if part is None or wanted.attribute == ("due_at",)]
    return [part for _, part in found if part is not None], left


def find_accepted(filters: Sequence[Any]) -> dict[str, frozenset[str]]:
    """Give the values of `kind`, `lane` and `state` that the conditions leave which the query has taken over."""
    accepted: dict[str, frozenset[str]] = {}
    for wanted in filters:
        if isinstance(wanted, datasource.EqualTo | datasource.In) and _translate(wanted) is not None:
            name = ".".join(wanted.attribute)
            given = wanted.value if isinstance(wanted, datasource.In) else (wanted.value,)
            values = frozenset(given)
            if name != "due_at":
                accepted[name] = accepted.get(name, values) & values
    return accepted


def _translate(wanted: Any) -> str | None:
    name = ".".join(getattr(wanted, "attribute", ()))
    attribute = _NAMES.get(name)
    if attribute is None:
        return None
    if isinstance(wanted, datasource.IsNotNull):
        return f"{attribute} IS NOT NULL"
    if name == "due_at":
        return _translate_moment(wanted, attribute)

    if isinstance(wanted, datasource.EqualTo | datasource.In):
        values = wanted.value if isinstance(wanted, datasource.In) else (wanted.value,)
        if values and all(isinstance(value, str) for value in values):
            parts = [_state_is(value) if name == "state" else f"{attribute} = {quote(value)}" for value in values]
            return parts[0] if len(parts) == 1 else f"({' OR '.join(parts)})"

    return None


def _state_is(value: str) -> str:
    if value in _STATUSES:
        return f"ExecutionStatus = '{_STATUSES[value]}'"
    return f"(State = {quote(value)} AND ExecutionStatus IN ('Running', 'Completed'))"


def _translate_moment(wanted: Any, attribute: str) -> str | None:
    """Widen a bound by a millisecond: the server may have rounded."""
    sign = _SIGNS.get(type(wanted))
    value = getattr(wanted, "value", None)
    if sign is None or not isinstance(value, datetime) or value.tzinfo is None:
        return None
    epoch = value.timestamp()
    low, high = (datetime.fromtimestamp(epoch + step, UTC).isoformat() for step in (-0.001, 0.001))
    if sign == "=":
        return f"{attribute} BETWEEN '{low}' AND '{high}'"

    bound = low if sign[0] == ">" else high
    return f"{attribute} {sign[0]}= '{bound}'"
