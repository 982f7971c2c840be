"""A batch of rows: delivered together, each to its message, and what became of each."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Self

from temporalio.client import Client

from activities.registry import Registry, declared_packs, envelope_rules
from shared.errors import InvalidEnvelope
from shared.settings import Settings
from starter.extras.outbox.rows import OutboxRow, RowName, RowReader
from starter.starting.bulk import BulkStarter, Request
from starter.starting.receipts import ChunkReceipts, Receipt, StartOutcome

PATIENCE = timedelta(seconds=10)
"""How long calls are tried again: meanwhile a transaction of the application's database is open, and new rows wait."""


@dataclass(slots=True)
class BatchOutcome:
    """What became of the rows of a batch."""

    done: list[int] = field(default_factory=list[int])
    """By `seq`: the server has stored what they ask for, or had before."""
    failed: dict[RowName, str] = field(default_factory=dict[RowName, str])
    """Those that can't succeed as they are, and why."""
    stored_kinds: set[str] = field(default_factory=set[str])
    """Those of the rows that are done."""
    left: Counter[str] = field(default_factory=Counter[str])
    """By kind, how many could not be stored now."""
    reason: str = ""
    """Why one of those could not."""
    counts: Counter[str] = field(default_factory=Counter[str])
    """Rows by the outcome of their receipt."""


@dataclass(frozen=True, slots=True)
class BatchSender:
    """Delivers batches in which no message has two rows; a row that is delivered again changes nothing."""

    reader: RowReader
    starts: BulkStarter
    """Starts messages that the server does not know."""
    changes: BulkStarter
    """Upserts and stops messages."""

    @classmethod
    def of(cls, client: Client, settings: Settings, registry: Registry, source: str) -> Self:
        """Make the sender for a table; calls are tried again for at most `PATIENCE`, whatever the settings say."""
        bounded = replace(settings, patience=min(settings.patience, PATIENCE))
        packs = declared_packs(registry)
        starts = BulkStarter(client, bounded, encodings=packs)
        changes = BulkStarter(client, bounded, revises=True, encodings=packs)
        return cls(RowReader.of(envelope_rules(settings, registry), source), starts, changes)

    async def send(self, pages: AsyncIterable[Iterable[OutboxRow]], *, is_start: bool) -> BatchOutcome:
        """Deliver rows that all start messages, or of which none does; pages are read as fast as they are delivered.

        Raises Misconfigured when the server refuses this client as such.
        """
        outcome = BatchOutcome()
        starter = self.starts if is_start else self.changes
        async with contextlib.aclosing(starter.start_groups(self._read(pages, outcome))) as groups:
            async for receipts in groups:
                if isinstance(receipts, ChunkReceipts) and not receipts.others:  # as most are
                    outcome.done += [row.seq for row in receipts.tags]
                    outcome.stored_kinds.add(receipts.kind)
                    outcome.counts[StartOutcome.STARTED] += len(receipts)
                else:
                    for receipt in receipts:
                        _note(receipt, outcome)

        return outcome

    async def _read(
        self, pages: AsyncIterable[Iterable[OutboxRow]], outcome: BatchOutcome
    ) -> AsyncIterator[list[tuple[RowName, Request]]]:
        async for page in pages:
            requests: list[tuple[RowName, Request]] = []
            for row in page:
                try:
                    requests.append((row.name, self.reader.read(row)))
                except InvalidEnvelope as exc:
                    outcome.failed[row.name] = str(exc)
                    outcome.counts[StartOutcome.REJECTED] += 1
            yield requests


def _note(receipt: Receipt[RowName], outcome: BatchOutcome) -> None:
    row = receipt.tag
    outcome.counts[receipt.outcome] += 1
    if receipt.outcome is StartOutcome.FAILED:
        outcome.left[row.kind] += 1
        outcome.reason = receipt.reason
    elif receipt.outcome is StartOutcome.REJECTED:
        outcome.failed[row] = receipt.reason
    else:
        outcome.done.append(row.seq)
        outcome.stored_kinds.add(row.kind)
