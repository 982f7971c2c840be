"""Control: the verbs that steer messages, for Python code, the command line and whatever comes after."""

import asyncio
import math
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
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
from temporalio.service import RPCError

from activities.measures import set_priority
from shared.backoff import backoff_seconds
from shared.encoding import Pack
from shared.envelope import Envelope
from shared.errors import GiveUp, MessageNotFound, PackNotServed, RetryLater, StandsStill
from shared.placement import Layout, pack_index, pack_workflow_id, workflow_id
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
from shared.temporal import CALL_TIMEOUT, is_missing, translate_rpc_error
from starter.bulk import BulkStarter
from starter.grouping import Group, group_names
from starter.layouts import Layouts
from starter.listing import Listed, from_status, to_listed
from starter.packs import Packs
from starter.receipts import Receipt
from starter.selection import Selection
from starter.standstill import find_standstill, to_standstill
from starter.start_request import USUAL_PRIORITY

QUERY_TIMEOUT = timedelta(seconds=5)
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
    lives_in: str
    """Id of the workflow it lives in."""
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

    def __init__(self, client: Client, settings: Settings, encodings: Mapping[str, Pack] | None = None) -> None:
        """Take a client; `encodings` is what handlers declare, which counts only for `start`."""
        self._client = client
        self._settings = settings
        self._encodings = encodings
        self._layouts = Layouts(client, settings)
        self._packs = Packs(client, settings)

    async def start(self, envelope: Envelope) -> Receipt[None]:
        """Start one message; one that has finished is started anew, one that is alive is left alone."""
        starter = BulkStarter(self._client, self._settings, restarts_finished=True, encodings=self._encodings)
        return await starter.start(envelope, None)

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
        layout = await self._layouts.find(kind)
        if layout is None:
            await self._send_to_solo(kind, message_id, signal)
        elif await self._packs.steer(layout, pack_index(message_id, layout.packs), [message_id], signal):
            raise MessageNotFound(_not_alive(kind, message_id))

    async def _send_to_solo(self, kind: str, message_id: str, signal: Signal) -> None:
        name = workflow_id(kind, message_id)
        try:
            if isinstance(signal, Reprioritize):
                # first, because the signal itself waits in the very queue that the message is to overtake in
                await set_priority(self._client, name, signal.priority)
            handle = self._client.get_workflow_handle(name)
            await handle.signal(SIGNAL_NAMES[type(signal)], signal, rpc_timeout=CALL_TIMEOUT)
            if isinstance(signal, Stop) and (found := await find_standstill(self._client, name)) is not None:
                raise StandsStill(f"{found.describe()}; 'dormice repair --help' says what to do")
        except RPCError as exc:
            raise _translate(exc, _not_alive(kind, message_id)) from exc

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
        """Send a signal to each of a stream of (kind, id), at most `in_flight` calls at once, counting on `tally`.

        Messages of one pack that come near each other go in one call. A call that the server can't take is repeated for
        as long as the setting `patience` says; then RetryLater ends it all. Doing it all again does no harm, because
        signals are idempotent.
        """
        source, turn = aiter(group_names(names, self._layouts)), asyncio.Lock()

        async def work() -> None:
            while True:
                async with turn:
                    group = await anext(source, None)
                if group is None:
                    return
                await self._send_patiently(group, signal, tally)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._settings.in_flight):
                    tasks.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _send_patiently(self, group: Group, signal: Signal, tally: Tally) -> None:
        give_up_at = time.monotonic() + self._settings.patience.total_seconds()
        attempts = 0
        while True:
            try:
                missing = await self._send_to_group(group, signal)
            except (PackNotServed, StandsStill) as exc:
                tally.sent += len(group.ids)
                tally.tell_missing(f"{exc}; the signal is kept and takes effect then")
                return
            except RetryLater:
                if time.monotonic() >= give_up_at:
                    raise
                attempts += 1
                await asyncio.sleep(backoff_seconds(attempts))
            else:
                tally.sent += len(group.ids) - len(missing)
                tally.missing += len(missing)
                for message_id in missing:
                    tally.tell_missing(_not_alive(group.kind, message_id))
                return

    async def _send_to_group(self, group: Group, signal: Signal) -> list[str]:
        """Give the ids of the group that are not alive."""
        if group.layout is not None:
            return await self._packs.steer(group.layout, group.index, group.ids, signal)
        try:
            await self._send_to_solo(group.kind, group.ids[0], signal)
        except MessageNotFound:
            return group.ids
        return []

    async def list(self, selection: Selection, limit: int | None = None) -> AsyncIterator[Listed]:
        """List a selection, at most `limit`: what has a workflow of its own, newest start first, then what is packed.

        The former comes from the index, eventually consistent; the latter from the packs, of which the index says which
        may hold some.
        """
        left = math.inf if limit is None else limit
        pages = self._client.list_workflows(selection.to_query(), limit=limit, page_size=PAGE_SIZE)
        try:
            async for execution in pages:
                left -= 1
                yield await to_listed(execution)
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc
        if left > 0:
            async for listed in self._packs.iterate(self._layouts, selection):
                yield listed
                left -= 1
                if left <= 0:
                    return

    async def names(
        self, selection: Selection, keep: Callable[[Listed], bool] = lambda _: True
    ) -> AsyncIterator[tuple[str, str]]:
        """Give (kind, id) of every message of a selection that `keep` keeps."""
        async for listed in self.list(selection):
            if keep(listed):
                yield listed.kind, listed.id

    async def count(self, selection: Selection) -> int:
        """Count a selection, in the index and in the packs."""
        try:
            solo = (await self._client.count_workflows(selection.to_query())).count
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc
        return solo + await self._packs.count(self._layouts, selection)

    async def look_up(self, kind: str, message_id: str) -> Listed:
        """Give what the server itself, or the message's pack, knows of it, alive or finished; never out of date."""
        layout = await self._layouts.find(kind)
        if layout is not None:
            return (await self._show_packed(layout, message_id)).listed
        return await to_listed(await self._describe(kind, message_id))

    async def show(self, kind: str, message_id: str) -> Shown:
        """Show one message, alive or finished; without a worker to ask, what the server itself knows.

        Of a packed message only its pack knows anything: then PackNotServed is raised.
        """
        layout = await self._layouts.find(kind)
        if layout is not None:
            return await self._show_packed(layout, message_id)
        described = await self._describe(kind, message_id)
        handle = self._client.get_workflow_handle(workflow_id(kind, message_id), run_id=described.run_id)
        status, explained = await asyncio.gather(_ask(handle.query, "status"), _ask(handle.query, "explain"))
        listed = await to_listed(described)
        note = "" if status else await self._explain_silence(described, listed.lane)
        return Shown(
            listed=listed,
            status=status,
            ended=await _result_of(handle) if described.status is WorkflowExecutionStatus.COMPLETED else None,
            decisions=[] if explained is None else explained["decisions"],
            priority=described.raw_description.workflow_execution_info.priority.priority_key or USUAL_PRIORITY,
            history_length=described.history_length,
            lives_in=described.id,
            note=note,
        )

    async def _explain_silence(self, described: WorkflowExecutionDescription, lane: str) -> str:
        if (found := await to_standstill(self._client, described)) is not None:
            return f"{found.describe()}; 'dormice repair --help' says what to do"
        return f"no worker of lane {lane} could tell more within {QUERY_TIMEOUT.seconds} s"

    async def _show_packed(self, layout: Layout, message_id: str) -> Shown:
        index = pack_index(message_id, layout.packs)
        status = await self._packs.status(layout, index, message_id)
        if status is None:
            raise MessageNotFound(_not_known(layout.kind, message_id))
        described = await self._client.get_workflow_handle(pack_workflow_id(layout.kind, index)).describe()
        is_over = status["state"] in ("done", "stopped")
        return Shown(
            listed=from_status(status),
            status=None if is_over else status,
            ended={name: status[name] for name in ("state", "version", "result")} if is_over else None,
            decisions=status["decisions"],
            priority=status["priority"],
            history_length=described.history_length,
            lives_in=pack_workflow_id(layout.kind, index),
        )

    async def _describe(self, kind: str, message_id: str) -> WorkflowExecutionDescription:
        name = workflow_id(kind, message_id)
        try:
            return await self._client.get_workflow_handle(name).describe(rpc_timeout=CALL_TIMEOUT)
        except RPCError as exc:
            raise _translate(exc, _not_known(kind, message_id)) from exc


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


def _not_alive(kind: str, message_id: str) -> str:
    return f"no message {workflow_id(kind, message_id)} is alive; 'dormice list' shows those that are"


def _not_known(kind: str, message_id: str) -> str:
    return f"no message {workflow_id(kind, message_id)} is known; 'dormice list' shows those that are alive"


def _write(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise GiveUp(f"due_at: {moment.isoformat()} has no time zone; add one, for example UTC")
    return moment.astimezone(UTC).isoformat()


def _translate(exc: RPCError, not_found: str) -> Exception:
    if is_missing(exc):
        return MessageNotFound(not_found)
    return translate_rpc_error(exc)
