"""The doctor's checks of the lanes: which workers serve them, what waits, and whether its kinds are known here."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.worker.v1 import WorkerHeartbeat
from temporalio.service import RPCError, RPCStatusCode

from activities.idle.capacity import Capacity, is_fresh
from activities.idle.due_index import SleepingWorkflow
from activities.idle.overdue import OverdueIndex
from activities.registry import Registry, declared_packs
from shared.keepers.gates import GateClosure, pick_implicit
from shared.lanes import LANES, task_queue
from shared.messages.placement import MESSAGE_WORKFLOW, kind_of_packs
from shared.messages.timespan import format_seconds
from shared.temporal.connect import CALL_TIMEOUT, describe_queue
from shared.temporal.deployment import Version, find_taking, name_version, takeover_command, to_version
from shared.temporal.search_attributes import KIND
from starter.insight.doctor.checks import NOT_LOOKED_AT, Check, Finding, Found, fine, unknown, warning, wrong
from starter.insight.doctor.server import Server
from starter.insight.doctor.wakes import KINDS_READ, check_kind
from starter.local.terminal import plural
from starter.steering.keepers import GateControl
from starter.steering.selection import Selection, quote
from starter.steering.status.failing_workflows import query_reported
from starter.steering.stored.memo_counts import MemoCounts, read_memo_counts

POLL_LASTS = timedelta(seconds=75)
"""A worker polls again within a minute; the server remembers each poller for five minutes."""

WAITS_LONG = timedelta(minutes=1)
OVERDUE_LONG = timedelta(minutes=5)
NAMED_MAX = 3
"""Overdue workflows of a lane that are named."""

KINDS_LISTED = 100
"""Messages that are read to find the names of their kinds."""

ALIVE = "ExecutionStatus = 'Running'"


@dataclass(frozen=True, slots=True)
class LaneWorkers:
    """The workers that serve a lane, by version, and the tasks that wait there."""

    versions: Sequence[str]
    """One for each running worker process."""
    waiting: int
    waits: timedelta
    standby: Sequence[Version] = ()
    """Versions whose workers run but get no tasks, because another version is current."""
    beats: Sequence[WorkerHeartbeat] = ()
    """The last heartbeat of each worker that gets tasks; a killed one has an old one."""


class Lanes:
    """Looks at the lanes, once the server has answered; `registry` is None if the handlers can't be loaded."""

    def __init__(self, server: Server, registry: Registry | None) -> None:
        self._server = server
        self._registry = registry
        self._settings = server.settings
        self.serving: dict[str, LaneWorkers] = {}
        """What the check of workers has found, by lane."""
        self._overdue: dict[str, OverdueIndex] = {}

    def checks(self) -> list[Check]:
        """Give the checks, in order."""
        known = ("server", "namespace")
        return [
            Check("workers", self._check_workers, known),
            Check("backlog", self._check_backlog, known),
            Check("overdue", self._check_overdue, (*known, "search attributes"), is_slow=True),
            Check("workflows", self._check_workflows, known),
            Check("messages", self._check_messages, (*known, "search attributes"), is_slow=True),
            Check("kinds", self._check_kinds, (*known, "search attributes"), is_slow=True),
            Check("wakes", self._check_wakes, (*known, "search attributes"), is_slow=True),
            Check("gates", self._check_gates, known),
        ]

    async def _check_workers(self) -> Found:
        for lane in LANES:
            self.serving[lane] = await self._find_serving(lane)
        return [await self._check_served(lane, serving) for lane, serving in self.serving.items()]

    async def _check_served(self, lane: str, serving: LaneWorkers) -> Finding:
        if not serving.versions:
            return await self._check_unserved(lane, serving)
        versions = sorted(set(serving.versions))
        seen = f"{plural(len(serving.versions), 'worker')} of {', '.join(versions)}"
        if len(versions) > 1:
            return warning(seen, "replace the older ones: messages are run by whichever has room", lane)
        return fine(seen, about=lane)

    async def _check_unserved(self, lane: str, serving: LaneWorkers) -> Finding:
        remedy = f"dormice worker --lane {lane}"
        waiting = serving.waiting
        who = "no worker"

        if serving.standby:
            who = f"no worker of the current version, but of {', '.join(map(name_version, serving.standby))}"
            remedy = takeover_command(serving.standby[0])

        messages = await self._count(f"TaskQueue = {quote(self._queue(lane))}")
        if messages or waiting:
            what = f"{plural(messages, 'message')} alive" if messages else f"{plural(waiting, 'task')} waiting"
            return wrong(f"{who}, and {what}: nothing runs there", remedy, lane)

        if self._registry is not None and any(handler.lane == lane for handler in self._registry.values()):
            return warning("no worker; nothing needs one yet, but kinds here would", remedy, lane)
        return fine("no worker, and nothing that needs one", about=lane)

    async def _check_backlog(self) -> Found:
        return [check_backlog(lane, serving) for lane, serving in self.serving.items()]

    async def _check_overdue(self) -> Found:
        served = [lane for lane, serving in self.serving.items() if serving.versions]
        if not served:
            return unknown(f"{NOT_LOOKED_AT}, see workers")
        now = datetime.fromtimestamp(self._server.now(), UTC)
        for lane in served:
            index = OverdueIndex(self._server.client, self._queue(lane), self._settings.index_after)
            self._overdue.setdefault(lane, index)

        looks = (self._overdue[lane].find_oldest(NAMED_MAX, now, OVERDUE_LONG) for lane in served)
        found = await asyncio.gather(*looks)
        return [check_overdue(lane, one, self.serving[lane], now) for lane, one in zip(served, found, strict=True)]

    async def _check_workflows(self) -> Finding:
        query = query_reported(self._settings.task_queue_prefix)
        count = (await self._server.client.count_workflows(query, rpc_timeout=CALL_TIMEOUT)).count
        if not count:
            return fine("no workflow's task fails over and over")
        remedy = "put the release before back if it came with one, or see 'dormice repair --dry-run'"
        seen = f"{plural(count, 'workflow')} whose task fails over and over"
        return wrong(f"{seen}: what lives there stands still", remedy)

    async def _check_messages(self) -> Finding:
        here = self._query_queues()
        solo = await self._count(f"WorkflowType = {quote(MESSAGE_WORKFLOW)} AND {here}")
        memos = await read_memo_counts(self._server.client, Selection(), self._server.now(), among=here)
        return describe_messages(solo, memos)

    async def _check_kinds(self) -> Finding:
        if self._registry is None:
            return unknown(f"{NOT_LOOKED_AT}, see handlers")

        known = ", ".join(map(quote, sorted(self._registry)))
        strange = f"Kind NOT IN ({known})" if known else "Kind IS NOT NULL"
        query = f"{strange} AND {self._query_queues()}"

        count = await self._count(query)
        if not count:
            return fine("every kind that is alive has a handler here")

        found = self._server.client.list_workflows(f"{query} AND {ALIVE}", limit=KINDS_LISTED, rpc_timeout=CALL_TIMEOUT)
        names = sorted({workflow.typed_search_attributes.get(KIND) or "?" async for workflow in found})
        remedy = "install their handlers, or name their modules in DORMICE_HANDLERS, for the workers too"
        return warning(f"{plural(count, 'workflow')} of kinds without a handler here: {', '.join(names)}", remedy)

    async def _check_wakes(self) -> Found:
        if self._registry is None:
            return unknown(f"{NOT_LOOKED_AT}, see handlers")

        kinds = sorted(declared_packs(self._registry))[:KINDS_READ]
        found = [await check_kind(self._server.client, kind) for kind in kinds]
        complaints = [finding for finding in found if finding is not None]
        return complaints or fine("packs run enough messages in a wake, or wake seldom")

    async def _check_gates(self) -> Found:
        now = self._server.now()
        return check_gates(await GateControl(self._server.client, self._settings).fetch(now), now)

    async def _count(self, query: str) -> int:
        return (await self._server.client.count_workflows(f"{query} AND {ALIVE}", rpc_timeout=CALL_TIMEOUT)).count

    async def _find_serving(self, lane: str) -> LaneWorkers:
        queue = self._queue(lane)
        described = await describe_queue(self._server.client, queue, report_stats=True)

        try:
            beats = [beat async for beat in Capacity(self._server.client, queue).read_heartbeats()]
        except RPCError as exc:
            if exc.status is not RPCStatusCode.UNIMPLEMENTED:
                raise
            beats = list[WorkerHeartbeat]()

        taking = find_taking(described.versioning_info)
        passive = {v for beat in beats if is_fresh(beat) and (v := to_version(beat.deployment_version)) not in taking}
        beats = [beat for beat in beats if to_version(beat.deployment_version) in taking]
        pollers = described.pollers if not (beats or passive) else ()
        versions = _find_versions(beats, pollers)
        stats = described.stats
        waits = described.stats.approximate_backlog_age.ToTimedelta()
        standby = sorted(passive, key=name_version)

        return LaneWorkers(versions, stats.approximate_backlog_count, waits, standby, beats)

    def _query_queues(self) -> str:
        return f"TaskQueue IN ({', '.join(quote(self._queue(lane)) for lane in LANES)})"

    def _queue(self, lane: str) -> str:
        return task_queue(self._settings.task_queue_prefix, lane)


