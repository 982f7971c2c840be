"""Due counts: how many messages are due before some times, from the index, and from the packs or their memos."""

import asyncio
import contextlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from temporalio.client import Client

from shared.errors import PackNotServed
from shared.messages.placement import Layout
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_errors
from starter.steering.packs import ASK_SECONDS, ASKED_MAX, Packs
from starter.steering.selection import Selection

ALL = Selection()

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
    of_kind = defaultdict[str, list[tuple[Layout, int]]](list)
    async for layout, index in asker.find_packs(selection):
        of_kind[layout.kind].append((layout, index))
    due: dict[tuple[str, str], Mapping[int, int]] = {}
    silent, asked = list[str](), 0
    for kind, packs in of_kind.items():
        chosen = packs
        if 0 < sample < len(packs):  # a hash decides which ids a pack holds, so any packs represent all
            chosen = random.Random(kind).sample(packs, sample)  # noqa: S311 — no secret
        answers = await _query_all(asker, chosen, edges)
        asked += len(chosen)
        if len(answers) < len(chosen):
            silent.append(kind)
        for lane, counts in _add_up(answers).items():
            due[kind, lane] = {n: round(count * len(packs) / len(answers)) for n, count in counts.items()}
    return PackDueCounts(due=due, packs=sum(map(len, of_kind.values())), asked=asked, silent=silent)


async def _query_all(
    asker: Packs, packs: Sequence[tuple[Layout, int]], edges: Sequence[float]
) -> list[dict[str, list[int]]]:
    """Ask packs; if the first one does not answer, the others are not asked."""

    async def query(layout: Layout, index: int) -> dict[str, list[int]] | None:
        try:
            return (await asker.query(layout, index, "due", list(edges)))["lanes"]
        except PackNotServed:
            return None

    first = await query(*packs[0])
    if first is None:
        return []
    others = await asyncio.gather(*(query(*pack) for pack in packs[1:]))
    return [answer for answer in (first, *others) if answer is not None]


def _add_up(answers: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Counter[int]]:
    lanes = defaultdict[str, Counter[int]](Counter)
    for answer in answers:
        for lane, sums in answer.items():
            in_intervals = (due - before for before, due in itertools.pairwise([0, *sums]))
            lanes[lane].update(dict(enumerate(in_intervals)))
    return lanes
