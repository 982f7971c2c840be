"""The upsert: starts a message, or changes it if it is alive, in one call that may be repeated."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError

from shared.errors import ConditionUnmet, RetryLater
from shared.messages.decision import is_key_reused
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import pack_index, workflow_id
from shared.messages.signals import Revise, write_moment
from shared.settings import Settings
from shared.temporal.backoff import Patience
from shared.temporal.connect import is_missing, translate_rpc_error
from starter.starting.bulk import BulkStarter
from starter.starting.delivery import Delivery
from starter.starting.queries import query_or_none
from starter.starting.receipts import KEY_REUSED, Receipt, StartOutcome
from starter.steering.packs.packs import Packs
from starter.steering.sender import Sender, find_obstacle, is_solo_in


@dataclass(frozen=True, slots=True)
class UpsertConditions:
    """What must hold for a change; a message that is not alive meets none of them."""

    version: int | None = None
    due_before: datetime | None = None

    @property
    def are_any(self) -> bool:
        """Whether there is one."""
        return self.version is not None or self.due_before is not None

    def add_to(self, signal: Revise) -> Revise:
        """Give a signal that changes nothing unless they hold."""
        due_before = self.due_before and write_moment(self.due_before)
        return replace(signal, if_version=self.version, if_due_before=due_before)


class UpsertSender:
    """Upserts messages one by one; `encodings` has the kinds whose handlers declare them packed."""

    def __init__(self, client: Client, settings: Settings, packs: Packs, encodings: Mapping[str, Pack]) -> None:
        self._client = client
        self._settings = settings
        self._packs = packs
        self._starter = BulkStarter(client, settings, encodings=encodings, revises=True)

    async def upsert(self, envelope: Envelope, conditions: UpsertConditions) -> Receipt[None]:
        """Upsert a message, see `Control.upsert`; what keeps it from running is the receipt's `reason`."""
        delivery = Delivery.of_upsert(envelope)
        if conditions.are_any:
            return await self._change(delivery, conditions.add_to(delivery.to_revision(envelope)))
        receipt = await self._starter.start(delivery, None)
        if receipt.outcome is StartOutcome.REVISED:
            return receipt._replace(reason=await self._find_obstacle(delivery) or receipt.reason)
        return receipt

    async def _find_obstacle(self, delivery: Delivery) -> str:
        name = workflow_id(delivery.kind, delivery.id)
        state, sentence = find_obstacle(delivery.to_signal())

        if (layout := await self._packs.layouts.find(delivery.kind)) is None:
            try:
                is_blocked = await is_solo_in(self._client, name, state)
            except RPCError as exc:
                if is_missing(exc):
                    return ""
                raise translate_rpc_error(exc) from exc
        else:
            status = await self._packs.status(layout, pack_index(delivery.id, layout.packs), delivery.id)
            is_blocked = status is not None and status["phase"] == state

        return sentence.format(name=name) if is_blocked else ""

    async def _change(self, delivery: Delivery, signal: Revise) -> Receipt[None]:
        name = workflow_id(delivery.kind, delivery.id)
        sender = Sender(self._client, self._settings, self._packs, signal, is_named=True)
        sentence = await sender.send(delivery.kind, delivery.id)

        status = await self._read_status(delivery)
        if delivery.source not in status["sources"]:
            wanted = [] if signal.if_version is None else [f"at version {signal.if_version}"]
            wanted += [] if signal.if_due_before is None else [f"due before {signal.if_due_before}"]
            found = f"is at version {status['version']} and due {status['due_at']}, not {' and '.join(wanted)}"
            raise ConditionUnmet(f"{name} {found}; nothing was changed, look at it and decide anew")

        if is_key_reused(status["sources"], delivery.source, delivery.offset):
            return Receipt(None, name, StartOutcome.REJECTED, reason=KEY_REUSED)
        return Receipt(None, name, StartOutcome.REVISED, reason=sentence)

    async def _read_status(self, delivery: Delivery) -> dict[str, Any]:
        """Read a message's status once it has taken its signals; raises RetryLater if it does not within `patience`."""
        name = workflow_id(delivery.kind, delivery.id)
        layout = await self._packs.layouts.find(delivery.kind)
        patience = Patience(self._settings.patience)

        while True:
            if layout is None:
                status = await query_or_none(self._client.get_workflow_handle(name), "status")
            else:
                status = await self._packs.status(layout, pack_index(delivery.id, layout.packs), delivery.id)

            if status is not None:
                return status

            if patience.is_over:
                problem = f"did not tell within {self._settings.patience} what became of it"
                raise RetryLater(f"{name} has the signal, but {problem}; 'dormice show {name}' tells more")

            await patience.wait()
