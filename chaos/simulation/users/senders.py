"""Senders: start messages, packed ones in chunks, and check that their receipts are true."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from temporalio.client import Client

from chaos.simulation.handlers import PACKED, SOLO
from chaos.simulation.ledger.ledger import Ledger
from chaos.simulation.users.caller import UserCaller
from chaos.simulation.users.kind_layout import KindLayout
from shared.lanes import task_queue
from shared.messages.envelope import Envelope
from shared.messages.placement import MESSAGE_WORKFLOW, PackSpread, workflow_id
from shared.settings import Settings
from starter.starting.calls import RetryingCaller
from starter.starting.chunks import Chunk
from starter.starting.pack_starter import PackStarter
from starter.starting.receipts import Receipt, StartOutcome
from starter.starting.start_request import first_entry, first_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders:
    """All senders of one simulation."""

    rng: random.Random
    caller: UserCaller
    settings: Settings
    ledger: Ledger
    layout: KindLayout
    tokens: Iterator[int]
    pad: str

    async def start_packed(self, ids: list[str], until: float) -> None:
        """Start messages in chunks, at a random moment before `until`."""
        await asyncio.sleep(self.rng.uniform(0, until))
        admission = self.build_admission(revises=False)
        by_pack = self.layout.group_by_pack(ids)
        await asyncio.gather(*(self._start_chunk(admission, n, part) for n, part in by_pack.items()))

    async def start_solo(self, message_id: str, until: float) -> None:
        """Start a solo message at a random moment before `until`."""
        await asyncio.sleep(self.rng.uniform(0, until))
        lane = self.layout.current.lane
        envelope = self._draw_envelope(SOLO, message_id, lane)
        self._note_start(SOLO, message_id, envelope)

        name = workflow_id(SOLO, message_id)
        queue = task_queue(self.settings.task_queue_prefix, lane)
        state = first_state(envelope, self.ledger.now).dump()
        await self.caller.repeat(lambda: self.caller.client.start(MESSAGE_WORKFLOW, name, queue, state))
        self.ledger.of(SOLO, message_id).is_acknowledged = True

    def build_admission(self, *, revises: bool) -> PackStarter:
        """Build the starter that sends chunks to packs."""
        client = cast("Client", self.caller.client)
        caller = RetryingCaller(self.settings.patience, self.settings.starts_per_second)
        return PackStarter(client, self.settings, caller, restarts_finished=False, revises=revises)

    async def _start_chunk(self, admission: PackStarter, index: int, ids: list[str]) -> None:
        chunks = self._fill_chunks(index, ids)
        self.ledger.note(f"start {', '.join(ids)}")

        session = f"session-{next(self.tokens)}"
        for receipts in await asyncio.gather(*(admission.admit(chunk, session) for chunk in chunks)):
            for receipt in receipts:
                self._note_receipt(receipt)

    def _fill_chunks(self, index: int, ids: list[str]) -> list[Chunk[str]]:
        layout = self.layout.current
        chunks: list[Chunk[str]] = [Chunk(layout, index)]
        spread = PackSpread.of(PACKED, index, layout.coalesce)

        for message_id in ids:
            lane = self.rng.choice([layout.lane] * 4 + ["short", "medium"])
            envelope = self._draw_envelope(PACKED, message_id, lane)
            self._note_start(PACKED, message_id, envelope)
            if chunks[-1].is_full:
                chunks.append(Chunk(layout, index))
            chunks[-1].add(message_id, first_entry(envelope, self.ledger.now, layout.lane, spread=spread))

        return chunks

    def _draw_envelope(self, kind: str, message_id: str, lane: str) -> Envelope:
        later = datetime.fromtimestamp(self.ledger.now + self.rng.uniform(1, 60), UTC)
        scheduled_at = later if self.rng.random() < 0.5 else None
        return Envelope(
            kind=kind,
            id=message_id,
            lane=lane,
            scheduled_at=scheduled_at,
            tolerance_seconds=self.rng.choice([0.0, 10.0]),
            priority=self.rng.randint(1, 5),
            payload={"rev": 0, "pad": self.pad},
        )

    def _note_start(self, kind: str, message_id: str, envelope: Envelope) -> None:
        tracked = self.ledger.of(kind, message_id)
        tracked.sent += 1
        tracked.decided_from.setdefault(0, self.ledger.now)
        if envelope.scheduled_at is not None and tracked.sent == 1:
            tracked.soonest[0] = envelope.scheduled_at.timestamp()

    def _note_receipt(self, receipt: Receipt[str]) -> None:
        """Record a sender's receipt for a message, and check that it is true."""
        tracked = self.ledger.of(PACKED, receipt.tag)
        tracked.outcomes[receipt.outcome] += 1
        self.ledger.note(f"told  {receipt.tag}: {receipt.outcome} {receipt.reason[:80]}")
        if receipt.outcome in (StartOutcome.STARTED, StartOutcome.REVISED):
            tracked.is_acknowledged = True
        if receipt.outcome is StartOutcome.ALREADY_RUNNING and tracked.sent == 1:
            self.ledger.violate(f"{receipt.tag} was sent once, and its sender is told that it is already running")
