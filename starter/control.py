"""Control: the verbs that steer messages, for Python code, the command line and whatever comes after."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.measures import set_priority
from shared.envelope import Envelope
from shared.errors import GiveUp, MessageNotFound, RetryLater
from shared.placement import workflow_id
from shared.settings import Settings
from shared.signals import (
    SIGNAL_NAMES,
    Pause,
    PullForward,
    Reprioritize,
    Reschedule,
    Resume,
    Revise,
    RunNow,
    Signal,
    Stop,
)
from shared.temporal import translate_rpc_error
from starter.bulk import BulkStarter, Receipt
from starter.listing import Listed, to_listed
from starter.pace import backoff_seconds
from starter.selection import Selection
from starter.start_request import USUAL_PRIORITY

QUERY_TIMEOUT = timedelta(seconds=5)
CALL_TIMEOUT = timedelta(seconds=10)
PAGE_SIZE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One message in full: what the server knows, and what the message itself answered."""

    listed: Listed
    status: dict[str, Any] | None
    """Answer of the `status` query; None when no worker of the lane answered in time."""
    ended: dict[str, Any] | None
    """What the message ended with, as state, version and result; None unless it is done or was stopped."""
    decisions: list[dict[str, Any]]
    priority: int
    history_length: int
    note: str = ""


@dataclass(slots=True)
class Tally:
    """Running totals of one signal sent to many."""

    sent: int = 0
    missing: int = 0
    """Messages that were not alive."""
    tell_missing: Callable[[str], None] = lambda _: None
    """Hears a sentence about each of those."""


