"""What is due: how many messages of the board's selection within each stretch of time, and which come first."""

import bisect
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from temporalio.client import Client

from activities.idle.due_index import SleepingWorkflow, format_query_time
from shared.keepers.gates import GateClosure
from shared.lanes import LANES
from shared.messages.placement import HAS_PARKED, MESSAGE_WORKFLOW, PACK_WORKFLOW
from shared.messages.timespan import HORIZON
from shared.temporal.connect import CALL_TIMEOUT
from shared.temporal.search_attributes import DUE_AT
from starter.insight.board.status import DueSummary
from starter.insight.due_counts import (
    DueGroup,
    add_openings,
    count_packed,
    count_solo,
    count_solo_groups,
    find_gated_kinds,
    hold_at_gate,
    is_countable,
)
from starter.steering.keepers import GateControl
from starter.steering.packs.packs import Packs
from starter.steering.selection import Selection, quote

STRETCHES = {
    "1 min": timedelta(minutes=1),
    "10 min": timedelta(minutes=10),
    "1 h": timedelta(hours=1),
    "1 d": timedelta(days=1),
    "later": HORIZON,
}
NEXT_MAX = 3
NEXT_LISTED = 200
NARROWED_MAX = 6
"""How often the stretch in which the next one is looked for is cut to a quarter, until it holds few enough."""


class DueReader:
    """Counts what is due of a selection, as closed gates let it."""

    def __init__(self, client: Client, packs: Packs, gates: GateControl, selection: Selection) -> None:
        self._client = client
        self._packs = packs
        self._gates = gates
        self._selection = selection

    async def read(self) -> DueSummary:
        """Count what is due within each stretch, and find what is due next; the nearest ones are not indexed."""
        if self._selection.state not in (None, "active"):
            return DueSummary()

        now = time.time()
        stretches = [now + stretch.total_seconds() for stretch in STRETCHES.values()]
        gates = await self._gates.fetch(now)
        edges = add_openings(stretches, gates)
        found = Counter[int]()
        gated = 0

        for group in await self._count_groups(edges, gates):
            held = hold_at_gate(group, edges, gates)
            gated += held.gated
            for n, count in held.due.items():
                found[bisect.bisect_left(stretches, edges[n])] += count

        counts = {name: found[n] for n, name in enumerate(STRETCHES)}
        return DueSummary(counts, gated, await self._find_next(datetime.fromtimestamp(now, UTC)))

    async def _count_groups(self, edges: Sequence[float], gates: Mapping[str, GateClosure]) -> list[DueGroup]:
        active = replace(self._selection, state="active")
        kind = self._selection.kind
        if any(map(is_countable, gates)):
            lanes = [lane for lane in LANES if self._selection.lane in (None, lane)]
            apart = [] if kind else await find_gated_kinds(self._client, gates, edges[-1])
            solo = await count_solo_groups(self._client, lanes, apart, edges, kind or "")
        else:
            solo = [DueGroup(kind or "", "", await count_solo(self._client, active, edges))]

        # what has no due time in the index is due soon
        count = (await self._client.count_workflows(active.to_query(), rpc_timeout=CALL_TIMEOUT)).count
        soon = max(0, count - sum(sum(group.due.values()) for group in solo))
        packed = await count_packed(self._packs, edges, is_exact=False, selection=Selection(kind=kind))
        return [
            *solo,
            DueGroup("", "", {0: soon}),
            *(
                DueGroup(of, lane, due)
                for (of, lane), due in packed.due.items()
                if self._selection.lane in (None, lane)
            ),
        ]

    async def _find_next(self, now: datetime) -> list[SleepingWorkflow]:
        """Find some of those due first, by a stretch of time that is made shorter until a page holds all in it."""
        selection = self._selection
        end = now + HORIZON
        types = [MESSAGE_WORKFLOW]
        if selection.lane is None:  # a pack has messages of several lanes
            types.append(PACK_WORKFLOW)

        scope = f"WorkflowType IN ({', '.join(map(quote, types))}) AND ExecutionStatus = 'Running'"
        scope += f" AND State IN ('active', {quote(HAS_PARKED)}) AND DueAt > '{format_query_time(now)}'"

        for name, value in (("Kind", selection.kind), ("Lane", selection.lane)):
            scope += f" AND {name} = {quote(value)}" if value else ""

        for stretch in (*reversed(STRETCHES.values()), *(STRETCHES["1 min"] / 4**n for n in range(1, NARROWED_MAX))):
            end = now + stretch
            query = f"{scope} AND DueAt <= '{format_query_time(end)}'"
            count = (await self._client.count_workflows(query, rpc_timeout=CALL_TIMEOUT)).count
            if count <= NEXT_LISTED:
                break
        else:
            return []

        listing = self._client.list_workflows(query, page_size=NEXT_LISTED, rpc_timeout=CALL_TIMEOUT)
        await listing.fetch_next_page()
        found = [
            SleepingWorkflow(due_at, execution.id, execution.workflow_type == PACK_WORKFLOW)
            for execution in listing.current_page or ()
            if (due_at := execution.typed_search_attributes.get(DUE_AT)) is not None
        ]
        return sorted(found)[:NEXT_MAX]
