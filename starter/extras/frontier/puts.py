"""Puts: what is to be stored, by pack; while one call to a pack is under way, the next ones gather.

A URL's puts take effect one after the other, in their order: those of a pack wait for the call before. A URL that is
known here is revised at once. Any other is started if it is absent; only if it is not, it is looked up and revised,
so that it keeps its creation date and is counted once.

A put that may or may not be stored fails, and what is stored is looked up as soon as the server answers.
"""

import asyncio
import collections
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shared.errors import RetryLater
from shared.messages.placement import Layout
from shared.telemetry.logs import LogThrottle
from shared.temporal.backoff import backoff_seconds
from starter.extras.frontier.buffer.due_buffer import DueBuffer
from starter.extras.frontier.crawl_url import CrawlUrl
from starter.extras.frontier.url_store import UrlStore
from starter.starting.receipts import Receipt, StartOutcome

logger = logging.getLogger(__name__)

LINGER_SECONDS = 0.02
"""How long the first put of a pack waits for others."""
CALLS_AT_ONCE = 32
PUTS_A_CALL = 1000
LOOKED_UP_AT_ONCE = 16
LOOK_UP_AFTER = 4
"""Look up after this many failures, about one or two seconds."""


class PutStatus(enum.StrEnum):
    """What became of a URL that was put."""

    OK = "ok"
    """The server has stored it."""
    SKIPPED = "skipped"
    """It is known already, or can't be stored as it is; there is no use in sending it again."""
    FAIL = "fail"
    """It could not be stored now; it may be sent again."""


class PutKind(enum.Enum):
    """What a put asks for."""

    DISCOVERED = enum.auto()
    KNOWN = enum.auto()
    DELETION = enum.auto()
    LOOK_UP = enum.auto()
    """Nothing: one before may have been stored or not."""


@dataclass(slots=True, eq=False)
class Put:
    """A URL to be stored, or deleted, and what became of that."""

    kind: PutKind
    message_id: str
    url: CrawlUrl
    done: "asyncio.Future[PutStatus]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    before: CrawlUrl | None = None
    """As it was counted; what the sender says counts if the buffer knows nothing of the URL."""

    begun_at: int = field(default_factory=lambda: int(time.time()))
    has_ended: bool = False

    @property
    def is_start(self) -> bool:
        """Whether its URL is not known here, and stored unless the server knows it."""
        return self.before is None and self.kind in (PutKind.DISCOVERED, PutKind.KNOWN)

    @property
    def is_change(self) -> bool:
        """Whether it is stored whatever there is."""
        return self.kind is PutKind.DELETION or (self.before is not None and self.kind is PutKind.KNOWN)

    @property
    def after(self) -> CrawlUrl | None:
        """What is to be stored in place of what was there before."""
        if self.kind is PutKind.DELETION:
            return None
        return self.url if self.before is None else replace(self.url, created_at=self.before.created_at)

    def end(self, status: PutStatus) -> None:
        """Tell what became of it."""
        self.has_ended = True
        if not self.done.done():  # who asked may have gone
            self.done.set_result(status)


