"""The bulk starter: the one way messages are created, whoever asks (command line, bridge, Spark)."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from datetime import timedelta
from typing import TypeVar

from temporalio.api.errordetails.v1 import WorkflowExecutionAlreadyStartedFailure
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from shared.encoding import Pack
from shared.envelope import Envelope
from shared.errors import InvalidEnvelope, RetryLater
from shared.pack_entry import Entry, to_entry
from shared.placement import Layout, workflow_id
from shared.settings import Settings
from starter.admission import Admission
from starter.caller import Called, Caller
from starter.chunks import Chunk, Gathering
from starter.flight import Flight
from starter.layouts import Layouts
from starter.receipts import Counts, Receipt, StartOutcome, to_refusal
from starter.start_request import build_start_request, first_state

CALL_TIMEOUT = timedelta(seconds=10)
LINGER_SECONDS = 0.2
"""How long messages wait for others of their pack while the stream gives nothing new."""

Tag = TypeVar("Tag")


class BulkStarter:
    """Starts messages: bounded in flight, paced by the server's answers, each retried until accepted or hopeless.

    Idempotent: a message that is alive is never started twice, and a retry of a start that had been accepted
    unseen counts as that start. That holds for one call of `start`; a caller that is itself retried as a whole
    (a Spark task) passes a `session`, within which every start of one id counts as the same wish.

    Messages of kinds that are packed (`encodings`, or what is kept with the kind) go to their packs in chunks.
    """

    def __init__(
        self,
        client: Client,
        settings: Settings,
        *,
        restarts_finished: bool = False,
        session: str | None = None,
        encodings: Mapping[str, Pack] | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._restarts_finished = restarts_finished
        self._session = session
        self._caller = Caller(settings)
        self._layouts = Layouts(client, settings, encodings)
        self._admission = Admission(client, settings, self._caller, restarts_finished=restarts_finished)
        self.counts = Counts()

    @property
    def throttled(self) -> int:
        """How often the server had no room."""
        return self._caller.throttled

    @property
    def retried(self) -> int:
        """How often a call was repeated for another reason."""
        return self._caller.retried

    async def start(self, envelope: Envelope, tag: Tag) -> Receipt[Tag]:
        """Start one message and give its receipt; raises Misconfigured when the server refuses this client as such."""
        async for receipt in self.start_all([(tag, envelope)]):
            return receipt
        raise RuntimeError("a start without a receipt")

    async def start_all(
        self, envelopes: AsyncIterable[tuple[Tag, Envelope]] | Iterable[tuple[Tag, Envelope]]
    ) -> AsyncIterator[Receipt[Tag]]:
        """Start a stream of (tag, envelope) and give receipts as they come, in no particular order.

        The stream is read only as fast as receipts are taken; memory holds at most `in_flight` calls of it, and
        `pack_room` messages that wait for others of their packs. An error of the stream itself is raised once it is
        reached, and cancels what is under way.
        """
        flight = Flight[list[Receipt[Tag]]](self._settings.in_flight)
        async with contextlib.aclosing(flight.landings(self._read(envelopes, flight))) as landings:
            async for receipts in landings:
                for receipt in receipts:
                    self.counts.by_outcome[receipt.outcome] += 1
                    yield receipt

    async def _read(
        self,
        envelopes: AsyncIterable[tuple[Tag, Envelope]] | Iterable[tuple[Tag, Envelope]],
        flight: Flight[list[Receipt[Tag]]],
    ) -> None:
        gathering, is_fresh = Gathering[Tag](self._settings.pack_room), False
        flushing = asyncio.Lock()

        async def flush_when_idle() -> None:
            nonlocal is_fresh
            while True:
                await asyncio.sleep(LINGER_SECONDS)
                if not is_fresh:
                    async with flushing:
                        await self._flush(gathering, flight)
                is_fresh = False

        lingering = asyncio.create_task(flush_when_idle())
        try:
            async for tag, envelope in _iterate(envelopes):
                is_fresh = True
                try:
                    layout = self._layouts.known(envelope.kind) or await self._find_layout(envelope)
                except RetryLater as exc:
                    await flight.take_off(_fail(envelope, tag, str(exc), self._layouts.attempts))
                    continue
                if layout is None or envelope.lane is None:  # without a lane it is refused there
                    await flight.take_off(self._start_solo(envelope, tag))
                elif (chunk := gathering.add(layout, tag, _to_entry(envelope, layout))) is not None:
                    await flight.take_off(self._start_chunk(chunk))
            async with flushing:  # a flush that waits for room has a chunk in hand that nobody else knows of
                lingering.cancel()
        finally:
            lingering.cancel()
        await self._flush(gathering, flight)

    async def _flush(self, gathering: Gathering[Tag], flight: Flight[list[Receipt[Tag]]]) -> None:
        for chunk in gathering.take_all():
            await flight.take_off(self._start_chunk(chunk))

    async def _find_layout(self, envelope: Envelope) -> Layout | None:
        return await self._layouts.settle(envelope.kind, envelope.lane or "short")

    async def _start_chunk(self, chunk: Chunk[Tag]) -> list[Receipt[Tag]]:
        return await self._admission.admit(chunk, self._session or str(uuid.uuid4()))

    async def _start_solo(self, envelope: Envelope, tag: Tag) -> list[Receipt[Tag]]:
        name = workflow_id(envelope.kind, envelope.id)
        try:
            request = await build_start_request(
                self._client,
                self._settings,
                envelope,
                now=time.time(),
                session=self._session or str(uuid.uuid4()),
                restarts_finished=self._restarts_finished,
            )
        except InvalidEnvelope as exc:
            return [Receipt(tag, name, StartOutcome.REJECTED, reason=str(exc), attempts=0)]
        service = self._client.workflow_service
        # retry=False: the SDK's own retries would hide that the server is at its limit
        called = await self._caller.call(
            lambda: service.start_workflow_execution(request, retry=False, timeout=CALL_TIMEOUT)
        )
        return [_to_receipt(called, tag, name)]


async def _fail(envelope: Envelope, tag: Tag, reason: str, attempts: int) -> list[Receipt[Tag]]:
    return [Receipt(tag, workflow_id(envelope.kind, envelope.id), StartOutcome.FAILED, "", reason, attempts)]


def _to_entry(envelope: Envelope, layout: Layout) -> Entry:
    return to_entry(first_state(envelope, time.time()), layout.lane)


def _to_receipt(called: Called[StartWorkflowExecutionResponse], tag: Tag, name: str) -> Receipt[Tag]:
    if called.answer is not None:
        return Receipt(tag, name, StartOutcome.STARTED, called.answer.run_id, attempts=called.attempts)
    if called.error is not None and called.error.status is RPCStatusCode.ALREADY_EXISTS:
        return Receipt(tag, name, StartOutcome.ALREADY_RUNNING, _run_id_in(called.error), attempts=called.attempts)
    return to_refusal(called.error, tag, name, called.attempts)


def _run_id_in(exc: RPCError) -> str:
    details = WorkflowExecutionAlreadyStartedFailure()
    for detail in exc.grpc_status.details:
        if detail.Unpack(details):
            return details.run_id
    return ""


async def _iterate(
    items: AsyncIterable[tuple[Tag, Envelope]] | Iterable[tuple[Tag, Envelope]],
) -> AsyncIterator[tuple[Tag, Envelope]]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
