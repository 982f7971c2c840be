"""Starting: a frame's columns are checked on the driver, and each task starts its share of the rows."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql import types
from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from shared.errors import GiveUp, InvalidEnvelope, RetryLater, ServerUnreachable
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope, EnvelopeRules, parse_envelope
from shared.messages.placement import workflow_id
from shared.settings import Settings
from shared.temporal.backoff import Patience
from shared.temporal.connect import check_server, connect
from spark.tables import rows_of
from spark.tasks.chunks import PLACE, SortedChunks, are_clearly_valid, read_columns, split_by
from spark.tasks.options import WriteOptions
from spark.tasks.pickling import PicklableByName
from spark.tasks.placement import to_index
from spark.tasks.receipts import ReceiptFile, open_receipts
from starter.files.columns import Columns
from starter.starting.bulk import BulkStarter, Request
from starter.starting.chunks import Chunk
from starter.starting.delivery import Delivery
from starter.starting.receipts import Receipt, StartOutcome

ROW = "row"  # a manifest's own column: the row that a message comes from; not a part of the message

_SOURCE = "the frame"
_TEXTS = ("kind", "id", "lane", "tenant", "correlation_id", "idempotency_key")
_TYPES: dict[str, tuple[tuple[type[types.DataType], ...], str]] = {
    **dict.fromkeys(_TEXTS, ((types.StringType,), "string")),
    **dict.fromkeys(("scheduled_at", "expires_at"), ((types.TimestampType, types.StringType), "timestamp")),
    "tolerance_seconds": ((types.IntegralType, types.FractionalType, types.DecimalType), "double"),
    "priority": ((types.IntegralType,), "int"),
    "schema_version": ((types.IntegralType,), "int"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What the driver has fixed for all tasks of a save."""

    options: WriteOptions
    names: tuple[str, ...]  # columns that make messages
    rules: EnvelopeRules  # what the handlers declare, so that executors need no handlers
    packs: Mapping[str, Pack]  # kinds whose handlers declare that their messages are packed
    places: Mapping[str, int] | None = None  # of a manifest's rows, sorted by PLACE: how many packs each kind had then


def check_schema(schema: types.StructType) -> tuple[str, ...]:
    """Give the names of the columns that make messages; raises GiveUp when the frame can't give any message."""
    names = tuple(name for name in schema.fieldNames() if name != ROW)
    if not Columns(names, _SOURCE).has_kind:
        raise GiveUp(f"{_SOURCE}: has no column 'kind'; add one, for example with lit('feed')")

    for field in schema.fields:
        accepted, wanted = _TYPES.get(field.name, ((types.DataType,), ""))
        if isinstance(field.dataType, types.TimestampNTZType) and wanted:
            raise GiveUp(f"{_SOURCE}: column {field.name!r} has moments without an offset; cast it to timestamp")
        if not isinstance(field.dataType, (*accepted, types.NullType)):
            found = field.dataType.simpleString()
            raise GiveUp(f"{_SOURCE}: column {field.name!r} is of type {found}; cast it to {wanted}")

    return names


async def connect_quietly(connection: Mapping[str, str], settings: Settings) -> Client:
    """Connect with these variables instead of the environment; raises as `shared.temporal.connect.connect`."""
    # the SDK's core logs its retries to standard output, which Spark uses itself
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)), error_if_already_set=False)
    return await connect(settings, connection)


async def connect_patiently(connection: Mapping[str, str], settings: Settings) -> Client:
    """Connect as soon as the server answers; raises ServerUnreachable when `patience` is over."""
    patience = Patience(settings.patience)

    while True:
        try:
            return await connect_quietly(connection, settings)
        except ServerUnreachable:
            if patience.is_over:
                raise

        await patience.wait()


async def connect_checked(connection: Mapping[str, str], settings: Settings) -> Client:
    """Connect before any task begins; raises the error that every task would end with."""
    client = await connect_quietly(connection, settings)
    await check_server(client)
    return client


def run_task(spec: TaskSpec, batches: Iterator[Any], run: str) -> None:
    """Start the rows of one task of Spark, in the task's own process; see `start_rows`."""
    task: Any = TaskContext.get()
    asyncio.run(start_rows(spec, batches, f"{run}-{task.partitionId():05d}", task.attemptNumber()))


@dataclass
class ManifestTask(PicklableByName):
    """Starts a task's share of a manifest."""

    spec: TaskSpec

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Start the rows; gives none, because their outcomes are in the receipts."""
        run_task(self.spec, batches, self.spec.options.run)
        yield from ()


async def start_rows(spec: TaskSpec, batches: Iterator[Any], name: str, attempt: int) -> None:
    """Start the rows of a task's Arrow batches and write a receipt for each into the file `name`.

    Raises RetryLater when the server stays unreachable: then there are no receipts, and a repetition starts none twice.
    """
    options = spec.options
    settings = spec.options.settings
    starter = BulkStarter(
        await connect_patiently(options.connection, settings),
        settings,
        restarts_finished=options.restarts_finished,
        session=options.session,
        encodings=spec.packs,
        revises=options.is_upsert,
    )
    failures: list[str] = []

    with open_receipts(options.receipts, name, attempt, options.progress) as file:
        async for receipts in starter.start_groups(_read_requests(spec, batches, starter, file)):
            failures += file.add(receipts)
            if len(failures) >= settings.in_flight:  # all starts in flight failed: the server is gone
                break
        if failures:
            raise RetryLater(f"{len(failures):,} starts failed, the last one because {failures[-1]}")


async def _read_requests(
    spec: TaskSpec, batches: Iterator[Any], starter: BulkStarter, file: ReceiptFile
) -> AsyncIterator[tuple[str, Request] | Chunk[str]]:
    chunks = SortedChunks()
    options = spec.options

    # in a thread, because waiting for Spark would block the starts in flight
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        is_clear = spec.places is not None and are_clearly_valid(batch, spec.rules)
        for kind, rows in split_by("kind", batch) if is_clear else [("", batch)]:
            layout = await starter.find_layout(kind, spec.rules.kinds[kind]) if is_clear else None
            if layout is None or layout.packs != (spec.places or {}).get(kind):
                for row in read_batch(rows, spec.names, spec.rules):
                    if isinstance(row, Receipt):
                        file.add([row])
                    elif options.is_upsert:
                        yield row.id, Delivery.of_upsert(row, f"{options.session}|{workflow_id(row.kind, row.id)}")
                    else:
                        yield row.id, row
                continue

            for place, part in split_by(PLACE, rows):
                for chunk in chunks.add(layout, to_index(place), read_columns(part, layout)):
                    yield chunk

    for chunk in chunks.take_last():
        yield chunk


def read_batch(batch: Any, names: tuple[str, ...], rules: EnvelopeRules) -> Iterator[Envelope | Receipt[str]]:
    """Give the messages of one `pyarrow.RecordBatch`; of a row that can't become one, the receipt that says why."""
    columns = Columns(names, _SOURCE)
    for row in rows_of([batch.select(names)]):
        try:
            yield parse_envelope(columns.to_fields(row), rules)
        except InvalidEnvelope as exc:
            named = dict(zip(names, row, strict=True))
            kind = str(named["kind"] or "")
            message_id = str(named["id"] or "")
            refused = workflow_id(kind, message_id)
            yield Receipt(message_id, refused, StartOutcome.REJECTED, reason=str(exc), attempts=0)
