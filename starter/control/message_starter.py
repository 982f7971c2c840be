"""Message starter: starts and upserts single messages as callers give them, and raises what keeps one from it."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from temporalio.client import Client

from activities.registry import Registry, declared_packs, envelope_rules
from shared.errors import IdempotencyKeyReused, MessageAlive, PackNotServed, RetryLater, StartRefused
from shared.messages.envelope import Envelope, parse_envelope
from shared.settings import Settings
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import KEY_REUSED, Receipt, StartOutcome
from starter.steering.packs.packs import Packs
from starter.steering.upsert import UpsertConditions, UpsertSender


class MessageStarter:
    """Checks, starts and upserts messages one by one; `load_kinds` gives the kinds that may be started."""

    def __init__(self, client: Client, settings: Settings, packs: Packs, load_kinds: Callable[[], Registry]) -> None:
        self._client = client
        self._settings = settings
        self._packs = packs
        self._load_kinds = load_kinds

    @cached_property
    def _starter(self) -> BulkStarter:
        packs = declared_packs(self._load_kinds())
        return BulkStarter(self._client, self._settings, restarts_finished=True, encodings=packs)

    @cached_property
    def _upsert_sender(self) -> UpsertSender:
        return UpsertSender(self._client, self._settings, self._packs, declared_packs(self._load_kinds()))

    async def start(self, request: Envelope | Mapping[str, Any]) -> Receipt[None]:
        """Start one message, see `Control.start`."""
        envelope = self._check(request)
        receipt = await self._starter.start(envelope, None)
        if receipt.outcome is StartOutcome.ALREADY_RUNNING:
            raise MessageAlive(receipt.workflow_id, receipt.run_id)
        if receipt.outcome is not StartOutcome.STARTED:
            raise _to_error(receipt, envelope)

        self._packs.layouts.forget(envelope.kind)  # it may have been the first of its kind
        return receipt

    async def upsert(self, request: Envelope | Mapping[str, Any], conditions: UpsertConditions) -> Receipt[None]:
        """Start a message or change it, see `Control.upsert`."""
        envelope = self._check(request)
        receipt = await self._upsert_sender.upsert(envelope, conditions)
        if receipt.outcome not in (StartOutcome.STARTED, StartOutcome.REVISED, StartOutcome.IGNORED):
            raise _to_error(receipt, envelope)

        self._packs.layouts.forget(envelope.kind)
        return receipt

    def _check(self, request: Envelope | Mapping[str, Any]) -> Envelope:
        fields = request.model_dump() if isinstance(request, Envelope) else request
        return parse_envelope(fields, envelope_rules(self._settings, self._load_kinds()))


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
