"""The bulk starter: the one way messages are created, whoever asks (command line, bridge, Spark)."""

import asyncio
import enum
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar

from temporalio.api.errordetails.v1 import WorkflowExecutionAlreadyStartedFailure
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from shared.envelope import Envelope
from shared.errors import InvalidEnvelope
from shared.placement import workflow_id
from shared.settings import Settings
from shared.temporal import TRANSIENT, translate_rpc_error
from starter.pace import Pace, backoff_seconds
from starter.start_request import build_start_request

CALL_TIMEOUT = timedelta(seconds=10)

Tag = TypeVar("Tag")


class StartOutcome(enum.Enum):
    """What became of one wish to start a message."""

    STARTED = "started"
    ALREADY_RUNNING = "already running"
    """The server knows the message: it is alive, or has finished and finished ones were not to be started anew."""
    REJECTED = "rejected"
    """It can never be started as it is."""
    FAILED = "failed"
    """The server stayed away longer than the setting `patience`; the same start may succeed later."""


@dataclass(frozen=True, slots=True)
class Receipt(Generic[Tag]):
    """What became of one envelope; `tag` is what the caller gave with it (a line number, an offset)."""

    tag: Tag
    workflow_id: str
    outcome: StartOutcome
    run_id: str = ""
    reason: str = ""
    attempts: int = 1


@dataclass(slots=True)
class Counts:
    """Running totals of one starter."""

    by_outcome: dict[StartOutcome, int] = field(default_factory=lambda: dict.fromkeys(StartOutcome, 0))
    throttled: int = 0
    retried: int = 0

    @property
    def total(self) -> int:
        """All receipts given so far."""
        return sum(self.by_outcome.values())


class BulkStarter:
    """Starts messages: bounded in flight, paced by the server's answers, each retried until accepted or hopeless.

    Idempotent: a message that is alive is never started twice, and a retry of a start that had been accepted
    unseen counts as that start. That holds for one call of `start`; a caller that is itself retried as a whole
    (a Spark task) passes a `session`, within which every start of one id counts as the same wish.
    """

    def __init__(
        self,
        client: Client,
        settings: Settings,
        *,
        restarts_finished: bool = False,
        session: str | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._restarts_finished = restarts_finished
        self._session = session
        self._pace = Pace(settings.starts_per_second)
        self.counts = Counts()

    async def start(self, envelope: Envelope, tag: Tag) -> Receipt[Tag]:
        """Start one message and give its receipt; raises Misconfigured when the server refuses this client as such."""
        receipt = await self._start(envelope, tag)
        self.counts.by_outcome[receipt.outcome] += 1
        return receipt

    async def start_all(
        self, envelopes: AsyncIterable[tuple[Tag, Envelope]] | Iterable[tuple[Tag, Envelope]]
    ) -> AsyncIterator[Receipt[Tag]]:
        """Start a stream of (tag, envelope) and give receipts as they come, in no particular order.

        The stream is read only as fast as receipts are taken; memory holds at most `in_flight` of it. An error of
        the stream itself is raised once it is reached, and cancels what is under way.
        """
        room = asyncio.Semaphore(self._settings.in_flight)
        under_way: set[asyncio.Task[Receipt[Tag]]] = set()
        ended: asyncio.Queue[asyncio.Task[Receipt[Tag]] | None] = asyncio.Queue()

        async def read() -> None:
            async for tag, envelope in _iterate(envelopes):
                await room.acquire()
                task = asyncio.create_task(self.start(envelope, tag))
                under_way.add(task)
                task.add_done_callback(ended.put_nowait)

        reading = asyncio.create_task(read())
        reading.add_done_callback(lambda _: ended.put_nowait(None))
        is_read = False
        try:
            while under_way or not is_read:
                task = await ended.get()
                if task is None:
                    is_read = True
                    await reading
                    continue
                under_way.discard(task)
                room.release()
                yield task.result()
        finally:
            await _end({reading, *under_way})

    async def _start(self, envelope: Envelope, tag: Tag) -> Receipt[Tag]:
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
            return Receipt(tag, name, StartOutcome.REJECTED, reason=str(exc), attempts=0)
        give_up_at = time.monotonic() + self._settings.patience.total_seconds()
        attempts = 0
        while True:
            await self._pace.take()
            attempts += 1
            try:
                run_id = await self._call(request)
            except RPCError as exc:
                if exc.status is RPCStatusCode.ALREADY_EXISTS:
                    self._pace.note_answered()
                    return Receipt(tag, name, StartOutcome.ALREADY_RUNNING, _run_id_in(exc), attempts=attempts)
                if exc.status not in TRANSIENT:
                    return self._refused(exc, tag, name, attempts)
                if time.monotonic() >= give_up_at:
                    return Receipt(tag, name, StartOutcome.FAILED, "", str(translate_rpc_error(exc)), attempts)
                await self._back_off(exc, attempts)
            else:
                self._pace.note_answered()
                return Receipt(tag, name, StartOutcome.STARTED, run_id, attempts=attempts)

    async def _call(self, request: StartWorkflowExecutionRequest) -> str:
        # retry=False: the SDK's own retries would hide that the server is at its limit
        answer = await self._client.workflow_service.start_workflow_execution(
            request, retry=False, timeout=CALL_TIMEOUT
        )
        return answer.run_id

    def _refused(self, exc: RPCError, tag: Tag, name: str, attempts: int) -> Receipt[Tag]:
        if exc.status is RPCStatusCode.INVALID_ARGUMENT:
            return Receipt(tag, name, StartOutcome.REJECTED, "", f"the server refuses it ({exc.message})", attempts)
        raise translate_rpc_error(exc) from exc

    async def _back_off(self, exc: RPCError, attempts: int) -> None:
        if exc.status is RPCStatusCode.RESOURCE_EXHAUSTED:
            self.counts.throttled += 1
            self._pace.note_throttled()
        else:
            self.counts.retried += 1
        await asyncio.sleep(backoff_seconds(attempts))


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
