"""Control: the Python API that starts, steers, lists and shows messages; the command line uses it too."""

import asyncio
import math
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from temporalio.client import Client

from activities.registry import Registry, declared_packs, envelope_rules, load_registry, payload_checks
from shared.errors import IdempotencyKeyReused, MessageAlive, PackNotServed, RetryLater, StartRefused
from shared.messages.envelope import Envelope, parse_envelope
from shared.messages.message import ENDS
from shared.messages.signals import Revise, Signal, make_signal
from shared.settings import Settings
from shared.temporal.connect import translate_rpc_errors
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import KEY_REUSED, Receipt, StartOutcome
from starter.steering.keepers import GateControl, describe_implicit
from starter.steering.message_view import (
    RESTS,
    MessageOwner,
    MessageView,
    find_owner,
    look_up,
    show,
    wait_until_it_rests,
)
from starter.steering.packs.packs import Packs
from starter.steering.packs.reader import PassOver
from starter.steering.selection import Selection
from starter.steering.sender import NO_CHECKS, Sender, SignalCounts
from starter.steering.status.listing import ListedMessage, to_listed
from starter.steering.stored.memo_counts import MessageCount
from starter.steering.upsert import UpsertConditions, UpsertSender

PAGE_SIZE = 500
NO_WAIT = timedelta(0)