def describe_messages(solo: int, memos: MemoCounts) -> Finding:
    """Report how many messages there are; those in packs are counted about, without a worker."""
    seen = f"{plural(solo, 'message')} with a workflow each"
    if not memos.packs:
        return fine(seen)
    packed = memos.count(Selection())
    paused, parked = (memos.count(Selection(state=state)).number for state in ("paused", "parked"))
    counts = f"{packed.describe()} in {plural(memos.packs, 'pack')}, {paused:,} paused and {parked:,} parked"
    return fine(f"{seen}; {counts} ({packed.explain()})")


def check_gates(closed: Mapping[str, GateClosure], now: float) -> Found:
    """Report closed gates: those of a kind, lane or tenant are closed by people, and easily forgotten."""
    if implicit := pick_implicit(closed):
        return [
            warning(closing.describe(gate, now), f"dormice gates open {gate}") for gate, closing in implicit.items()
        ]
    return fine(f"{plural(len(closed), 'gate')} closed, none of a whole kind, lane or tenant")


def check_backlog(lane: str, serving: LaneWorkers) -> Finding:
    """Find out whether tasks wait because a lane has too few workers; a lane without any has a finding already."""
    seen = f"{plural(serving.waiting, 'task')} waiting"
    if serving.versions and serving.waits > WAITS_LONG:
        seen += f", the first for {format_seconds(serving.waits.total_seconds())}"
        return warning(seen, "start more worker processes; 'dormice forecast' tells how many", lane)
    return fine(seen, about=lane)


