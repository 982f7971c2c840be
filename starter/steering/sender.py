"""The sender: sends signals to messages, one by one or in bulk, and reports the results."""

import asyncio
import time
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from temporalio.client import Client
from temporalio.service import RPCError

from activities.server_calls import set_priority
from shared.errors import InvalidEnvelope, MessageNotFound, PackNotServed, RetryLater, StandsStill
from shared.messages.envelope import EnvelopeRules, parse_envelope
from shared.messages.placement import pack_index, workflow_id
from shared.messages.signals import SIGNAL_NAMES, Reprioritize, Signal, Stop
from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import CALL_TIMEOUT, is_missing, translate_rpc_error
from shared.temporal.search_attributes import STATE
from starter.starting.layouts import Layouts
from starter.steering.grouping import Group, group_names
from starter.steering.packs import Packs
from starter.steering.pending_effects import explain_pending, find_blocking_state
from starter.steering.status.failing_workflows import to_standstill
from starter.steering.status.queries import query_or_none


@dataclass(slots=True)
class SignalCounts:
    """Running totals of one signal sent to many messages."""

    sent: int = 0
    """Messages that the signal was sent to, including those in `waiting`."""
    waiting: int = 0
    """Messages for which the server keeps the signal, because no worker serves their pack or its task fails."""
    missing: int = 0
    """Messages that were not alive."""
    report: Callable[[str], None] = lambda _: None
    """Gets a sentence for each message that waits, is missing, or does not run yet although the signal asks for it."""


class _Sent(NamedTuple):
    """Result of a signal for some messages."""

    missing: Sequence[str] = ()
    """Ids that are not alive."""
    pending: Sequence[str] = ()
    """A sentence for each named message that does not run yet although the signal asks for it."""


class Sender:
    """Sends signals to messages, whatever workflow they live in."""

    def __init__(self, client: Client, settings: Settings, layouts: Layouts, packs: Packs) -> None:
        self._client = client
        self._settings = settings
        self._layouts = layouts
        self._packs = packs

    async def send(self, kind: str, message_id: str, signal: Signal) -> str:
        """Send a signal to one message, see `Control.send`."""
        check_signal(signal, self._settings)
        layout = await self._layouts.find(kind)
        index = 0 if layout is None else pack_index(message_id, layout.packs)
        sent = await self._send_to_group(Group(kind, layout, index, [message_id]), signal, is_named=True)
        if sent.missing:
            raise MessageNotFound(_describe_missing(kind, message_id))
        return "".join(sent.pending)

    async def send_to_each(
        self, names: AsyncIterable[tuple[str, str]], signal: Signal, counts: SignalCounts, *, are_named: bool
    ) -> None:
        """Send a signal to each of a stream, see `Control.send_to_each`."""
        check_signal(signal, self._settings)
        source, turn = aiter(group_names(names, self._layouts)), asyncio.Lock()

        async def work() -> None:
            while True:
                async with turn:
                    group = await anext(source, None)
                if group is None:
                    return
                await self._send_patiently(group, signal, counts, are_named=are_named)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._settings.in_flight):
                    tasks.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _send_patiently(self, group: Group, signal: Signal, counts: SignalCounts, *, are_named: bool) -> None:
        give_up_at = time.monotonic() + self._settings.patience.total_seconds()
        attempts = 0
        while True:
            try:
                sent = await self._send_to_group(group, signal, is_named=are_named)
            except (PackNotServed, StandsStill) as exc:
                counts.sent += len(group.ids)
                counts.waiting += len(group.ids)
                counts.report(f"{exc}; the signal is kept and takes effect then")
                return
            except RetryLater:
                if time.monotonic() >= give_up_at:
                    raise
                attempts += 1
                await asyncio.sleep(backoff_seconds(attempts))
            else:
                counts.sent += len(group.ids) - len(sent.missing)
                counts.missing += len(sent.missing)
                for sentence in [*(_describe_missing(group.kind, name) for name in sent.missing), *sent.pending]:
                    counts.report(sentence)
                return

    async def _send_to_group(self, group: Group, signal: Signal, *, is_named: bool) -> _Sent:
        """Send to some messages of a pack, or to one that has a workflow of its own."""
        if group.layout is None:
            return await self._send_to_solo(group.kind, group.ids[0], signal, is_named=is_named)
        missing = await self._packs.steer(group.layout, group.index, group.ids, signal)
        if not is_named or not (state := find_blocking_state(signal)):
            return _Sent(missing)
        blocked = await self._packs.list_ids(group.layout, group.index, state)
        names = [workflow_id(group.kind, message_id) for message_id in group.ids if message_id in blocked]
        return _Sent(missing, [explain_pending(signal, name) for name in names])

    async def _send_to_solo(self, kind: str, message_id: str, signal: Signal, *, is_named: bool) -> _Sent:
        name = workflow_id(kind, message_id)
        handle = self._client.get_workflow_handle(name)
        try:
            if isinstance(signal, Reprioritize):
                # first, because the signal's own task waits in the queue in which the message is to move up
                await set_priority(self._client, name, signal.priority)
            await handle.signal(SIGNAL_NAMES[type(signal)], signal, rpc_timeout=CALL_TIMEOUT)
            if not is_named and not isinstance(signal, Stop):  # in bulk, two calls each would halve the speed
                return _Sent()
            described = await handle.describe(rpc_timeout=CALL_TIMEOUT)
            if (found := await to_standstill(self._client, described)) is not None:
                raise StandsStill(f"{found.describe()}; 'dormice repair --help' says what to do")
        except RPCError as exc:
            if is_missing(exc):
                return _Sent([message_id])
            raise translate_rpc_error(exc) from exc
        if not (state := find_blocking_state(signal)) or described.typed_search_attributes.get(STATE) != state:
            return _Sent()
        # the index does not show yet what a recent signal has changed; the message itself knows
        status = await query_or_none(handle.query, "status")
        is_blocked = status is None or status["phase"] == state
        return _Sent(pending=[explain_pending(signal, name)] if is_blocked else [])


def check_signal(signal: Signal, settings: Settings) -> None:
    """Raise InvalidEnvelope for a signal that would give a message an invalid field."""
    fields = {"payload": getattr(signal, "payload", None), "lane": getattr(signal, "lane", "") or None}
    fields |= {"scheduled_at": getattr(signal, "due_at", None)}
    if (priority := getattr(signal, "priority", None)) is not None:
        fields["priority"] = priority
    rules = EnvelopeRules({"any": "short"}, settings.payload_max_bytes)
    try:
        parse_envelope({"kind": "any", "id": "any", **fields}, rules)
    except InvalidEnvelope as exc:
        raise InvalidEnvelope(exc.field.replace("scheduled_at", "due_at"), exc.problem, exc.flaw) from exc


def _describe_missing(kind: str, message_id: str) -> str:
    return f"no message {workflow_id(kind, message_id)} is alive; 'dormice list' shows those that are"
