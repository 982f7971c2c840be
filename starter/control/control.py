"""Control: the Python API that starts, steers, lists and shows messages; the command line uses it too."""

import functools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from temporalio.client import Client

from activities.registry import Registry, load_registry, payload_checks
from shared.messages.envelope import Envelope, PayloadCheck
from shared.messages.signals import Revise, Signal, make_signal
from shared.settings import Settings
from starter.control.lists import MessageLists
from starter.control.message_starter import MessageStarter
from starter.starting.receipts import Receipt
from starter.steering.message_view import NO_WAIT, MessageView, MessageViews
from starter.steering.packs.packs import Packs
from starter.steering.packs.reader import PassOver
from starter.steering.selection import Selection
from starter.steering.sender import NO_CHECKS, Sender, SignalCounts
from starter.steering.status.listing import ListedMessage
from starter.steering.stored.memo_counts import MessageCount
from starter.steering.upsert import UpsertConditions


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
        # only what needs the handlers loads them, because that takes a while
        self._load_kinds = functools.cache(lambda: registry or load_registry(settings))
        self._packs = Packs(client, settings)
        self._starter = MessageStarter(client, settings, self._packs, self._load_kinds)
        self._lists = MessageLists(client, self._packs)
        self._make_sender = functools.partial(Sender, client, settings, self._packs)
        self.views = MessageViews(client, settings, self._packs)

    async def start(self, request: Envelope | Mapping[str, Any]) -> Receipt[None]:
        """Start one message, also one that has finished, and return its receipt, whose outcome is STARTED.

        Everything else is raised: MessageAlive when the message is alive, and stays as it is; InvalidEnvelope for an
        unknown kind or an invalid field; StartRefused when the server refuses it; PackNotServed when its pack has
        received it but has not taken it in, because no worker serves the pack or it is full; RetryLater when the server
        does not answer within the setting `patience`. With an idempotency key a repeated start is the first one;
        IdempotencyKeyReused is raised when the key came with another body before.
        """
        return await self._starter.start(request)

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
        return await self._starter.upsert(request, UpsertConditions(if_version, if_due_before))

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
        sender = self._make_sender(signal, is_named=True, checks=_find_checks(signal, self._load_kinds))
        return await sender.send(kind, message_id)

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
        sender = self._make_sender(signal, is_named=are_named, checks=_find_checks(signal, self._load_kinds))
        await sender.send_to_each(names, tally)

    def list(
        self, selection: Selection, limit: int | None = None, pass_over: PassOver | None = None
    ) -> AsyncIterator[ListedMessage]:
        """List at most `limit` of a selection: from the index, which lags, newest start first, then from the packs.

        A pack that can't be read is an error; with `pass_over` it is left out, and that gets a sentence about it.
        """
        return self._lists.list(selection, limit, pass_over)

    def list_known(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        """Give (id, state) of each message of a kind that is alive, or finished and remembered, in any order.

        One that ends meanwhile may come twice, the second time as finished.
        """
        return self._lists.list_known(kind)

    def names(
        self, selection: Selection, keep: Callable[[ListedMessage], bool] = lambda _: True
    ) -> AsyncIterator[tuple[str, str]]:
        """Give (kind, id) of every message of a selection for which `keep` is true."""
        return self._lists.names(selection, keep)

    async def count(self, selection: Selection) -> int:
        """Count a selection, in the index and in the packs."""
        return await self._lists.count(selection)

    async def estimate(self, selection: Selection) -> MessageCount:
        """Count a selection as exactly as is cheap.

        Exact up to 200 packs that answer within ten seconds; more packs, and those that no worker serves, are counted
        about, by the counts in their memos. Messages that have finished are always counted exactly, as by `count`.
        """
        return await self._lists.estimate(selection)

    async def look_up(self, kind: str, message_id: str) -> ListedMessage:
        """Look up one message, alive or finished, at the server or its pack, never in the index: always up to date."""
        return await self.views.look_up(kind, message_id)

    async def show(self, kind: str, message_id: str, *, wait: timedelta = NO_WAIT) -> MessageView:
        """Show one message, alive or finished; without a worker, only what the server knows, or PackNotServed.

        With `wait` it is shown once it has ended or is parked, or else, as it then is, when that time is over.
        """
        return await self.views.show(kind, message_id, wait=wait)


def _find_checks(signal: Signal, load_kinds: Callable[[], Registry]) -> Mapping[str, PayloadCheck]:
    return payload_checks(load_kinds()) if isinstance(signal, Revise) else NO_CHECKS