class Control:
    """Steers messages by kind and id; the caller need not know in which workflow a message lives.

    Every verb is idempotent and works while the message sleeps, runs, is paused or parked. All raise
    MessageNotFound for a message that is not alive and RetryLater when the server does not answer.
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings

    async def start(self, envelope: Envelope) -> Receipt[None]:
        """Start one message; one that has finished is started anew, one that is alive is left alone."""
        return await BulkStarter(self._client, self._settings, restarts_finished=True).start(envelope, None)

    async def run_now(self, kind: str, message_id: str, reason: str = "") -> None:
        """Run as soon as a worker is free; a parked message gets fresh attempts."""
        await self.send(kind, message_id, RunNow(reason))

    async def reschedule(self, kind: str, message_id: str, due_at: datetime, reason: str = "") -> None:
        """Be due at `due_at` instead."""
        await self.send(kind, message_id, Reschedule(_write(due_at), reason))

    async def reprioritize(
        self, kind: str, message_id: str, priority: int, due_at: datetime | None = None, reason: str = ""
    ) -> None:
        """Take another priority (1 first, 5 last); tasks of the message that already wait in a queue are moved too."""
        await self.send(kind, message_id, Reprioritize(priority, due_at and _write(due_at), reason))

    async def revise(self, kind: str, message_id: str, payload: Any, *, lane: str = "", reason: str = "") -> None:
        """Replace the payload, and move to another lane when one is given."""
        await self.send(kind, message_id, Revise(payload, lane=lane, reason=reason))

    async def pause(self, kind: str, message_id: str, reason: str = "") -> None:
        """Hold until resumed."""
        await self.send(kind, message_id, Pause(reason))

    async def resume(self, kind: str, message_id: str, reason: str = "") -> None:
        """End a pause."""
        await self.send(kind, message_id, Resume(reason))

    async def stop(self, kind: str, message_id: str, reason: str = "") -> None:
        """End for good; a handler at work finishes first."""
        await self.send(kind, message_id, Stop(reason))

    async def pull_forward(self, kind: str, message_id: str, expected_due_at: datetime) -> None:
        """Run ahead of time, if the message is still due at that moment and its `earliest` has passed."""
        await self.send(kind, message_id, PullForward(_write(expected_due_at)))

    async def send(self, kind: str, message_id: str, signal: Signal) -> None:
        """Send any signal."""
        name = workflow_id(kind, message_id)
        try:
            if isinstance(signal, Reprioritize):
                # first, because the signal itself waits in the very queue that the message is to overtake in
                await set_priority(self._client, name, signal.priority)
            handle = self._client.get_workflow_handle(name)
            await handle.signal(SIGNAL_NAMES[type(signal)], signal, rpc_timeout=CALL_TIMEOUT)
        except RPCError as exc:
            raise _translate(exc, f"no message {name} is alive; 'dormice list' shows those that are") from exc

    async def send_to_all(
        self, selection: Selection, signal: Signal, keep: Callable[[Listed], bool] = lambda _: True
    ) -> int:
        """Send a signal to every message of a selection that `keep` keeps; gives how many took it.

        A message that ends meanwhile is passed over.
        """
        tally = Tally()
        await self.send_to_each(self.names(selection, keep), signal, tally)
        return tally.sent

    async def send_to_each(self, names: AsyncIterable[tuple[str, str]], signal: Signal, tally: Tally) -> None:
        """Send a signal to each of a stream of (kind, id), at most `in_flight` at once, counting on `tally`.

        A call that the server can't take is repeated for as long as the setting `patience` says; then RetryLater
        ends it all. Doing it all again does no harm, because signals are idempotent.
        """
        source, turn = aiter(names), asyncio.Lock()

        async def work() -> None:
            while True:
                async with turn:
                    name = await anext(source, None)
                if name is None:
                    return
                try:
                    await self._send_patiently(*name, signal)
                    tally.sent += 1
                except MessageNotFound as exc:
                    tally.missing += 1
                    tally.tell_missing(str(exc))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._settings.in_flight):
                    group.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _send_patiently(self, kind: str, message_id: str, signal: Signal) -> None:
        give_up_at = time.monotonic() + self._settings.patience.total_seconds()
        attempts = 0
        while True:
            try:
                return await self.send(kind, message_id, signal)
            except RetryLater:
                if time.monotonic() >= give_up_at:
                    raise
            attempts += 1
            await asyncio.sleep(backoff_seconds(attempts))

    async def list(self, selection: Selection, limit: int | None = None) -> AsyncIterator[Listed]:
        """List a selection, newest start first, from the index: eventually consistent, at most `limit`."""
        pages = self._client.list_workflows(selection.to_query(), limit=limit, page_size=PAGE_SIZE)
        try:
            async for execution in pages:
                yield await to_listed(execution)
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc

    async def names(
        self, selection: Selection, keep: Callable[[Listed], bool] = lambda _: True
    ) -> AsyncIterator[tuple[str, str]]:
        """Give (kind, id) of every message of a selection that `keep` keeps."""
        async for listed in self.list(selection):
            if keep(listed):
                yield listed.kind, listed.id

    async def count(self, selection: Selection) -> int:
        """Count a selection in the index."""
        try:
            return (await self._client.count_workflows(selection.to_query())).count
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc

    async def look_up(self, kind: str, message_id: str) -> Listed:
        """Give what the server itself knows of one message, alive or finished; never out of date."""
        return await to_listed(await self._describe(kind, message_id))

    async def show(self, kind: str, message_id: str) -> Shown:
        """Show one message, alive or finished; without a worker to ask, what the server itself knows."""
        described = await self._describe(kind, message_id)
        handle = self._client.get_workflow_handle(workflow_id(kind, message_id), run_id=described.run_id)
        status, explained = await asyncio.gather(_ask(handle.query, "status"), _ask(handle.query, "explain"))
        listed = await to_listed(described)
        return Shown(
            listed=listed,
            status=status,
            ended=await _result_of(handle) if described.status is WorkflowExecutionStatus.COMPLETED else None,
            decisions=[] if explained is None else explained["decisions"],
            priority=described.raw_description.workflow_execution_info.priority.priority_key or USUAL_PRIORITY,
            history_length=described.history_length,
            note="" if status else f"no worker of lane {listed.lane} could tell more within {QUERY_TIMEOUT.seconds} s",
        )

    async def _describe(self, kind: str, message_id: str) -> WorkflowExecutionDescription:
        name = workflow_id(kind, message_id)
        try:
            return await self._client.get_workflow_handle(name).describe(rpc_timeout=CALL_TIMEOUT)
        except RPCError as exc:
            raise _translate(exc, f"no message {name} is known; 'dormice list' shows those that are alive") from exc


async def _ask(query: Callable[..., Awaitable[Any]], name: str) -> dict[str, Any] | None:
    try:
        # the SDK repeats a query that timed out: only a limit around it all is one
        async with asyncio.timeout(QUERY_TIMEOUT.total_seconds()):
            return await query(name, result_type=dict[str, Any], rpc_timeout=QUERY_TIMEOUT)
    except (RPCError, TimeoutError, WorkflowQueryFailedError):
        return None


async def _result_of(handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    try:
        return await handle.result(rpc_timeout=CALL_TIMEOUT)
    except RPCError as exc:
        raise translate_rpc_error(exc) from exc


def _write(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise GiveUp(f"due_at: {moment.isoformat()} has no time zone; add one, for example UTC")
    return moment.astimezone(UTC).isoformat()


def _translate(exc: RPCError, not_found: str) -> Exception:
    if exc.status is RPCStatusCode.NOT_FOUND:
        return MessageNotFound(not_found)
    return translate_rpc_error(exc)
