"""The outbox: turns the rows of a table into messages, and deletes each once the server has stored what it asks for."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from psycopg import ProgrammingError

from shared.errors import RetryLater
from shared.temporal.backoff import backoff_seconds
from starter.intake.outbox.backlog import Backlog, Connection, count_rows
from starter.intake.outbox.batch import BatchOutcome, BatchSender
from starter.intake.outbox.connection import LOST, OutboxConnection, write_error
from starter.intake.outbox.kind_backoff import KindBackoff
from starter.intake.outbox.rows import OutboxRow
from starter.intake.outbox.table import CHANNEL

logger = logging.getLogger(__name__)

BATCH = 5_000
AT_ONCE = 2
"""Batches under way at once, each with a connection of its own: one is read and deleted while another is stored."""

LINGER_SECONDS = 0.05
"""Shortest time between two looks while few rows come: those of this time share a call to their pack."""

COUNT_EVERY_SECONDS = 10.0
SILENT_SECONDS = 10.0
"""Minimum time between two log lines about rows that can't be stored now."""

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
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._failures = 0
        self._silent_until = 0.0
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
        takers = asyncio.gather(*(self._use_connection(self._take_all) for _ in range(AT_ONCE)))
        listening = None if self.options.is_once else asyncio.create_task(self._use_connection(self._listen))
        stop = asyncio.create_task(stopping.wait())
        others = [stop, listening] if listening else [stop]
        try:
            await asyncio.wait([takers, *others], return_when=asyncio.FIRST_COMPLETED)
            self._is_stopping = True
            self._wake.set()
            await asyncio.wait([takers], timeout=self.options.drain.total_seconds())
        finally:
            for task in (takers, *others):
                task.cancel()
            await asyncio.gather(takers, *others, return_exceptions=True)
        for task in (takers, listening):
            if task is not None and not task.cancelled():
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
        while not self._is_stopping:
            began = time.monotonic()
            self._wake.clear()  # before the look, so that what comes during it is not missed
            count = await self._take(connection)
            self._failures, self.gap = 0, ""
            if not count and self.options.is_once:
                return
            if not count:
                await self._wait()
            elif count < BATCH:
                await asyncio.sleep(max(0.0, began + LINGER_SECONDS - time.monotonic()))

    async def _wait(self) -> None:
        """Wait until rows come, or may come."""
        seconds = min(self.options.poll.total_seconds(), self._backoff.seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _take(self, connection: Connection) -> int:
        """Lock a batch of rows, have them stored and delete them, all in one transaction; gives their number."""
        table = self.connection.table
        asked = {"bytes_max": self._sender.reader.bytes_max, "resting": self._backoff.kinds, "count": BATCH}
        async with connection.transaction():
            found = [OutboxRow(*row) for row in await (await connection.execute(table.take, asked)).fetchall()]
            if not found:
                return 0
            outcome = await self._sender.send(found)
            if outcome.done:
                await connection.execute(table.delete, (outcome.done,))
            if outcome.failed:
                is_unicode = connection.info.parameter_status("server_encoding") == "UTF8"
                problems = [_write_problem(text, is_unicode=is_unicode) for text in outcome.failed.values()]
                await connection.execute(table.fail, (list(outcome.failed), problems))
        self._note(found, outcome)
        return len(found)

    def _note(self, rows: list[OutboxRow], outcome: BatchOutcome) -> None:
        self.counts += outcome.counts
        self._backoff.note({row.kind for row in rows}, outcome.left, outcome.reason)
        logger.debug("batch done", extra={"action": "batch_done", "rows": len(rows), **outcome.counts})
        for row in rows:
            if row.seq in outcome.failed:
                about = {"action": "row_failed", "seq": row.seq, "workflow_id": f"{row.kind}:{row.id}"}
                extra = {**about, "reason": outcome.failed[row.seq], "failed": len(outcome.failed)}
                logger.warning("row can't become a message, and stays until it is corrected", extra=extra)
                break  # the table has all of them
        if outcome.left and (now := time.monotonic()) >= self._silent_until:
            self._silent_until = now + SILENT_SECONDS
            extra = {"reason": outcome.reason, "rows": outcome.left.total()}
            logger.warning("rows are not stored yet, and tried again", extra=extra)

    async def _listen(self, connection: Connection) -> None:
        """Wake the others at each notification, and count now and then."""
        await connection.execute(f"LISTEN {CHANNEL}")
        self._wake.set()  # some may have come while nobody listened
        while True:
            self.backlog = await count_rows(connection, self.connection.table)
            async for notification in connection.notifies(timeout=COUNT_EVERY_SECONDS):
                if notification.payload == self._oid:
                    self._wake.set()


def _write_problem(text: str, *, is_unicode: bool) -> str:
    """Write a problem as the database can keep it: no NUL, and only characters of its encoding."""
    encoded = text.replace("\x00", "\\0")[:PROBLEM_MAX].encode("utf-8" if is_unicode else "ascii", "backslashreplace")
    return encoded.decode()
