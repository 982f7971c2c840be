"""Reads what the board shows: its sections, each at its own pace, so that no slow one holds up another."""

import asyncio
import bisect
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.client import Client

from activities.idle.due_index import SleepingWorkflow, format_query_time
from shared.errors import DiskFull, ServerUnreachable
from shared.keepers.gates import GateClosure
from shared.lanes import LANES
from shared.messages.placement import HAS_PARKED, MESSAGE_WORKFLOW, PACK_WORKFLOW
from shared.messages.timespan import HORIZON
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT
from shared.temporal.search_attributes import DUE_AT
from starter.control import Control
from starter.insight.board.counts import KindCounts
from starter.insight.board.heartbeats import Heartbeats
from starter.insight.board.section import Section
from starter.insight.board.status import BoardStatus, LaneStatus, StateCounts
from starter.insight.doctor.checks import Finding, Severity, run_checks
from starter.insight.doctor.lanes import Lanes
from starter.insight.doctor.server import Server
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
from starter.steering.status.reasons import group_reasons

CHECK_SECONDS = 10.0
HEALTH_TIMEOUT = timedelta(seconds=3)
QUICK_CHECKS = ("workers", "backlog")
SLOW_CHECKS = ("overdue", "workflows")
SLOW_REST = 50.0
"""What searches the index for what is overdue may read a row of each running workflow."""
DUE_REST = 4.0
"""Most of the time that counting what is due takes are pauses between its calls."""

WRONG = (Severity.WRONG, Severity.WARNING)

PARKED_READ = 100
REASONS_MAX = 3

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


@dataclass(frozen=True, slots=True)
class DueSummary:
    """How many are due within each stretch, how many are due before their gate opens, and which are due first."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    gated: int = 0
    first: Sequence[SleepingWorkflow] = ()


class BoardReader:
    """Keeps the status of a selection up to date during `async with reader.reading()`, every `interval` seconds."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        selection: Selection,
        interval: float,
        find_full_disk: Callable[[], str],
    ) -> None:
        """Take what says that the server's disk is full, or nothing."""
        self._find_full_disk = find_full_disk
        self._client = client
        self._settings = settings
        self._selection = selection
        self._interval = interval
        self._control = Control(client, settings)
        self._packs = Packs(client, settings)
        shown = [lane for lane in LANES if selection.lane in (None, lane)]
        self._heartbeats = Heartbeats(client, settings.task_queue_prefix, shown)
        server = Server(self._open, settings, Path(), time.time)
        server.client = client
        self._lanes = Lanes(server, None)
        self._shown = shown
        self._answered_at = time.time()
        self._health = Section(self._check_health, None)
        self._quick = Section(lambda: self._check(QUICK_CHECKS), list[Finding]())
        self._slow = Section(lambda: self._check(SLOW_CHECKS), list[Finding](), rest=SLOW_REST)
        self._rates = Section(self._heartbeats.read, dict[str, float]())
        self._counts = Section(KindCounts(client, self._packs, selection).read, dict[str, StateCounts]())
        self._parked = Section(self._read_parked, Counter[str]())
        self._due = Section(self._read_due, DueSummary(), rest=DUE_REST)
        self._gates = Section(self._read_gates, dict[str, GateClosure]())
        self._sections = (
            *(self._health, self._quick, self._slow, self._rates, self._counts),
            *(self._parked, self._due, self._gates),
        )

    @property
    def is_complete(self) -> bool:
        """Whether every section has been read."""
        return all(section.has_value for section in self._sections)

    async def read_once(self) -> None:
        """Read every section once. Raises RetryLater and Misconfigured."""
        await self._quick.read_once()  # tells which lanes have workers
        await asyncio.gather(*(section.read_once() for section in self._sections if section is not self._quick))

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        """Read on and on for the length of an `async with` block."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(section.keep(self._interval)) for section in self._sections]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    def status(self) -> BoardStatus:
        """Give what was read last."""
        faulty = next((section for section in self._sections if section.fault), None)
        due = self._due.value
        found = [*self._quick.value, *self._slow.value]
        if full := self._find_full_disk():
            found.insert(0, Finding.of(DiskFull(full)))

        fault = "" if faulty is None else faulty.fault
        next_try = 0.0 if faulty is None else max(0.0, faulty.next_at - time.monotonic())
        return BoardStatus(
            at=time.time(),
            server=f"{self._client.service_client.config.target_host} {self._client.namespace}",
            fault=fault,
            answered_at=self._answered_at,
            next_try=next_try,
            findings=sorted((each for each in found if each.level in WRONG), key=lambda each: WRONG.index(each.level)),
            gone=self._heartbeats.gone,
            parked=self._parked.value.most_common(REASONS_MAX),
            counts=self._counts.value,
            lanes={lane: self._describe_lane(lane) for lane in self._shown},
            due=due.counts,
            gated=due.gated,
            next_due=due.first,
            gates=self._gates.value,
        )

    def _describe_lane(self, lane: str) -> LaneStatus:
        rate = self._rates.value.get(lane)
        if (serving := self._lanes.serving.get(lane)) is None:
            return LaneStatus(calls_per_second=rate)
        return LaneStatus(len(serving.versions), serving.waiting, serving.waits.total_seconds(), rate)

    async def _open(self, _: Settings) -> Client:
        return self._client

    async def _check_health(self) -> None:
        if not await self._client.service_client.check_health(timeout=HEALTH_TIMEOUT):
            raise ServerUnreachable("the server says that it is not ready; look at its log")
        self._answered_at = time.time()

    async def _check(self, names: Sequence[str]) -> list[Finding]:
        checks = [check for check in self._lanes.checks() if check.name in names]
        return await run_checks([replace(check, needs=()) for check in checks], CHECK_SECONDS)

    async def _read_parked(self) -> Counter[str]:
        parked = replace(self._selection, state="parked")
        listing = self._control.list(parked, PARKED_READ)
        return Counter(group_reasons([listed.parked_reason async for listed in listing]))

    async def _read_gates(self) -> dict[str, GateClosure]:
        return await GateControl(self._client, self._settings).fetch(time.time())

    async def _read_due(self) -> DueSummary:
        """Count what is due within each stretch, and find what is due next; the nearest ones are not indexed."""
        if self._selection.state not in (None, "active"):
            return DueSummary()

        now = time.time()
        stretches = [now + stretch.total_seconds() for stretch in STRETCHES.values()]
        gates = await GateControl(self._client, self._settings).fetch(now)
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
            apart = [] if kind else await find_gated_kinds(self._client, gates, edges[-1])
            solo = await count_solo_groups(self._client, self._shown, apart, edges, kind or "")
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
