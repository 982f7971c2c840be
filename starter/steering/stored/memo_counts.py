"""Memo counts: what packs hold by the counts in their memos, read by the thousand; never better than about right."""

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from temporalio.client import Client, WorkflowExecution

from shared.messages.placement import pack_of, pack_share
from shared.messages.timespan import format_seconds
from shared.packs.counts import COUNTS_MEMO, LaneCounts, PackCounts, read_counts
from shared.temporal.connect import translate_rpc_errors
from shared.temporal.search_attributes import DUE_AT
from starter.steering.selection import Selection
from starter.steering.stored.read_ahead import list_ahead
from starter.steering.stored.stored_pack import read_stored

SAMPLE = 40
"""Histories of a kind that are read in place of all: a hash decides which ids a pack holds, so some stand for all."""
SAMPLE_MIN = 5
SAMPLES_MAX = 100
"""With many kinds samples are smaller, so that all are no more than the second of these, but never below the first.
A history takes some 10 ms of the processor."""

PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True)
class MessageCount:
    """How many messages there are: exact as of now, or about, by counts of which the oldest is `age` seconds old."""

    number: int
    is_exact: bool = True
    age: float = 0.0
    uncounted: int = 0
    """Packs that are missing in the number, because nothing could be read of them."""

    def describe(self) -> str:
        """Write the number with its noun; "about" unless it is exact."""
        noun = "message" if self.number == 1 else "messages"
        about = "" if self.is_exact else "about "
        return f"{about}{self.number:,} {noun}"

    def explain(self) -> str:
        """Say in a sentence where an inexact number comes from; empty for an exact one."""
        return "" if self.is_exact else explain_counts(self.age, self.uncounted)

    def to_document(self) -> dict[str, Any]:
        """Give it as an object for JSON."""
        document: dict[str, Any] = {"count": self.number, "is_exact": self.is_exact}
        about = {"oldest_count_seconds": round(self.age), "packs_not_counted": self.uncounted}
        return document if self.is_exact else document | about


def explain_counts(age: float, uncounted: int) -> str:
    """Say in a sentence where counts come from, how old the oldest is, and what is missing."""
    missing = f"; {uncounted:,} packs could not be read and are missing" if uncounted else ""
    return f"about, by what the packs last wrote into the index, up to {format_seconds(age)} ago{missing}"


@dataclass(frozen=True, slots=True)
class CountedPack:
    """The counts of one pack; `weight` is how many such packs it stands for.

    What was due before `ran_until` (seconds since the epoch) has run since it was counted.
    """

    kind: str
    counts: PackCounts
    ran_until: float
    weight: float = 1.0

    def count_due(self, lane: LaneCounts, before: float, now: float) -> float:
        """Give about how many are due before a moment that is not past.

        What the counts had due until now has meanwhile run and come back, at times that they can't tell. A pack's
        messages come back at a rhythm of their own, so those are spread over the future by the same curve, seen from
        now. Were they all counted as overdue, each old count would be a false alarm. Only what is due since the first
        due time that the index has of the pack does wait.
        """
        ran = lane.count_due(self.ran_until)
        back = ran * lane.count_due(self.counts.at + before - now) / lane.asleep if ran else 0.0
        return lane.count_due(before) - ran + back


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoCounts:
    """The counts of packs, as of `now` (seconds since the epoch)."""

    now: float
    packs: int
    counted: Sequence[CountedPack]
    uncounted: int
    """Packs of which nothing could be read."""
    kinds: Sequence[str] = ()
    """The kinds of all the packs, counted or not."""

    @property
    def age(self) -> float:
        """How old the oldest count is, in seconds."""
        return max((self.now - pack.counts.at for pack in self.counted), default=0.0)

    def count(self, selection: Selection) -> MessageCount:
        """Count the messages of a selection that are alive."""
        before = selection.due_before and max(selection.due_before.timestamp(), self.now)
        found = 0.0
        for pack in self.counted:
            for name, lane in pack.counts.lanes.items():
                if selection.lane in (None, name):
                    due = None if before is None else pack.count_due(lane, before, self.now)
                    found += pack.weight * _count_state(lane, selection.state, due)
        return MessageCount(round(found), is_exact=False, age=self.age, uncounted=self.uncounted)

    def count_kinds(self, selection: Selection) -> dict[str, MessageCount]:
        """Count likewise, by kind."""
        by_kind: dict[str, list[CountedPack]] = {kind: [] for kind in self.kinds}
        for pack in self.counted:
            by_kind[pack.kind].append(pack)

        return {kind: replace(self, counted=packs).count(selection) for kind, packs in by_kind.items()}

    def count_due(self, edges: Sequence[float]) -> dict[tuple[str, str], dict[int, int]]:
        """Count by (kind, lane) what is due in the interval that ends with the n-th of the rising edges."""
        sums = defaultdict[tuple[str, str], list[float]](lambda: [0.0] * len(edges))
        for pack in self.counted:
            for name, lane in pack.counts.lanes.items():
                if lane.asleep:
                    found = sums[pack.kind, name]
                    for n, edge in enumerate(edges):
                        found[n] += pack.weight * pack.count_due(lane, edge, self.now)

        return {
            key: {
                n: round(due) - round(before) for n, (before, due) in enumerate(zip([0.0, *found], found, strict=False))
            }
            for key, found in sums.items()
        }


