"""Starting: one task starts its share of a frame's rows with the bulk starter."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from activities.registry import declared_packs, envelope_rules, load_registry
from shared.errors import RetryLater, ServerUnreachable
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope, EnvelopeRules
from shared.messages.placement import workflow_id
from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import check_server, connect
from spark.tasks.batches import BatchReader, RefusedRow
from spark.tasks.options import WriteOptions
from spark.tasks.receipts import ProgressNote, ReceiptFile, StartCounts, open_receipts
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import Receipt, StartOutcome

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What the driver has fixed for all tasks of a save."""

    options: WriteOptions
    names: tuple[str, ...]
    """Columns that make messages."""
    rules: EnvelopeRules
    packs: Mapping[str, Pack] = field(default_factory=dict[str, Pack])
    """Kinds whose handlers declare that their messages are packed."""

    @classmethod
    def of(cls, options: WriteOptions, names: tuple[str, ...]) -> "TaskSpec":
        """Read what the handlers declare, so that executors need no handlers; raises HandlerProblem."""
        registry = load_registry(options.settings)
        return cls(
            options=options,
            names=names,
            rules=envelope_rules(options.settings, registry),
            packs=declared_packs(registry),
        )

    def in_session(self, session: str) -> "TaskSpec":
        """Give the same specification for another start session."""
        return replace(self, options=replace(self.options, session=session))


async def connect_quietly(connection: Mapping[str, str], settings: Settings) -> Client:
    """Connect with these variables instead of the environment; raises as `shared.temporal.connect.connect`."""
    # the SDK's core logs its retries to standard output, which Spark uses itself
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)), error_if_already_set=False)
    return await connect(settings, connection)


async def connect_patiently(connection: Mapping[str, str], settings: Settings) -> Client:
    """Connect as soon as the server answers; raises ServerUnreachable when `patience` is over."""
    give_up_at = time.monotonic() + settings.patience.total_seconds()
    attempts = 0
    while True:
        try:
            return await connect_quietly(connection, settings)
        except ServerUnreachable:
            if time.monotonic() >= give_up_at:
                raise
        attempts += 1
        await asyncio.sleep(backoff_seconds(attempts))


def check_connection(options: WriteOptions) -> None:
    """Check the server before any task begins; raises the error that every task would end with."""

    async def check() -> None:
        await check_server(await connect_quietly(options.connection, options.settings))

    asyncio.run(check())


def start_rows(order: TaskSpec, batches: Iterator[Any], name: str, attempt: int) -> StartCounts:
    """Start the rows of a task's Arrow batches and write a receipt for each into the file `name`.

    The receipt of a row that can't be started gives the reason. Raises RetryLater when the server stays unreachable:
    then the task leaves no receipts and may be repeated; messages that it has started are not started a second time.
    """
    return asyncio.run(_Task(order, batches).run(name, attempt))


class _Task:
    def __init__(self, order: TaskSpec, batches: Iterator[Any]) -> None:
        self._order = order
        self._options = order.options
        self._batches = batches
        self._failure = ""
        self._failures = 0

    async def run(self, name: str, attempt: int) -> StartCounts:
        client = await connect_patiently(self._options.connection, self._options.settings)
        starter = BulkStarter(
            client,
            self._options.settings,
            restarts_finished=self._options.restarts_finished,
            session=self._options.session,
            encodings=self._order.packs,
        )
        note = ProgressNote(self._options.progress, name) if self._options.progress else None
        with ExitStack() as stack:
            file = stack.enter_context(open_receipts(self._options.receipts, name, attempt))
            async for receipt in starter.start_all(self._wishes(file)):
                self._take(receipt, file)
                if note is not None:
                    note.note(file.told)
            if self._failures:
                raise RetryLater(f"{self._failures:,} starts failed, the last one because {self._failure}")
        if note is not None:
            note.note(file.told, is_last=True)
        return file.told

    async def _wishes(self, file: ReceiptFile) -> AsyncIterator[tuple[tuple[str, str], Envelope]]:
        reader = BatchReader(self._order.names, self._order.rules)
        async for batch in _read_in_thread(self._batches):
            for row in reader.read(batch):
                if isinstance(row, RefusedRow):
                    name = workflow_id(row.kind, row.id)
                    file.add(name, row.kind, row.id, StartOutcome.REJECTED, reason=row.reason)
                else:
                    yield (row.kind, row.id), row

    def _take(self, receipt: Receipt[tuple[str, str]], file: ReceiptFile) -> None:
        if receipt.outcome is StartOutcome.FAILED:
            self._failures += 1
            self._failure = receipt.reason
            if self._failures >= self._options.settings.in_flight:  # all starts in flight failed: the server is gone
                raise RetryLater(f"{self._failures:,} starts failed, the last one because {self._failure}")
            return
        kind, message_id = receipt.tag
        file.add(
            receipt.workflow_id,
            kind,
            message_id,
            receipt.outcome,
            run_id=receipt.run_id,
            reason=receipt.reason,
            attempts=receipt.attempts,
        )


async def _read_in_thread(items: Iterator[Item]) -> AsyncIterator[Item]:
    """Read items one by one in a thread, because waiting for Spark would block the starts in flight."""
    while (item := await asyncio.to_thread(next, items, None)) is not None:
        yield item