def check_overdue(lane: str, overdue: Sequence[SleepingWorkflow], serving: LaneWorkers, now: datetime) -> Finding:
    """Report what is overdue on a lane with workers: they are too few, or the workflow stands still."""
    if not overdue:
        return fine("nothing is overdue", about=lane)

    first, *others = overdue
    seen = f"{first.workflow_id} is overdue by {format_seconds((now - first.due_at).total_seconds())}"
    seen += "".join(f", {one.workflow_id}" for one in others)
    if serving.waits > WAITS_LONG:
        return warning(f"{seen}: the lane is behind", "see backlog", lane)

    kind = kind_of_packs(first.workflow_id)
    see = f"dormice list --kind {kind}" if first.is_pack else f"dormice show {first.workflow_id}"
    next_step = "docs/operations.md, DormiceMessagesOverdue, goes on from there"
    remedy = f"see '{see}' and 'dormice repair --dry-run'; {next_step}"

    return wrong(f"{seen}, and no task of the lane waits: it stands still", remedy, lane)


def _find_versions(beats: Iterable[WorkerHeartbeat], pollers: Iterable[PollerInfo]) -> list[str]:
    """Give the version of each process that is alive; a killed one still has old heartbeats and polls."""
    oldest = datetime.now(UTC) - POLL_LASTS
    processes = {beat.worker_identity: beat.deployment_version.build_id for beat in beats if is_fresh(beat)} | {
        poller.identity: poller.worker_version_capabilities.build_id
        for poller in pollers
        if poller.last_access_time.ToDatetime(UTC) >= oldest
    }
    return [version or "an unknown version" for version in processes.values()]