def _count_state(lane: LaneCounts, state: str | None, due: float | None) -> float:
    """Count the messages in a state, all that are alive without one; `due` is how many of those asleep are meant."""
    active = lane.asleep + lane.running if due is None else due
    held = {"paused": lane.paused, "parked": lane.parked} if due is None else {}
    return active if state == "active" else held.get(state, 0) if state else active + sum(held.values())


@dataclass(slots=True)
class _Kind:
    """The packs of a kind of which the memo says all, only how they began (with their counts), or nothing."""

    whole: list[CountedPack] = field(default_factory=list[CountedPack])
    begun: dict[str, CountedPack] = field(default_factory=dict[str, CountedPack])
    silent: dict[str, float] = field(default_factory=dict[str, float])
    packs: int = 0
    """One more than the highest index of its packs."""


async def read_memo_counts(client: Client, selection: Selection, now: float, among: str = "") -> MemoCounts:
    """Read the counts of all packs that may hold messages of a selection; no worker is needed. Raises RetryLater.

    `among` is a visibility query that packs have to match besides.

    Packs that have not continued as new yet have only the counts of their first chunk, and packs of older code none.
    Of each kind's, SAMPLE at most are read from their histories, fewer of many kinds, and stand for the others.
    """
    kinds = defaultdict[str, _Kind](_Kind)
    packs = 0
    found = list[CountedPack]()
    uncounted = 0
    query = f"{selection.to_pack_query()} AND {among}" if among else selection.to_pack_query()

    with translate_rpc_errors():
        async with contextlib.aclosing(list_ahead(client.list_workflows(query, page_size=PAGE_SIZE))) as listing:
            async for execution in listing:
                packs += 1
                kind, index = pack_of(execution.id)
                kinds[kind].packs = max(kinds[kind].packs, index + 1)
                counts = await _read_memo(client, execution)
                ran_until = _find_ran_until(execution, now)
                if counts is None:
                    kinds[kind].silent[execution.id] = ran_until
                elif counts.is_first:
                    kinds[kind].begun[execution.id] = CountedPack(kind, counts, ran_until)
                else:
                    kinds[kind].whole.append(CountedPack(kind, counts, ran_until))

        size = min(SAMPLE, max(SAMPLE_MIN, SAMPLES_MAX // max(1, len(kinds))))
        for kind, known in kinds.items():
            found += known.whole
            found += await _complete(client, kind, known.begun, size)
            sampled, missing = await _stand_for(client, kind, known, size)
            found += sampled
            uncounted += missing

    return MemoCounts(now=now, packs=packs, counted=found, uncounted=uncounted, kinds=list(kinds))


async def _read_memo(client: Client, execution: WorkflowExecution) -> PackCounts | None:
    fields = execution.raw_info.memo.fields
    if COUNTS_MEMO not in fields:
        return None
    (wire,) = await client.data_converter.decode([fields[COUNTS_MEMO]])
    return read_counts(wire)


def _find_ran_until(execution: WorkflowExecution, now: float) -> float:
    due_at = execution.typed_search_attributes.get(DUE_AT)
    return min(now, due_at.timestamp()) if due_at else 0.0  # without it, no worker has taken the pack in yet


async def _complete(client: Client, kind: str, begun: dict[str, CountedPack], size: int) -> list[CountedPack]:
    """Complete the counts of first chunks by what has come since, as far as a sample of the packs shows it."""
    stored = await _sample(client, kind, list(begun), size)
    before = sum(begun[name].counts.alive for name in stored)
    ratio = sum(counts.alive for counts in stored.values()) / before if before else 1.0
    counted: list[CountedPack] = []
    for name, pack in begun.items():
        weight = 1.0 if name in stored else ratio
        counted.append(CountedPack(kind, stored.get(name, pack.counts), pack.ran_until, weight))
    return counted


async def _stand_for(client: Client, kind: str, known: _Kind, size: int) -> tuple[list[CountedPack], int]:
    """Give counts of packs that have none, as far as a sample of them shows it, and how many nothing is known of."""
    silent = known.silent
    stored = await _sample(client, kind, list(silent), size)
    if not stored:
        return [], len(silent)

    shares = {name: pack_share(pack_of(name)[1], known.packs) for name in silent}
    weight = sum(shares.values()) / sum(shares[name] for name in stored)
    return [CountedPack(kind, counts, silent[name], weight) for name, counts in stored.items()], 0


async def _sample(client: Client, kind: str, names: list[str], size: int) -> dict[str, PackCounts]:
    """Read some of the packs from their histories; those that can't be read are left out."""
    chosen = random.Random(kind).sample(names, size) if len(names) > size else names  # noqa: S311 — no secret
    found = await asyncio.gather(*(read_stored(client, name) for name in chosen))
    return {name: counts for name, pack in zip(chosen, found, strict=True) if (counts := pack.count()) is not None}
