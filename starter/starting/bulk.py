"""The bulk starter: the only way to create messages, used by the command line, the bridge and Spark."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from temporalio.client import Client

from shared.errors import RetryLater
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.message import NO_TRACE, MessageState
from shared.messages.placement import Layout, PackSpread, pack_index, workflow_id
from shared.packs.entry import Entry, to_entry
from shared.settings import Settings
from starter.starting.calls import RetryingCaller, TaskPool
from starter.starting.chunks import Chunk, ChunkBuffer
from starter.starting.delivery import Delivery
from starter.starting.layouts import Layouts
from starter.starting.pack_starter import PackStarter
from starter.starting.receipts import ChunkReceipts, Receipt, StartOutcome, Tag
from starter.starting.solo import SoloStarter
from starter.starting.start_request import find_sources, first_entry

LINGER_SECONDS = 0.2
"""How long messages wait for others of their pack while the stream brings nothing new."""

LINGERS_MAX = 5
FEW = 1000
"""On a slow stream, fewer than FEW buffered messages are flushed after LINGERS_MAX intervals of LINGER_SECONDS."""

GATHERED_SECONDS = 10.0
"""Longest wait for others of the pack while the server has room; while it has none, larger calls help more."""

Item = TypeVar("Item")
Request = Envelope | Delivery
_Item = tuple[Tag, Request] | list[tuple[Tag, Request]] | Chunk[Tag]
Requests = AsyncIterable[_Item[Tag]] | Iterable[_Item[Tag]]
Receipts = list[Receipt[Tag]] | ChunkReceipts[Tag]


class BulkStarter:
    """Starts messages: a bounded number at once, at a rate the server allows, each retried until accepted or refused.

    Idempotent: a message that is alive is never started twice, and a retry counts as the first start if the server
    had accepted that one and its answer was lost. This holds for one call of `start`; a caller that is retried as a
    whole (a Spark task) passes a `session`, within which every start of one id counts as the same request.

    Messages of packed kinds (by `encodings`, or by the layout stored with the kind) go to their packs in chunks.

    With `revises` it takes deliveries instead of envelopes: a message that is already known is revised, stopped or
    started anew as its delivery says. Two deliveries of one message must not be under way at once.
    """

    def __init__(
        self,
        client: Client,
        settings: Settings,
        *,
        restarts_finished: bool = False,
        session: str | None = None,
        encodings: Mapping[str, Pack] | None = None,
        revises: bool = False,
    ) -> None:
        self._client = client
        self._settings = settings
        self._restarts_finished = restarts_finished
        self._session = session
        self.caller = RetryingCaller(settings.patience, settings.starts_per_second)
        self._layouts = Layouts(client, settings, encodings)
        self._solo = SoloStarter(client, settings, self.caller)
        self._packs = PackStarter(
            client,
            settings,
            self.caller,
            restarts_finished=restarts_finished,
            revises=revises,
            layouts=self._layouts,
        )

    async def start(self, request: Request, tag: Tag) -> Receipt[Tag]:
        """Start one message, or deliver it, and return its receipt.

        With an idempotency key a repeated start is the first one, and one with another body is rejected.
        Raises Misconfigured when the server refuses this client.
        """
        envelope = request.envelope if isinstance(request, Delivery) else request
        found = await self._find_pack(request, tag, lacks_lane=_lacks_lane(envelope))
        if isinstance(found, Layout):
            chunk = Chunk[Tag](found, pack_index(request.id, found.packs))
            chunk.add(tag, _to_entry(found, chunk.index, request, envelope))
            found = self._start_chunk(chunk, _name_session(request))

        (receipt,) = await found
        return receipt

    async def start_all(self, requests: Requests[Tag]) -> AsyncIterator[Receipt[Tag]]:
        """Start a stream of messages, as `start_groups` does, and yield the receipt of each."""
        async with contextlib.aclosing(self.start_groups(requests)) as groups:
            async for receipts in groups:
                for receipt in receipts:
                    yield receipt

    async def start_groups(self, requests: Requests[Tag]) -> AsyncGenerator[Receipts[Tag]]:
        """Start a stream of (tag, envelope) or (tag, delivery) and yield the receipts of each call, in no fixed order.

        A stream may give lists of those, which takes less time. A sender that has the messages of a pack side by side
        may give chunks instead, which are sent as they are.

        The stream is read only as fast as receipts are consumed: memory holds at most `in_flight` calls, and
        `pack_room` messages in at most ROOM_BYTES. An error of the stream is raised when it is reached, and cancels
        the calls under way.
        """
        pool = TaskPool[Receipts[Tag]](self._settings.in_flight)
        async with contextlib.aclosing(pool.results(self._read(requests, pool))) as results:
            async for receipts in results:
                yield receipts

    async def find_layout(self, kind: str, lane: str) -> Layout | None:
        """Give the layout of a kind whose messages are about to start, None if they are solo; see `Layouts.ensure`."""
        return self._layouts.known(kind) or await self._layouts.ensure(kind, lane)

    async def _read(self, requests: Requests[Tag], pool: TaskPool[Receipts[Tag]]) -> None:
        buffer = ChunkBuffer[Tag](self._settings.pack_room)
        is_fresh = False
        flushing = asyncio.Lock()

        async def flush_when_idle() -> None:
            nonlocal is_fresh
            lingers = 0

            while True:
                await asyncio.sleep(LINGER_SECONDS)
                lingers = lingers + 1 if len(buffer) else 0
                chunks: Iterable[Chunk[Tag]] = ()

                if not is_fresh or (lingers >= LINGERS_MAX and len(buffer) < FEW):
                    chunks = buffer.take_all()
                    lingers = 0
                elif pool.is_half_empty:
                    chunks = buffer.take_old(time.monotonic() - GATHERED_SECONDS)

                async with flushing:
                    await self._hand_over(chunks, pool)

                is_fresh = False

        flusher = asyncio.create_task(flush_when_idle())
        try:
            async for item in requests if isinstance(requests, AsyncIterable) else _iterate(requests):
                is_fresh = True
                if isinstance(item, Chunk):
                    await self._hand_over([item], pool)
                    continue
                layout: Layout | None = None
                for tag, request in item if isinstance(item, list) else [item]:
                    envelope = request.envelope if isinstance(request, Delivery) else request
                    lacks_lane = _lacks_lane(envelope)
                    if layout is None or layout.kind != request.kind or lacks_lane:
                        layout = await self._start_unless_packed(request, tag, pool, lacks_lane=lacks_lane)
                    if layout is not None and (chunk := _gather(buffer, layout, request, envelope, tag)) is not None:
                        await self._hand_over([chunk], pool)
                        layout = None  # that may have taken long, and another layout may hold now
            async with flushing:  # let a flush finish: its chunk is no longer in the buffer
                flusher.cancel()
        finally:
            flusher.cancel()
        await self._hand_over(buffer.take_all(), pool)

    async def _hand_over(self, chunks: Iterable[Chunk[Tag]], pool: TaskPool[Receipts[Tag]]) -> None:
        for chunk in chunks:
            await pool.submit(self._start_chunk(chunk))
            await asyncio.sleep(0)  # the call is sent now, and answered while the next chunk is gathered

    async def _start_unless_packed(
        self, request: Request, tag: Tag, pool: TaskPool[Receipts[Tag]], *, lacks_lane: bool
    ) -> Layout | None:
        """Give the layout of a message that goes to a pack; start any other, and give None."""
        found = await self._find_pack(request, tag, lacks_lane=lacks_lane)
        if isinstance(found, Layout):
            return found
        await pool.submit(found)
        return None

    async def _find_pack(
        self, request: Request, tag: Tag, *, lacks_lane: bool
    ) -> Layout | Coroutine[Any, Any, Receipts[Tag]]:
        """Give the layout of a message that goes to a pack, and what starts or fails any other."""
        try:
            layout = self._layouts.known(request.kind) or await self._find_layout(request)
        except RetryLater as exc:
            return _fail(request, tag, str(exc), self._layouts.attempts)
        if layout is None or lacks_lane:
            return self._start_solo(request, tag)  # which rejects a message without a lane
        return layout

    async def _find_layout(self, request: Request) -> Layout | None:
        if isinstance(request, Delivery):
            if request.envelope is None:  # a stop must not fix the layout of a kind
                return await self._layouts.find_patiently(request.kind)
            request = request.envelope
        return await self._layouts.ensure(request.kind, request.lane or "short")

    async def _start_chunk(self, chunk: Chunk[Tag], key: str = "") -> Receipts[Tag]:
        return await self._packs.admit(chunk, self._session or key or str(uuid.uuid4()))

    async def _start_solo(self, request: Request, tag: Tag) -> Receipts[Tag]:
        if isinstance(request, Delivery):
            return [await self._solo.deliver(request, tag)]
        session = self._session or str(uuid.uuid4())
        return [await self._solo.start(request, tag, session=session, restarts_finished=self._restarts_finished)]


def _name_session(request: Request) -> str:
    """Name what each repetition of a start with an idempotency key belongs to; empty without one."""
    if isinstance(request, Delivery) or not request.idempotency_key:
        return ""
    return f"{request.idempotency_key}|{request.fingerprint}"


async def _fail(request: Request, tag: Tag, reason: str, attempts: int) -> Receipts[Tag]:
    return [Receipt(tag, workflow_id(request.kind, request.id), StartOutcome.FAILED, "", reason, attempts)]


def _lacks_lane(envelope: Envelope | None) -> bool:
    return envelope is not None and envelope.lane is None


def _gather(
    buffer: ChunkBuffer[Tag], layout: Layout, request: Request, envelope: Envelope | None, tag: Tag
) -> Chunk[Tag] | None:
    index = pack_index(request.id, layout.packs)
    return buffer.add(layout, index, tag, _to_entry(layout, index, request, envelope))


def _to_entry(layout: Layout, index: int, request: Request, envelope: Envelope | None) -> Entry:
    now = time.time()
    if isinstance(request, Delivery):
        sources = request.sources
        trace = request.trace
    else:
        sources = find_sources(request)
        trace = NO_TRACE

    if envelope is None:
        ended = MessageState(request.kind, request.id, layout.lane, now, now, ended="stopped", sources=sources)
        return to_entry(ended, layout.lane)

    spread = _find_spread(layout.kind, index, layout.coalesce) if envelope.tolerance_seconds else None
    return first_entry(envelope, now, layout.lane, sources=sources, trace=trace, spread=spread)


_find_spread = lru_cache(maxsize=10_000)(PackSpread.of)


async def _iterate(items: Iterable[Item]) -> AsyncIterator[Item]:
    for item in items:
        yield item
