"""Due counts: how many messages are due before some times, from the index, and from the packs or their memos."""

import asyncio
import bisect
import contextlib
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from temporalio.client import Client

from shared.errors import PackNotServed
from shared.keepers.gates import KIND_GATE, LANE_GATE, GateClosure, implicit_gates
from shared.messages.placement import Layout, pack_share
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_errors
from starter.steering.packs.packs import ASK_SECONDS, ASKED_MAX, Packs
from starter.steering.packs.queries import Pack
from starter.steering.selection import Selection

ALL = Selection()

GATED_KINDS_MAX = 20
"""Kinds with a closed gate of which the index is asked, five times a second."""

INDEX_PAUSE_SECONDS = 0.2
"""Between two queries of the index: a server allows ten a second in a namespace, for all clients together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackDueCounts:
    """Counts from packs: by (kind, lane), how many messages are due in the interval that ends with the n-th time."""

    due: Mapping[tuple[str, str], Mapping[int, int]]
    packs: int
    asked: int = 0
    """Fewer than `packs` when only a sample of them was asked; none when the counts come from the packs' memos."""
    silent: Sequence[str] = ()
    """Kinds with packs that did not answer; a kind without any answer is not counted."""
    is_about: bool = False
    """The counts come from the memos of the packs, of which the oldest is `age` seconds old."""
    age: float = 0.0
    uncounted: int = 0
    """Packs of which nothing could be read."""


async def count_solo(client: Client, selection: Selection, edges: Sequence[float]) -> dict[int, int]:
    """Count active messages by interval, without queries inside a stretch in which nothing is due.

    Raises RetryLater while the server does not answer.
    """
    found: dict[int, int] = {}

    async def split(first: int, before: int, last: int, until: int) -> None:
        """Count from edge `first` (`before` are due by then) to edge `last` (`until` are), halving the stretch."""
        if until <= before:
            return
        if last - first == 1:
            found[last] = until - before
            return

        middle = (first + last) // 2
        by_then = min(max(await _count_in_index(client, selection, edges[middle]), before), until)
        await split(first, before, middle, by_then)
        await split(middle, by_then, last, until)

    await split(-1, 0, len(edges) - 1, await _count_in_index(client, selection, edges[-1]))
    return found


@dataclass(frozen=True, slots=True)
class DueGroup:
    """Messages of a kind on a lane, or of all kinds of the lane without a group of their own; `due` by interval."""

    kind: str
    lane: str
    due: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class GatedGroup:
    """A group as its gate lets it run: `gated` are due before `gate` opens, and count as due only then."""

    due: Mapping[int, int]
    gate: str = ""
    gated: int = 0


async def count_solo_groups(
    client: Client, lanes: Sequence[str], kinds: Collection[str], edges: Sequence[float], of_kind: str = ""
) -> list[DueGroup]:
    """Count active messages by lane, those of the given kinds apart from the others, or those `of_kind` alone.

    Raises RetryLater while the server does not answer.
    """
    groups = list[DueGroup]()
    for lane in lanes:
        selection = Selection(kind=of_kind or None, lane=lane, state="active")
        others = Counter(await count_solo(client, selection, edges))
        for kind in kinds:
            due = await count_solo(client, Selection(kind=kind, lane=lane, state="active"), edges)
            groups.append(DueGroup(kind, lane, due))
            others -= Counter(due)
        groups.append(DueGroup(of_kind, lane, others))
    return groups


async def find_gated_kinds(client: Client, closings: Mapping[str, GateClosure], due_before: float) -> list[str]:
    """Name the kinds with a closed gate and messages with workflows of their own; raises RetryLater."""
    gated = sorted(gate.removeprefix(KIND_GATE) for gate in closings if gate.startswith(KIND_GATE))
    return [
        kind
        for kind in gated[:GATED_KINDS_MAX]
        if await _count_in_index(client, Selection(kind=kind, state="active"), due_before)
    ]


def add_openings(edges: Sequence[float], closings: Mapping[str, GateClosure]) -> list[float]:
    """Add to the rising edges the moments before the last of them at which gates of kinds and lanes open."""
    openings = {_find_opening(closing) for gate, closing in closings.items() if is_countable(gate)}
    return sorted({*edges, *(moment for moment in openings if moment < edges[-1])})


def is_countable(gate: str) -> bool:
    """Whether messages can be counted by a gate: only they themselves know of others whether they need them."""
    return gate.startswith((KIND_GATE, LANE_GATE))


def hold_at_gate(group: DueGroup, edges: Sequence[float], closings: Mapping[str, GateClosure]) -> GatedGroup:
    """Hold what is due before the gate of its kind or lane opens until then; after the last edge it is due no more."""
    needed = [gate for gate in implicit_gates(group.kind, group.lane, "") if gate in closings]
    if not needed:
        return GatedGroup(group.due)
    gate = max(needed, key=lambda each: _find_opening(closings[each]))
    opening = bisect.bisect_right(edges, _find_opening(closings[gate]))
    gated = sum(count for n, count in group.due.items() if n < opening)
    due = Counter({n: count for n, count in group.due.items() if n >= opening})
    if opening < len(edges):
        due[opening] += gated

    return GatedGroup(due, gate, gated)


def _find_opening(closing: GateClosure) -> float:
    return math.inf if closing.lasts_for_good else closing.opens_at


async def _count_in_index(client: Client, selection: Selection, due_before: float) -> int:
    wanted = replace(selection, due_before=datetime.fromtimestamp(due_before, UTC))
    await asyncio.sleep(INDEX_PAUSE_SECONDS)
    with translate_rpc_errors():
        return (await client.count_workflows(wanted.to_query(), rpc_timeout=CALL_TIMEOUT)).count


async def count_packed(
    asker: Packs, edges: Sequence[float], sample: int = 0, *, is_exact: bool = True, selection: Selection = ALL
) -> PackDueCounts:
    """Count by kind and lane, in each interval that ends with one of the edges, in the packs of a selection.

    `sample` is how many packs of a kind are asked in place of all of them; 0 asks every pack. Unless `is_exact`, packs
    are asked only if they are few and answer soon, else their memos are read. Raises RetryLater while the server does
    not answer.
    """
    if is_exact:
        return await _ask_packs(asker, edges, sample, selection)

    if await asker.count_packs(selection) <= ASKED_MAX:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                if not (found := await _ask_packs(asker, edges, 0, selection)).silent:
                    return found

    memos = await asker.read_memos(selection)
    return PackDueCounts(
        due=memos.count_due(edges), packs=memos.packs, is_about=True, age=memos.age, uncounted=memos.uncounted
    )


async def _ask_packs(asker: Packs, edges: Sequence[float], sample: int, selection: Selection) -> PackDueCounts:
    of_kind = defaultdict[str, list[Pack]](list)
    async for layout, index in asker.find_packs(selection):
        of_kind[layout.kind].append((layout, index))

    due: dict[tuple[str, str], Mapping[int, int]] = {}
    silent = list[str]()
    asked = 0

    for kind, packs in of_kind.items():
        chosen = packs
        if 0 < sample < len(packs):  # a hash decides which ids a pack holds, so any packs represent all
            chosen = random.Random(kind).sample(packs, sample)  # noqa: S311 — no secret
        answers = await _query_all(asker, chosen, edges)
        asked += len(chosen)
        if len(answers) < len(chosen):
            silent.append(kind)
        weight = _sum_shares(packs) / _sum_shares(list(answers)) if answers else 0.0
        for lane, counts in _add_up(list(answers.values())).items():
            due[kind, lane] = {n: round(count * weight) for n, count in counts.items()}

    return PackDueCounts(due=due, packs=sum(map(len, of_kind.values())), asked=asked, silent=silent)


def _sum_shares(packs: Sequence[Pack]) -> float:
    return sum(pack_share(index, layout.packs) for layout, index in packs)


async def _query_all(asker: Packs, packs: Sequence[Pack], edges: Sequence[float]) -> dict[Pack, dict[str, list[int]]]:
    """Ask packs, and give the answers; if the first one does not answer, the others are not asked."""

    async def query(layout: Layout, index: int) -> dict[str, list[int]] | None:
        try:
            return (await asker.queries.ask(layout, index, "due", list(edges)))["lanes"]
        except PackNotServed:
            return None

    first = await query(*packs[0])
    if first is None:
        return {}
    others = await asyncio.gather(*(query(*pack) for pack in packs[1:]))
    answers = zip(packs, (first, *others), strict=True)
    return {pack: answer for pack, answer in answers if answer is not None}


def _add_up(answers: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Counter[int]]:
    lanes = defaultdict[str, Counter[int]](Counter)
    for answer in answers:
        for lane, sums in answer.items():
            in_intervals = (due - before for before, due in itertools.pairwise([0, *sums]))
            lanes[lane].update(dict(enumerate(in_intervals)))
    return lanes