class Puts:
    """Stores what is submitted, and keeps buffer and counts true to it."""

    def __init__(self, store: UrlStore, buffer: DueBuffer, until_counted: Callable[[int], Awaitable[None]]) -> None:
        self._store = store
        self._buffer = buffer
        self._until_counted = until_counted
        """Waits until what was stored of a pack before is counted."""
        self._pending = collections.defaultdict[int, collections.deque[Put]](collections.deque)
        self._pumps: dict[int, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(CALLS_AT_ONCE)
        self._look_ups = asyncio.Semaphore(LOOKED_UP_AT_ONCE)
        self._log_throttle = LogThrottle()
        self._is_closed = False
        self.fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the error that nothing can be stored with."""

    def submit(self, put: Put) -> None:
        """Store a put with the next call to its pack."""
        if put.kind is not PutKind.DISCOVERED:
            self._buffer.begin_put(put.message_id, put.url.queue)
        self._queue(put)

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        while self._pumps:
            await asyncio.wait(list(self._pumps.values()))

    def close(self) -> None:
        """Give up what is under way."""
        self._is_closed = True
        for pump in self._pumps.values():
            pump.cancel()

    def _queue(self, put: Put) -> None:
        index = self._store.find_pack(put.message_id)
        self._pending[index].append(put)
        if index not in self._pumps:
            self._begin_pump(index)

    def _begin_pump(self, index: int) -> None:
        pump = self._pumps[index] = asyncio.create_task(self._pump(index))
        pump.add_done_callback(lambda ended: self._end_pump(index, ended))

    async def _pump(self, index: int) -> None:
        """Send what is pending for a pack, one call after the other."""
        pending = self._pending[index]
        await asyncio.sleep(LINGER_SECONDS)
        await self._until_counted(index)

        while pending:
            async with self._room:
                batch = _take_batch(pending)
                try:
                    await self._store_batch(index, batch)
                finally:
                    for put in batch:
                        self._fail(put)

    def _end_pump(self, index: int, ended: asyncio.Task[None]) -> None:
        del self._pumps[index]
        fault = None if ended.cancelled() else ended.exception()
        if self._pending[index] and not (ended.cancelled() or fault):
            self._begin_pump(index)  # some came when it had taken the last, but had not ended yet
            return
        for put in self._pending.pop(index):
            self._fail(put)
        if fault is not None and not self.fault.done():
            self.fault.set_exception(fault)

    async def _store_batch(self, index: int, batch: list[Put]) -> None:
        """Store puts of different URLs; those of which it can't be told what became are left in the batch as they are.

        If the kind has more packs than before, those of another pack leave the batch.
        """
        try:
            layout = await self._store.find_layout()
            leaving = [put for put in batch if self._store.find_pack(put.message_id) != index]
            batch[:] = [put for put in batch if put not in leaving]
            for put in leaving:
                self._queue(put)
            await self._store_all(layout, index, batch)
        except RetryLater as exc:
            self._warn(str(exc))

    async def _store_all(self, layout: Layout, index: int, batch: Sequence[Put]) -> None:
        for put in batch:
            known = self._buffer.peek(put.message_id, put.url.queue)
            if known is not None or self._buffer.is_deleted(put.message_id):
                put.before = known
            if put.before is not None and put.kind is PutKind.DISCOVERED:
                put.end(PutStatus.SKIPPED)

        await _run_all(
            self._start(layout, index, [put for put in batch if put.is_start]),
            self._change(layout, index, [put for put in batch if put.is_change]),
            *(self._look_up(put) for put in batch if put.kind is PutKind.LOOK_UP),
        )

    async def _start(self, layout: Layout, index: int, puts: Sequence[Put]) -> None:
        """Store URLs that are not known here."""
        now = int(time.time())
        alive: list[Put] = []
        new = [put.url if put.kind is PutKind.KNOWN else replace(put.url, refetch_at=now) for put in puts]
        new = [replace(url, created_at=now) for url in new]

        ids = [put.message_id for put in puts]
        for put, url, receipt in zip(
            puts, new, await self._store.start(layout, index, list(zip(ids, new, strict=True))), strict=True
        ):
            if receipt.outcome is StartOutcome.STARTED:
                self._note(put, url)
            elif receipt.outcome is not StartOutcome.ALREADY_RUNNING:
                self._refuse(put, receipt)
            elif put.kind is PutKind.DISCOVERED:
                put.end(PutStatus.SKIPPED)
            else:
                alive.append(put)

        await _run_all(*map(self._find_before, alive))
        await self._change(layout, index, [put for put in alive if put.before is not None])

    async def _find_before(self, put: Put) -> None:
        async with self._look_ups:
            put.before = await self._store.find(put.message_id)

    async def _change(self, layout: Layout, index: int, puts: Sequence[Put]) -> None:
        """Store or delete URLs, whatever there is."""
        changes = [(put.message_id, put.after) for put in puts]
        for put, (_, url), receipt in zip(puts, changes, await self._store.change(layout, index, changes), strict=True):
            is_late = receipt.outcome is StartOutcome.IGNORED and url is not None
            if is_late:
                self._store.leap()
            if is_late or receipt.outcome in (StartOutcome.FAILED, StartOutcome.REJECTED):
                self._refuse(put, receipt)
            else:
                self._note(put, url)

    async def _look_up(self, put: Put) -> None:
        """Find out what is stored of a URL, and count it as that."""
        async with self._look_ups:
            found = await self._store.find(put.message_id)
        if put.before is None and found is not None and found.created_at < put.begun_at:
            put.before = found  # the put has not stored it first, so it is counted, and as it is
        if found != put.before:
            self._note(put, found)
            return

        put.end(PutStatus.OK)
        self._buffer.end_put(put.message_id, time.time())

    def _note(self, put: Put, url: CrawlUrl | None) -> None:
        now = time.time()
        message_id = put.message_id
        if put.kind is PutKind.DISCOVERED:
            self._buffer.begin_put(message_id, put.url.queue)
        self._buffer.change(put.url.queue, put.before, url)
        self._buffer.keep_put(message_id, url, now)
        self._buffer.end_put(message_id, now)
        put.end(PutStatus.OK)

    def _refuse(self, put: Put, receipt: Receipt[None]) -> None:
        self._warn(receipt.reason or "its message has seen a newer record")
        if receipt.outcome is not StartOutcome.FAILED:
            put.end(PutStatus.FAIL)
            if put.kind is not PutKind.DISCOVERED:
                self._buffer.end_put(put.message_id, time.time())

    def _warn(self, reason: str) -> None:
        if self._log_throttle.lets_through():
            logger.warning("URLs can't be stored", extra={"action": "put_failed", "reason": reason})

    def _fail(self, put: Put) -> None:
        """Fail a put of which nobody knows what became, unless it has ended; what is stored is looked up later."""
        if put.has_ended:
            return
        put.end(PutStatus.FAIL)
        if put.kind is PutKind.DISCOVERED:
            self._buffer.begin_put(put.message_id, put.url.queue)
        look_up = Put(PutKind.LOOK_UP, put.message_id, put.url, before=put.before, begun_at=put.begun_at)
        if not self._is_closed:
            asyncio.get_running_loop().call_later(backoff_seconds(LOOK_UP_AFTER), self._queue, look_up)


def _take_batch(pending: "collections.deque[Put]") -> list[Put]:
    """Take the first puts, but only one of each URL, and none behind one that is left."""
    batch = dict[str, Put]()
    while pending and len(batch) < PUTS_A_CALL and pending[0].message_id not in batch:
        put = pending.popleft()
        batch[put.message_id] = put
    return list(batch.values())


async def _run_all(*work: Coroutine[Any, Any, None]) -> None:
    """Run all to their ends, and raise the first error after that."""
    for ended in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended
