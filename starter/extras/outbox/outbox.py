"""The outbox: turns the rows of a table into messages, and deletes each once the server has stored what it asks for."""

import asyncio
import contextlib
import functools
import itertools
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from psycopg import AsyncServerCursor, ProgrammingError

from shared.errors import RetryLater
from shared.messages.placement import workflow_id
from shared.telemetry.logs import LogThrottle
from shared.temporal.backoff import backoff_seconds
from starter.extras.outbox.backlog import Backlog, Connection, count_rows
from starter.extras.outbox.batch import BatchOutcome, BatchSender
from starter.extras.outbox.connection import LOST, OutboxConnection, write_error
from starter.extras.outbox.kind_backoff import KindBackoff
from starter.extras.outbox.rows import OutboxRow
from starter.extras.outbox.table import CHANNEL

logger = logging.getLogger(__name__)

BATCH = 80_000
BATCH_SECONDS = 5.0
"""Most rows of a batch, and how long it takes in more. The fewer calls a pack gets, the less each of its rows costs;
but messages with a workflow each come a few hundred a second, and a batch is one transaction."""

PAGE = 500

LINGER_SECONDS = 0.05
"""Shortest time between two looks while few rows come: those of this time share a call to their pack."""

COUNT_EVERY_SECONDS = 10.0

PROBLEM_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxOptions:
    """How often to look, and when to end."""

    poll: timedelta = timedelta(seconds=5)
    """How often it looks though nothing tells it of new rows."""
    drain: timedelta = timedelta(seconds=30)
    """How long batches under way may go on after a stop."""
    is_once: bool = False
    """Whether it ends when no row can be taken."""


