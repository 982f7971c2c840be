"""The sender: sends signals to messages, one by one or in bulk, and reports the results."""

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from temporalio.client import Client
from temporalio.service import RPCError

from shared.errors import IdempotencyKeyReused, InvalidEnvelope, MessageNotFound, PackNotServed, RetryLater, StandsStill
from shared.messages.decision import is_key_reused
from shared.messages.envelope import EnvelopeRules, PayloadCheck, find_misfit, parse_envelope
from shared.messages.placement import Layout, pack_index, workflow_id
from shared.messages.signals import (
    SIGNAL_NAMES,
    Reprioritize,
    Reschedule,
    Resume,
    Revise,
    RunNow,
    Signal,
    Stop,
    find_fingerprint,
    name_request,
)
from shared.settings import Settings
from shared.temporal.backoff import Patience
from shared.temporal.connect import CALL_TIMEOUT, is_missing, translate_rpc_error
from shared.temporal.search_attributes import STATE
from shared.temporal.workflow_calls import set_priority
from starter.starting.calls import TaskPool
from starter.starting.layouts import Layouts
from starter.starting.queries import query_or_none
from starter.starting.receipts import KEY_UNCHECKED
from starter.steering.packs.packs import HistoryFull, Packs
from starter.steering.status.failing_workflows import to_standstill

IDS_MAX = 500
"""Most messages in one signal; with the longest ids they take 100 KB."""

HELD_BACK_MAX = 50_000
NO_CHECKS: Mapping[str, PayloadCheck] = MappingProxyType({})

MISSING = "no message {} is alive; 'dormice list' shows those that are"


@dataclass(slots=True)
class SignalCounts:
    """Running totals of one signal sent to many messages."""

    sent: int = 0
    """Messages that the signal was sent to, including those in `waiting`."""
    waiting: int = 0
    """Messages for which the server keeps the signal, because no worker serves their pack or its task fails."""
    missing: int = 0
    """Messages that were not alive."""
    unsent: int = 0
    """Messages that got nothing, because their pack does not answer and its history is full."""
    report: Callable[[str], None] = lambda _: None
    """Gets a sentence for what waits, is missing, got nothing, or does not run yet although the signal asks for it."""


@dataclass(slots=True)
class Group:
    """Messages that one call signals: some of one pack, or one that has a workflow of its own."""

    kind: str
    layout: Layout | None = None
    index: int = 0
    ids: list[str] = field(default_factory=list[str])


_Sent = tuple[list[str], list[str]]
"""Ids that are not alive, and a sentence for each named message that does not run yet in spite of the signal."""


