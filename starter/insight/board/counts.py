"""Counts by kind and state: from the index, and from the packs or their memos where there are many.

The board and the operations page show these numbers.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from temporalio.client import Client

from shared.messages.placement import identity_of
from shared.temporal.connect import CALL_TIMEOUT
from starter.insight.board.status import ALL_KINDS, OTHER_KINDS, StateCounts
from starter.insight.due_counts import INDEX_PAUSE_SECONDS
from starter.steering.packs.packs import Packs
from starter.steering.selection import Selection
from starter.steering.stored.memo_counts import MessageCount

STATES = ("active", "paused", "parked")
KINDS_MAX = 12
"""Kinds with a line of their own."""
KINDS_LISTED = 200
"""Workflows that are read to find the names of kinds; those found once are remembered."""

NONE = MessageCount(0)

Counts = dict[str, dict[str, MessageCount]]


class KindCounts:
    """Counts the messages of a selection; a look at the index costs a bounded number of calls."""

    def __init__(self, client: Client, packs: Packs, selection: Selection) -> None:
        self._client = client
        self._packs = packs
        self._selection = selection
        self._states = (selection.state,) if selection.state else STATES
        self._solo: set[str] = set()

    async def read_totals(self) -> StateCounts:
        """Give the counts of all kinds together. Raises RetryLater."""
        solo = {state: MessageCount(await self._count_solo(self._selection, state)) for state in self._states}
        packed = await self._packs.estimate_kinds(self._selection, self._states)
        return {state: _add([solo, *packed.values()], state) for state in self._states}

    async def read(self) -> dict[str, StateCounts]:
        """Give the counts by kind, the largest first, and of all kinds together. Raises RetryLater."""
        await self._find_kinds()
        totals = {state: await self._count_solo(self._selection, state) for state in self._states}
        found: Counts = defaultdict(dict)

        for kind, state in ((kind, state) for kind in sorted(self._solo) for state in self._states):
            if len(self._solo) == 1 or not totals[state]:
                number = totals[state]
            else:
                await asyncio.sleep(INDEX_PAUSE_SECONDS)
                number = await self._count_solo(replace(self._selection, kind=kind), state)
            found[kind][state] = MessageCount(number)

        others = {s: MessageCount(max(0, totals[s] - _add(found.values(), s).number)) for s in self._states}
        packed = await self._packs.estimate_kinds(self._selection, self._states)
        for kind, counts in packed.items():
            found[kind] = {state: _add([found.get(kind, {}), counts], state) for state in self._states}

        ranked = sorted(found, key=lambda kind: (-sum(count.number for count in found[kind].values()), kind))
        shown: dict[str, StateCounts] = {kind: found[kind] for kind in ranked[:KINDS_MAX]}

        rest = [others, *(found[kind] for kind in ranked[KINDS_MAX:])]
        if any(count.number for counts in rest for count in counts.values()):
            shown[OTHER_KINDS] = {state: _add(rest, state) for state in self._states}
        return shown | {ALL_KINDS: {state: _add([others, *found.values()], state) for state in self._states}}

    async def _find_kinds(self) -> None:
        """Find the names of kinds among the newest messages."""
        if self._selection.kind:
            self._solo.add(self._selection.kind)
            return

        query = self._selection.to_query()
        listing = self._client.list_workflows(query, page_size=KINDS_LISTED, rpc_timeout=CALL_TIMEOUT)
        await listing.fetch_next_page()
        self._solo |= {identity_of(execution.id)[0] for execution in listing.current_page or ()}

    async def _count_solo(self, selection: Selection, state: str) -> int:
        query = replace(selection, state=state).to_query()
        return (await self._client.count_workflows(query, rpc_timeout=CALL_TIMEOUT)).count


def _add(counts: Iterable[StateCounts], state: str) -> MessageCount:
    found = [each.get(state, NONE) for each in counts]
    return MessageCount(
        sum(count.number for count in found),
        is_exact=all(count.is_exact for count in found),
        age=max((count.age for count in found), default=0.0),
        uncounted=max((count.uncounted for count in found), default=0),
    )