class Control:
    """Steers messages, whatever workflows they live in; `registry` has the kinds that may be started, by default all.

    Every signal is idempotent and works while the message sleeps, runs, is paused or parked. Errors have the text that
    the command line prints: MessageNotFound when the message is not alive, InvalidEnvelope for an invalid payload,
    priority, lane or time, PackNotServed and StandsStill when the server keeps the signal for a workflow that can't
    process it now, RetryLater when the server does not answer.

    Each signal method returns "", or a sentence that says why the message took the signal and still does not run as
    asked: a paused message runs only after `resume`, and `resume` does not end parking.
    """

    def __init__(self, client: Client, settings: Settings, registry: Registry | None = None) -> None:
        self._client = client
        self._settings = settings
        self._registry = registry
        self._packs = Packs(client, settings)

    @cached_property
    def _starter(self) -> BulkStarter:
        packs = declared_packs(self._kinds)
        return BulkStarter(self._client, self._settings, restarts_finished=True, encodings=packs)

    @cached_property
    def _upsert_sender(self) -> UpsertSender:
        return UpsertSender(self._client, self._settings, self._packs, declared_packs(self._kinds))

    @cached_property
    def _kinds(self) -> Registry:
        return self._registry or load_registry(self._settings)

    async def start(self, request: Envelope | Mapping[str, Any]) -> Receipt[None]:
        """Start one message, also one that has finished, and return its receipt, whose outcome is STARTED.

        Everything else is raised: MessageAlive when the message is alive, and stays as it is; InvalidEnvelope for an
        unknown kind or an invalid field; StartRefused when the server refuses it; PackNotServed when its pack has
        received it but has not taken it in, because no worker serves the pack or it is full; RetryLater when the server
        does not answer within the setting `patience`. With an idempotency key a repeated start is the first one;
        IdempotencyKeyReused is raised when the key came with another body before.
        """
        envelope = self._check(request)
        receipt = await self._starter.start(envelope, None)
        if receipt.outcome is StartOutcome.ALREADY_RUNNING:
            raise MessageAlive(receipt.workflow_id, receipt.run_id)
        if receipt.outcome is not StartOutcome.STARTED:
            raise _to_error(receipt, envelope)

        self._packs.layouts.forget(envelope.kind)  # it may have been the first of its kind
        return receipt

    async def upsert(
        self,
        request: Envelope | Mapping[str, Any],
        *,
        if_version: int | None = None,
        if_due_before: datetime | None = None,
    ) -> Receipt[None]:
        """Start a message, or give it payload, lane, priority and due time if it is alive; return its receipt.

        Without `scheduled_at` it runs now. A message that is alive keeps its tenant and correlation id; its tolerance
        is the handler's. The outcome is STARTED, REVISED (then `reason` says why it does not run, if it is paused), or
        IGNORED: this idempotency key, one of the last five, has been applied before. A repetition may also have the
        outcome of the first time.

        With a condition nothing is started: MessageNotFound is raised when the message is not alive, ConditionUnmet
        when it is at another version or not due before that moment. Everything else is raised as by `start`.
        """
        envelope = self._check(request)
        receipt = await self._upsert_sender.upsert(envelope, UpsertConditions(if_version, if_due_before))
        if receipt.outcome not in (StartOutcome.STARTED, StartOutcome.REVISED, StartOutcome.IGNORED):
            raise _to_error(receipt, envelope)

        self._packs.layouts.forget(envelope.kind)
        return receipt

    def _check(self, request: Envelope | Mapping[str, Any]) -> Envelope:
        fields = request.model_dump() if isinstance(request, Envelope) else request
        return parse_envelope(fields, envelope_rules(self._settings, self._kinds))

    async def run_now(self, kind: str, message_id: str, reason: str = "") -> str:
        """Run as soon as a worker is free; a parked message gets fresh attempts."""
        return await self.send(kind, message_id, make_signal("run_now", reason=reason))

    async def reschedule(self, kind: str, message_id: str, due_at: datetime, reason: str = "") -> str:
        """Set a new due time."""
        return await self.send(kind, message_id, make_signal("reschedule", due_at=due_at, reason=reason))

    async def reprioritize(
        self, kind: str, message_id: str, priority: int, due_at: datetime | None = None, reason: str = ""
    ) -> str:
        """Set the priority (1 first, 5 last); tasks of the message that already wait in a queue are moved too."""
        signal = make_signal("reprioritize", priority=priority, due_at=due_at, reason=reason)
        return await self.send(kind, message_id, signal)

    async def revise(self, kind: str, message_id: str, payload: Any, *, lane: str = "", reason: str = "") -> str:
        """Replace the payload, and move to another lane when one is given."""
        return await self.send(kind, message_id, make_signal("revise", payload=payload, lane=lane, reason=reason))

    async def pause(self, kind: str, message_id: str, reason: str = "") -> str:
        """Do not run the message until `resume`."""
        return await self.send(kind, message_id, make_signal("pause", reason=reason))

    async def resume(self, kind: str, message_id: str, reason: str = "") -> str:
        """End a pause."""
        return await self.send(kind, message_id, make_signal("resume", reason=reason))

    async def stop(self, kind: str, message_id: str, reason: str = "") -> str:
        """End the message for good; a running handler finishes first."""
        return await self.send(kind, message_id, make_signal("stop", reason=reason))

    async def pull_forward(self, kind: str, message_id: str, expected_due_at: datetime) -> str:
        """Run before the due time, if that is still `expected_due_at` and the message's `earliest` has passed."""
        return await self.send(kind, message_id, make_signal("pull_forward", expected_due_at=expected_due_at))

    async def send(self, kind: str, message_id: str, signal: Signal) -> str:
        """Send any signal; returns "", or a sentence when the message does not run although the signal asks for it."""
        return await self._make_sender(signal, is_named=True).send(kind, message_id)

    async def send_to_each(
        self, names: AsyncIterable[tuple[str, str]], signal: Signal, tally: SignalCounts, *, are_named: bool = False
    ) -> None:
        """Send a signal to each (kind, id) of a stream, at most `in_flight` calls at once, counting in `tally`.

        Messages of one pack that are close together in the stream share a call. A call that the server can't take is
        repeated for as long as the setting `patience` allows; then RetryLater ends everything, but packs that do not
        answer and have full histories are passed over. Sending everything again does no harm, because signals are
        idempotent. `are_named` means that a person named the messages: at the cost of another call each, the tally's
        `report` then also gets those that are paused, parked or stand still. The first message whose kind does not take
        the payload of a revision ends everything with InvalidEnvelope.
        """
        await self._make_sender(signal, is_named=are_named).send_to_each(names, tally)

    def _make_sender(self, signal: Signal, *, is_named: bool) -> Sender:
        # only a revision needs the handlers, which take a while to load
        checks = payload_checks(self._kinds) if isinstance(signal, Revise) else NO_CHECKS
        return Sender(self._client, self._settings, self._packs, signal, is_named=is_named, checks=checks)

    async def list(
        self, selection: Selection, limit: int | None = None, pass_over: PassOver | None = None
    ) -> AsyncIterator[ListedMessage]:
        """List at most `limit` of a selection: from the index, which lags, newest start first, then from the packs.

        A pack that can't be read is an error; with `pass_over` it is left out, and that gets a sentence about it.
        """
        left = math.inf if limit is None else limit
        with translate_rpc_errors():
            async for execution in self._client.list_workflows(selection.to_query(), limit=limit, page_size=PAGE_SIZE):
                left -= 1
                yield await to_listed(execution)

        if left > 0:
            async for listed in self._packs.iterate(selection, pass_over):
                yield listed
                left -= 1
                if left <= 0:
                    return

    async def list_known(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        """Give (id, state) of each message of a kind that is alive, or finished and remembered, in any order.

        One that ends meanwhile may come twice, the second time as finished.
        """
        if await self._packs.layouts.find(kind) is not None:
            async for known in self._packs.iterate_known(kind):
                yield known
            return
        for state in (None, *ENDS):  # without a state, those that are alive
            async for listed in self.list(Selection(kind=kind, state=state)):
                yield listed.id, listed.state

    async def names(
        self, selection: Selection, keep: Callable[[ListedMessage], bool] = lambda _: True
    ) -> AsyncIterator[tuple[str, str]]:
        """Give (kind, id) of every message of a selection for which `keep` is true."""
        async for listed in self.list(selection):
            if keep(listed):
                yield listed.kind, listed.id

    async def count(self, selection: Selection) -> int:
        """Count a selection, in the index and in the packs."""
        return await self._count_solo(selection) + await self._packs.count(selection)

    async def estimate(self, selection: Selection) -> MessageCount:
        """Count a selection as exactly as is cheap.

        Exact up to 200 packs that answer within ten seconds; more packs, and those that no worker serves, are counted
        about, by the counts in their memos. Messages that have finished are always counted exactly, as by `count`.
        """
        packed = await self._packs.estimate(selection)
        return replace(packed, number=packed.number + await self._count_solo(selection))

    async def _count_solo(self, selection: Selection) -> int:
        with translate_rpc_errors():
            return (await self._client.count_workflows(selection.to_query())).count

    async def look_up(self, kind: str, message_id: str) -> ListedMessage:
        """Look up one message, alive or finished, at the server or its pack, never in the index: always up to date."""
        return await look_up(self._client, self._packs, kind, message_id)

    async def find_owner(self, kind: str, message_id: str) -> MessageOwner:
        """Find whose a message is; without a worker only one with a workflow of its own tells, else PackNotServed."""
        return await find_owner(self._client, self._packs, kind, message_id)

    async def show(self, kind: str, message_id: str, *, wait: timedelta = NO_WAIT) -> MessageView:
        """Show one message, alive or finished; without a worker, only what the server knows, or PackNotServed.

        With `wait` it is shown once it has ended or is parked, or else, as it then is, when that time is over.
        """
        if wait > NO_WAIT:
            await wait_until_it_rests(self._client, self._packs, kind, message_id, wait)

        now = time.time()
        gates = asyncio.create_task(GateControl(self._client, self._settings).fetch_implicit(now))

        try:
            view = await show(self._client, self._packs, kind, message_id)
            if view.listed.state in RESTS:
                return view
            tenant = (view.status or {}).get("tenant", "")
            return replace(view, gate=describe_implicit(await gates, kind, view.listed.lane, tenant, now))
        finally:
            gates.cancel()


def _to_error(receipt: Receipt[None], envelope: Envelope) -> Exception:
    name = receipt.workflow_id
    reason = receipt.reason
    if reason == KEY_REUSED:
        return IdempotencyKeyReused(envelope.idempotency_key)
    if receipt.outcome is StartOutcome.REJECTED:
        return StartRefused(f"{name} was not started: {reason}")
    if receipt.run_id:  # the run of its pack, which has received the message
        return PackNotServed(f"{name} has not been started yet: {reason}")
    return RetryLater(f"{name} was not started: {reason}")