class Sender:
    """Sends one signal to messages, whatever workflow they live in; `checks` are for the payload of a revision."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        packs: Packs,
        signal: Signal,
        *,
        is_named: bool,
        checks: Mapping[str, PayloadCheck] = NO_CHECKS,
    ) -> None:
        check_signal(signal, settings)
        self._client = client
        self._settings = settings
        self._packs = packs
        self._signal = signal
        self._is_named = is_named
        self._checks = checks
        self._blocking_state, self._sentence = find_obstacle(signal) if is_named else ("", "")

    async def send(self, kind: str, message_id: str) -> str:
        """Send the signal to one message, see `Control.send`."""
        layout = await self._packs.layouts.find(kind)
        index = 0 if layout is None else pack_index(message_id, layout.packs)
        missing, pending = await self._send_to_group(Group(kind, layout, index, [message_id]))
        if missing:
            raise MessageNotFound(MISSING.format(workflow_id(kind, message_id)))
        unchecked = await self._check_key(layout, index, kind, message_id)
        return "".join(pending) or unchecked

    async def _check_key(self, layout: Layout | None, index: int, kind: str, message_id: str) -> str:
        """Raise IdempotencyKeyReused if the message had its key with another signal; says so if nobody can tell."""
        if not (key := self._signal.idempotency_key):
            return ""
        if layout is None:
            name = workflow_id(kind, message_id)
            status = await query_or_none(self._client.get_workflow_handle(name), "status")
        else:
            status = await self._packs.status(layout, index, message_id)

        if status is None:
            return KEY_UNCHECKED
        if is_key_reused(status["sources"], name_request(key), find_fingerprint(self._signal)):
            raise IdempotencyKeyReused(key)
        return ""

    async def send_to_each(self, names: AsyncIterable[tuple[str, str]], counts: SignalCounts) -> None:
        """Send the signal to each of a stream, see `Control.send_to_each`."""
        pool = TaskPool[None](self._settings.in_flight)
        # for all such packs together, because thousands may be full
        patience_with_full = Patience(self._settings.patience)

        async def submit_all() -> None:
            async for group in group_names(names, self._packs.layouts):
                await pool.submit(self._send_patiently(group, counts, patience_with_full))

        async with contextlib.aclosing(pool.results(submit_all())) as results:
            async for _ in results:
                pass

    async def _send_patiently(self, group: Group, counts: SignalCounts, patience_with_full: Patience) -> None:
        patience = Patience(self._settings.patience)

        while True:
            try:
                missing, pending = await self._send_to_group(group)
            except (PackNotServed, StandsStill) as exc:
                counts.sent += len(group.ids)
                counts.waiting += len(group.ids)
                counts.report(f"{exc}; the signal is kept and takes effect then")
                return
            except RetryLater as exc:
                is_full = isinstance(exc, HistoryFull)
                has_given_up = patience_with_full.is_over if is_full else patience.is_over
                if not has_given_up:
                    await patience.wait()
                    continue

                if not is_full:
                    raise

                counts.unsent += len(group.ids)
                others = f" and {len(group.ids) - 1:,} more of its pack" if len(group.ids) > 1 else ""
                counts.report(f"{workflow_id(group.kind, group.ids[0])}{others} got nothing: {exc}")
                return
            else:
                counts.sent += len(group.ids) - len(missing)
                counts.missing += len(missing)
                unknown = [MISSING.format(workflow_id(group.kind, message_id)) for message_id in missing]
                for sentence in unknown + pending:
                    counts.report(sentence)
                return

    async def _send_to_group(self, group: Group) -> _Sent:
        if isinstance(self._signal, Revise) and (unfit := find_misfit(group.kind, self._signal.payload, self._checks)):
            raise unfit
        if group.layout is None:
            return await self._send_to_solo(workflow_id(group.kind, group.ids[0]), group.ids)
        missing = await self._packs.steer(group.layout, group.index, group.ids, self._signal)
        if not self._blocking_state:
            return missing, []

        blocked = await self._packs.reader.list_ids(group.layout, group.index, self._blocking_state)
        names = [workflow_id(group.kind, message_id) for message_id in group.ids if message_id in blocked]
        return missing, [self._sentence.format(name=name) for name in names]

    async def _send_to_solo(self, name: str, ids: list[str]) -> _Sent:
        handle = self._client.get_workflow_handle(name)
        signal = self._signal
        try:
            if isinstance(signal, Reprioritize):
                # first, because the signal's own task waits in the queue in which the message is to move up
                await set_priority(self._client, name, signal.priority)
            await handle.signal(SIGNAL_NAMES[type(signal)], signal, rpc_timeout=CALL_TIMEOUT)
            if not self._is_named and not isinstance(signal, Stop):  # in bulk, two calls each would halve the speed
                return [], []
            is_blocked = await is_solo_in(self._client, name, self._blocking_state)
        except RPCError as exc:
            if is_missing(exc):
                return ids, []
            raise translate_rpc_error(exc) from exc

        return [], [self._sentence.format(name=name)] if is_blocked else []


async def is_solo_in(client: Client, name: str, state: str) -> bool:
    """Return whether a message with its own workflow is in a state; raises StandsStill if its task fails, RPCError."""
    handle = client.get_workflow_handle(name)
    described = await handle.describe(rpc_timeout=CALL_TIMEOUT)
    if (failing := await to_standstill(client, described)) is not None:
        raise StandsStill(failing.describe())
    if not state or described.typed_search_attributes.get(STATE) != state:
        return False

    # the index does not show yet what a recent signal has changed; the message itself knows
    status = await query_or_none(handle, "status")
    return status is None or status["phase"] == state


async def group_names(names: AsyncIterable[tuple[str, str]], layouts: Layouts) -> AsyncIterator[Group]:
    """Group a stream of (kind, id) by pack; a message that has a workflow of its own is yielded at once."""
    groups: dict[tuple[str, int], Group] = {}
    held_back = 0

    async for kind, message_id in names:
        layout = await layouts.find_patiently(kind)
        if layout is None:
            yield Group(kind, ids=[message_id])
            continue

        index = pack_index(message_id, layout.packs)
        group = groups.setdefault((kind, index), Group(kind, layout, index))
        group.ids.append(message_id)

        held_back += 1
        if len(group.ids) >= IDS_MAX or held_back >= HELD_BACK_MAX:
            fullest = max(groups, key=lambda key: len(groups[key].ids))
            held_back -= len(groups[fullest].ids)
            yield groups.pop(fullest)

    for group in groups.values():
        yield group


def check_signal(signal: Signal, settings: Settings) -> None:
    """Raise InvalidEnvelope for a signal that would give a message an invalid field."""
    fields = {"payload": getattr(signal, "payload", None), "lane": getattr(signal, "lane", "") or None}
    fields |= {"scheduled_at": getattr(signal, "due_at", None), "expires_at": getattr(signal, "expires_at", None)}
    if (priority := getattr(signal, "priority", None)) is not None:
        fields["priority"] = priority

    rules = EnvelopeRules({"any": "short"}, settings.payload_max_bytes)
    try:
        parse_envelope({"kind": "any", "id": "any", **fields}, rules)
    except InvalidEnvelope as exc:
        raise InvalidEnvelope(exc.field.replace("scheduled_at", "due_at"), exc.problem, exc.flaw) from exc


def find_obstacle(signal: Signal) -> tuple[str, str]:
    """Give the state in which a message does not run in spite of the signal, and what to do of {name}; else "", ""."""
    match signal:
        case Resume():
            return "parked", "{name} is parked, which 'resume' does not end; 'dormice now {name}' runs it again"
        case Revise(due_at=None):
            return "parked", "{name} is parked and keeps the new payload; 'dormice now {name}' runs it again"
        case RunNow():
            return "paused", "{name} is paused and runs once 'dormice resume {name}' has ended the pause"
        case Reschedule() | Reprioritize(due_at=str()) | Revise():
            then = "it runs once 'dormice resume {name}' has ended the pause"
            return "paused", f"{{name}} is paused and keeps the new due time; {then}"
        case _:
            return "", ""