class Outbox:
    """One outbox of a table, of which several may run side by side. `run` it once."""

    def __init__(self, connection: OutboxConnection, oid: str, sender: BatchSender, options: OutboxOptions) -> None:
        self.connection = connection
        self.options = options
        self._oid = oid
        self._sender = sender
        self._backoff = KindBackoff()
        self._wakes = {True: asyncio.Event(), False: asyncio.Event()}
        """Set when there may be rows that start messages, or others: these are taken side by side."""
        self._is_stopping = False
        self._failures = 0
        self._log_throttle = LogThrottle()
        self.gap = "starting"
        """Why rows can't be read now; empty while they can."""
        self.counts = Counter[str]()
        """Rows by what became of them."""
        self.backlog: Backlog | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Take rows until `stopping` is set, then let batches under way end; what is not stored by then stays a row.

        Raises Misconfigured when the table is no longer as it must be, or the server refuses this client; with
        `is_once`, RetryLater when rows are left that can't be stored now, or the database goes away.
        """
        if self.options.is_once:
            working = [asyncio.create_task(self._use_connection(self._take_all))]
        else:
            uses = (*(functools.partial(self._keep_taking, is_start) for is_start in self._wakes), self._listen)
            working = [asyncio.create_task(self._use_connection(use)) for use in uses]

        stop = asyncio.create_task(_wait(stopping))
        try:
            await asyncio.wait([*working, stop], return_when=asyncio.FIRST_COMPLETED)
            self._is_stopping = True
            self._wake()
            await asyncio.wait(working[:2], timeout=self.options.drain.total_seconds())
        finally:
            for task in (*working, stop):
                task.cancel()
            await asyncio.gather(*working, stop, return_exceptions=True)

        for task in working:
            if not task.cancelled():
                task.result()

        if self.options.is_once and self._backoff.reason:
            raise RetryLater(f"rows are left that could not be stored now ({self._backoff.reason}); run it again")

    async def _use_connection(self, use: Callable[[Connection], Awaitable[None]]) -> None:
        """Use a connection until that is over, and a new one whenever it is lost."""
        while True:
            try:
                async with await self.connection.open() as connection:
                    return await use(connection)
            except LOST as exc:
                self.gap = f"the database does not answer: {write_error(exc)}"
                if self.options.is_once:
                    raise RetryLater(f"{self.gap}; the rows are still there, run it again") from exc
                self._failures += 1
                logger.warning("database does not answer", extra={"reason": write_error(exc)})
            except ProgrammingError:
                with self.connection.translate_errors():
                    raise

            if self._is_stopping:
                return None
            await asyncio.sleep(backoff_seconds(self._failures))

    async def _take_all(self, connection: Connection) -> None:
        """Take batches until there is nothing that can be taken."""
        while not self._is_stopping:
            if not sum([await self._take(connection, is_start=is_start) for is_start in self._wakes]):
                return

    async def _keep_taking(self, is_start: bool, connection: Connection) -> None:  # noqa: FBT001 — two of these run
        wake = self._wakes[is_start]
        while not self._is_stopping:
            began = time.monotonic()
            wake.clear()  # before the look, so that what comes during it is not missed
            if await self._take(connection, is_start=is_start):
                self._wake()  # rows of the same messages may have waited behind these
                await asyncio.sleep(max(0.0, began + LINGER_SECONDS - time.monotonic()))
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self.options.poll.total_seconds(), self._backoff.seconds)):
                    await wake.wait()

    def _wake(self) -> None:
        for wake in self._wakes.values():
            wake.set()

    async def _take(self, connection: Connection, *, is_start: bool) -> int:
        """Lock a batch of rows, have them stored and delete them, all in one transaction; gives their number."""
        table = self.connection.table
        async with connection.transaction():
            async with connection.cursor(name="dormice_rows") as cursor:
                asked = {"is_start": is_start, "resting": self._backoff.kinds, "count": BATCH}
                await cursor.execute(table.take, {**asked, "bytes_max": self._sender.reader.bytes_max})
                outcome = await self._sender.send(_read_pages(cursor), is_start=is_start)
            if outcome.done:
                await connection.execute(table.delete, (outcome.done,))
            if outcome.failed:
                is_unicode = connection.info.parameter_status("server_encoding") == "UTF8"
                problems = [_write_problem(text, is_unicode=is_unicode) for text in outcome.failed.values()]
                await connection.execute(table.fail, ([row.seq for row in outcome.failed], problems))

        self._failures = 0
        self.gap = ""
        self._note(outcome)
        return outcome.counts.total()

    def _note(self, outcome: BatchOutcome) -> None:
        self.counts += outcome.counts
        self._backoff.note(outcome.stored_kinds, outcome.left, outcome.reason)
        for row, problem in itertools.islice(outcome.failed.items(), 1):  # the table has all of them
            about = {"action": "row_failed", "seq": row.seq, "workflow_id": workflow_id(row.kind, row.id)}
            extra = {**about, "reason": problem, "failed": len(outcome.failed)}
            logger.warning("row can't become a message, and stays until it is corrected", extra=extra)

        if outcome.left and self._log_throttle.lets_through():
            extra = {"reason": outcome.reason, "rows": outcome.left.total()}
            logger.warning("rows are not stored yet, and tried again", extra=extra)

    async def _listen(self, connection: Connection) -> None:
        """Wake the others at each notification, and count now and then."""
        await connection.execute(f"LISTEN {CHANNEL}".encode())
        self._wake()  # some may have come while nobody listened
        while True:
            self.backlog = await count_rows(connection, self.connection.table)
            async for notification in connection.notifies(timeout=COUNT_EVERY_SECONDS):
                if notification.payload == self._oid:
                    self._wake()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _read_pages(cursor: "AsyncServerCursor[tuple[Any, ...]]") -> AsyncIterator[list[OutboxRow]]:
    """Read rows as they are asked for, and none after BATCH_SECONDS; so only what is read is locked."""
    ends_at = time.monotonic() + BATCH_SECONDS
    while time.monotonic() < ends_at and (page := await cursor.fetchmany(PAGE)):
        yield [OutboxRow(*row) for row in page]


def _write_problem(text: str, *, is_unicode: bool) -> str:
    """Write a problem as the database can keep it: no NUL, and only characters of its encoding."""
    encoding = "utf-8" if is_unicode else "ascii"
    encoded = text.replace("\x00", "\\0")[:PROBLEM_MAX].encode(encoding, "backslashreplace")
    return encoded.decode()
