"""Plans: what a number of messages with a mean interval needs in either encoding, from measured figures.

Arithmetic only: nothing here asks a server. A plan is as good as its figures, which were measured on two cores.
"""

import math
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from typing import Literal

from shared.lanes import LANES
from shared.messages.decision import TOLERANCE_MAX, TOLERANCE_SHARE
from shared.messages.placement import advise_tolerance, count_in_wake
from shared.messages.timespan import format_seconds
from shared.settings import Settings
from starter.extras.plan.figures import value_of
from worker.lanes.profiles import PROFILES
from workflows.packs.calls.batch import BATCH_MAX

EncodingName = Literal["solo", "pack"]
ENCODINGS: tuple[EncodingName, ...] = ("solo", "pack")

DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The load to plan for; times are seconds. On each day `starts_per_day` messages end and are replaced."""

    messages: int
    mean_interval: float
    handler_time: float = 0.1
    handler_cpu: float = 0.0
    tolerance: float | None = None
    retention: float = DAY
    starts_per_day: float = 0.0
    herd: int = 0
    """Number of messages that are due in one instant."""
    pack_messages: int = 1000
    """Mean number of messages in a pack."""

    @property
    def cycles_per_second(self) -> float:
        """Messages divided by mean interval: each message runs once in it."""
        return self.messages / self.mean_interval

    @property
    def slack(self) -> float:
        """The tolerance: as given, else the default of `Again`."""
        default = min(TOLERANCE_SHARE * self.mean_interval, TOLERANCE_MAX)
        return default if self.tolerance is None else self.tolerance

    @property
    def lane(self) -> str:
        """The first lane whose handlers may take `handler_time`."""
        limits = {name: lane.handler_timeout.total_seconds() for name, lane in LANES.items()}
        return next((name for name, limit in limits.items() if self.handler_time <= limit), "long")


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one start, cycle or batch: processor seconds; PostgreSQL's transactions, syncs and bytes of its log."""

    worker: float = 0.0
    server: float = 0.0
    database: float = 0.0
    transactions: float = 0.0
    syncs: float = 0.0
    log_bytes: float = 0.0

    @classmethod
    def read(cls, name: str) -> "Cost":
        """Read the cost whose figures begin with a name."""
        parts = ("worker_ms", "server_ms", "database_ms", "transactions", "syncs", "log_bytes")
        return cls(*(value_of(f"{name}.{part}") / (1000 if part.endswith("_ms") else 1) for part in parts))

    def plus(self, other: "Cost", count: float = 1.0) -> "Cost":
        """Add another cost `count` times."""
        return Cost(*(own + more * count for own, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an encoding needs; rates are per second, sizes bytes, times seconds, cores those of the machine measured."""

    encoding: EncodingName
    lane: str
    cycles_per_second: float
    in_batch: float
    workflows: int
    worker_cores: float
    worker_processes: int
    worker_memory: float
    server_cores: float
    database_cores: float
    transactions_per_second: float
    syncs_per_second: float
    log_bytes_per_second: float
    asleep_bytes: float
    closed_bytes: float
    shards: int
    partitions: int
    start_seconds: float
    herd_seconds: float | None
    actions_per_second: float
    place: str
    advice: tuple[str, ...]

    @property
    def database_bytes(self) -> float:
        """Bytes in the database: the messages, and the closed runs until retention ends."""
        return self.asleep_bytes + self.closed_bytes


def make_plan(demand: Workload, encoding: EncodingName) -> Plan:
    """Work out what the workload needs in an encoding; docs/scaling.md says how each number is calculated."""
    in_batch = find_batch(demand) if encoding == "pack" else 1.0
    workflows = demand.messages if encoding == "solo" else math.ceil(demand.messages / demand.pack_messages)
    used = find_load(demand, encoding, in_batch)
    processes = _count_processes(demand, encoding, in_batch, used.worker)
    wakes = demand.cycles_per_second / in_batch
    place, advice = _find_place(demand, encoding, used, wakes)

    herd_seconds = _find_herd_seconds(demand, encoding, processes) if demand.herd else None
    return Plan(
        encoding=encoding,
        lane=demand.lane,
        cycles_per_second=demand.cycles_per_second,
        in_batch=in_batch,
        workflows=workflows,
        worker_cores=_with_room(used.worker),
        worker_processes=processes,
        worker_memory=processes * value_of(f"{encoding}.worker.bytes"),
        server_cores=_with_room(used.server),
        database_cores=_with_room(used.database),
        transactions_per_second=used.transactions,
        syncs_per_second=used.syncs,
        log_bytes_per_second=used.log_bytes,
        asleep_bytes=demand.messages * value_of(f"{encoding}.asleep.bytes"),
        closed_bytes=_find_closed_bytes(demand, encoding),
        shards=_count_shards(workflows, used.syncs),
        partitions=math.ceil(wakes * value_of("partitions.per_task")),
        start_seconds=_find_start_seconds(demand.messages, encoding, _with_room(used.server + used.database)),
        herd_seconds=herd_seconds,
        actions_per_second=_count_actions(demand, encoding, in_batch),
        place=place,
        advice=advice,
    )


def _with_room(cores: float) -> float:
    return cores / value_of("headroom")


def find_batch(demand: Workload) -> float:
    """Messages that one wake of a pack runs, if its coalescing time is the tolerance: a shorter one has no benefit.

    A pack waits for half to all of that time for more messages to be due (docs/packs.md).
    """
    meeting = count_in_wake(demand.pack_messages, demand.slack, demand.mean_interval)
    return min(max(1.0, meeting), float(BATCH_MAX))


def find_load(demand: Workload, encoding: EncodingName, in_batch: float) -> Cost:
    """Cost of a second: its cycles and its starts. A packed cycle costs its share of a batch and a part of its own."""
    cycle = Cost.read("solo.cycle")
    if encoding == "pack":
        cycle = Cost.read("pack.message").plus(Cost.read("pack.batch"), 1 / in_batch)
    if demand.lane != "short":  # an ordinary activity there: more transactions, so more of everything but the worker
        cycle = cycle.plus(replace(cycle, worker=0.0), value_of("remote.factor") - 1)
    cycle = cycle.plus(Cost(worker=demand.handler_cpu))
    start = Cost.read(f"{encoding}.start")
    return Cost().plus(cycle, demand.cycles_per_second).plus(start, demand.starts_per_day / DAY)


def _find_closed_bytes(demand: Workload, encoding: EncodingName) -> float:
    """Bytes of the ended runs that the server keeps for the retention.

    Solo: a run ends after every fifth cycle, and the bytes measured for a cycle include that. A pack deletes the run
    that it continued from, so only its finished messages count.
    """
    ended = demand.starts_per_day / DAY * demand.retention * value_of(f"{encoding}.asleep.bytes")
    if encoding == "pack":
        return ended
    return ended + demand.cycles_per_second * demand.retention * value_of("solo.cycle.disk_bytes")


def _count_processes(demand: Workload, encoding: EncodingName, in_batch: float, cores: float) -> int:
    """Each process uses one core, and has slots for handlers that wait for I/O, of which a batch takes one."""
    profile = PROFILES[demand.lane]
    slots = profile.workflow_slots if demand.lane == "short" else profile.activity_slots
    busy = demand.cycles_per_second / in_batch * demand.handler_time / slots
    if encoding == "pack":
        busy = max(busy, demand.cycles_per_second * demand.handler_time / Settings().handlers_at_once)
    return max(1, math.ceil(_with_room(max(cores, busy))))


def _count_shards(workflows: int, syncs: float) -> int:
    wanted = max(workflows / value_of("shard.workflows"), syncs / value_of("shard.syncs"))
    shards = 2 ** math.ceil(math.log2(max(wanted, 1.0)))
    return int(min(max(shards, value_of("shards.least")), value_of("shards.most")))


def _find_start_seconds(messages: int, encoding: EncodingName, cores: float) -> float:
    """Seconds until all messages have been started: the rate on two cores, for solo in proportion to the cores.

    For packs it is the most that one sender reaches; two reached half as much again, more were not tried.
    """
    rate = value_of(f"{encoding}.starts_per_second")
    return messages / (rate * max(1.0, cores / 2) if encoding == "solo" else rate)


def _find_herd_seconds(demand: Workload, encoding: EncodingName, processes: int) -> float:
    """Seconds until a herd has run, in the largest possible batches, if these workers do nothing else."""
    in_batch = 1.0 if encoding == "solo" else min(float(BATCH_MAX), float(demand.pack_messages))
    cost = find_load(demand, encoding, in_batch).worker / demand.cycles_per_second
    return demand.herd * cost / processes


def _count_actions(demand: Workload, encoding: EncodingName, in_batch: float) -> float:
    """Billable actions a second on Temporal Cloud.

    A solo cycle: its timer, its activity, its search attributes, and a fifth of a continue-as-new. A pack's batch: the
    same, but the continue-as-new and the timer before it come once for each quarter of its messages. A start is one.
    """
    starts = demand.starts_per_day / DAY
    index = 1.0 if demand.mean_interval >= Settings().index_after / timedelta(seconds=1) else 0.0
    if encoding == "solo":
        return demand.cycles_per_second * (2 + index + 1 / Settings().cycles_per_run) + starts

    per_batch = 2 + index + 2 * in_batch / max(1.0, demand.pack_messages / 4)
    return demand.cycles_per_second / in_batch * per_batch + starts / demand.pack_messages


def _find_place(demand: Workload, encoding: EncodingName, used: Cost, wakes: float) -> tuple[str, tuple[str, ...]]:
    place = "more than one PostgreSQL: Cassandra, several clusters, or Temporal Cloud"
    if _with_room(used.worker + used.server + used.database) <= 2:
        place = "one machine of two cores; the embedded server does"
    elif (
        used.syncs <= value_of("postgresql.syncs")
        and used.log_bytes <= value_of("postgresql.log_bytes")
        and _with_room(used.database) <= value_of("postgresql.cores")
    ):
        place = "a cluster with one PostgreSQL"

    advice: list[str] = []
    rows = demand.messages / demand.pack_messages
    if encoding == "solo":
        rows = demand.messages + demand.cycles_per_second / Settings().cycles_per_run * demand.retention
    if wakes > value_of("visibility.writes") or rows > value_of("visibility.rows"):
        advice.append(f"visibility in Elasticsearch or OpenSearch: {wakes:,.0f} writes a second, {rows:,.0f} rows")
    if encoding == "solo" and demand.retention > DAY:
        advice.append("a retention of a day: each cycle leaves a fifth of a run behind for that long")
    if encoding == "pack" and demand.slack < demand.mean_interval / 50:
        tolerance = advise_tolerance(demand.pack_messages, demand.mean_interval)
        would_run = count_in_wake(demand.pack_messages, tolerance, demand.mean_interval)
        what = f"a tolerance of {format_seconds(tolerance)}, if that is fine"
        advice.append(f"{what}: a wake costs what it costs, and would run {would_run:,.0f} messages at once")
    if 3 * wakes > value_of("namespace.calls"):
        advice.append("raise frontend.namespaceRPS, and the persistence limits of frontend and history")
    return place, tuple(advice)
