"""The figures that plans are made from, each with its source; a test compares measured ones with their results."""

from dataclasses import dataclass
from typing import Literal

Basis = Literal["measured", "derived", "documented", "assumed"]

DATABASE = "./run bench database postgresql"
AS_SOLO = "taken to be what a solo cycle costs"
ABOVE_WAKE = f"{DATABASE}, less a wake's share"
SHARD_ADVICE = "docs.temporal.io, History Shard: each is for tens of thousands of executions"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its unit; `basis` is how far to trust it, `source` the command, page or reason behind it."""

    value: float
    unit: str
    meaning: str
    source: str
    basis: Basis = "measured"


FIGURES: dict[str, Figure] = {
    "solo.cycle.worker_ms": Figure(13.4, "ms", "worker's processor time of a cold cycle", "./run bench cycles"),
    "solo.cycle.server_ms": Figure(15.8, "ms", "server's processor time of a cold cycle", DATABASE),
    "solo.cycle.database_ms": Figure(11.3, "ms", "PostgreSQL's processor time of a cold cycle", DATABASE),
    "solo.cycle.transactions": Figure(31, "", "PostgreSQL's transactions, reading ones too, of a cold cycle", DATABASE),
    "solo.cycle.syncs": Figure(6.0, "", "syncs of PostgreSQL's log for a cold cycle", DATABASE),
    "solo.cycle.log_bytes": Figure(26_000, "bytes", "PostgreSQL's log of a cold cycle", DATABASE),
    "solo.cycle.disk_bytes": Figure(
        5_400, "bytes", "what a cycle leaves in the database until retention ends", DATABASE
    ),
    "solo.start.worker_ms": Figure(5.0, "ms", "worker's processor time of a message's first task", "a rule", "assumed"),
    "solo.start.server_ms": Figure(15.4, "ms", "server's processor time of a start, until asleep", DATABASE),
    "solo.start.database_ms": Figure(11.4, "ms", "PostgreSQL's processor time of a start, until asleep", DATABASE),
    "solo.start.transactions": Figure(
        41, "", "PostgreSQL's transactions, reading ones too, of a start, until asleep", DATABASE
    ),
    "solo.start.syncs": Figure(5.7, "", "syncs of PostgreSQL's log for a start, until asleep", DATABASE),
    "solo.start.log_bytes": Figure(17_300, "bytes", "PostgreSQL's log of a start, until asleep", DATABASE),
    "solo.asleep.bytes": Figure(9_500, "bytes", "a sleeping message in PostgreSQL", DATABASE),
    "solo.starts_per_second": Figure(364, "1/s", "starts by one sender, all on two cores", "./run bench starts"),
    "solo.worker.bytes": Figure(112e6, "bytes", "memory of a worker process", "./run bench cycles"),
    "pack.batch.worker_ms": Figure(
        34.0, "ms", "worker's processor time of a cold wake", "./run bench packs fill 10000000 3600 14400"
    ),
    "pack.message.worker_ms": Figure(0.02, "ms", "worker's processor time of each message in it", "./run bench packs"),
    "pack.batch.server_ms": Figure(15.8, "ms", "server's processor time of a cold wake", AS_SOLO, "derived"),
    "pack.message.server_ms": Figure(
        0.36, "ms", "server's processor time of each message in it", ABOVE_WAKE, "derived"
    ),
    "pack.batch.database_ms": Figure(11.3, "ms", "PostgreSQL's processor time of a cold wake", AS_SOLO, "derived"),
    "pack.message.database_ms": Figure(
        0.125, "ms", "PostgreSQL's processor time of each message in it", ABOVE_WAKE, "derived"
    ),
    "pack.batch.transactions": Figure(
        31, "", "PostgreSQL's transactions, reading ones too, of a cold wake", AS_SOLO, "derived"
    ),
    "pack.message.transactions": Figure(
        0.26, "", "PostgreSQL's transactions, reading ones too, of each message in it", ABOVE_WAKE, "derived"
    ),
    "pack.batch.syncs": Figure(6.0, "", "syncs of PostgreSQL's log for a cold wake", AS_SOLO, "derived"),
    "pack.batch.log_bytes": Figure(26_000, "bytes", "PostgreSQL's log of a cold wake", AS_SOLO, "derived"),
    "pack.message.syncs": Figure(0.06, "", "syncs of PostgreSQL's log for each message in it", ABOVE_WAKE, "derived"),
    "pack.message.log_bytes": Figure(780, "bytes", "PostgreSQL's log of each message in it", ABOVE_WAKE, "derived"),
    "pack.start.worker_ms": Figure(0.05, "ms", "worker's processor time of taking a message in", "a rule", "assumed"),
    "pack.start.server_ms": Figure(0.19, "ms", "server's processor time of a start, until taken in", DATABASE),
    "pack.start.database_ms": Figure(0.085, "ms", "PostgreSQL's processor time of a start, until taken in", DATABASE),
    "pack.start.transactions": Figure(
        0.22, "", "PostgreSQL's transactions, reading ones too, of a start, until taken in", DATABASE
    ),
    "pack.start.syncs": Figure(0.055, "", "syncs of PostgreSQL's log for a start, until taken in", DATABASE),
    "pack.start.log_bytes": Figure(150, "bytes", "PostgreSQL's log of a start, until taken in", DATABASE),
    "pack.asleep.bytes": Figure(
        434, "bytes", "a message, once packs have continued as new", "./run bench packs fill 1000000"
    ),
    "pack.starts_per_second": Figure(
        21_831, "1/s", "starts by one sender", "./run bench packs fill 10000000 3600 14400"
    ),
    "pack.worker.bytes": Figure(
        455e6, "bytes", "memory of a worker process", "./run bench packs fill 10000000 3600 14400"
    ),
    "remote.factor": Figure(
        7 / 3, "", "transactions of an ordinary activity's cycle to a local one's", "shared/lanes.py", "derived"
    ),
    "headroom": Figure(
        0.6, "", "share of the time that cores are busy: what is late must be caught up with", "a rule", "assumed"
    ),
    "shard.workflows": Figure(10_000, "", "open workflows in a history shard", SHARD_ADVICE, "documented"),
    "shard.syncs": Figure(
        10, "1/s", "writes that wait for a sync in a history shard, which does one at a time", "a rule", "assumed"
    ),
    "shards.least": Figure(512, "", "history shards, as their number is for good", "a rule", "assumed"),
    "shards.most": Figure(16_384, "", "history shards: more cost memory and polls in each server", "a rule", "assumed"),
    "partitions.least": Figure(
        4, "", "partitions of a task queue by default", "Temporal's matching.numTaskqueueReadPartitions", "documented"
    ),
    "partitions.per_task": Figure(
        0.015, "s", "partitions for each task a second", "community.temporal.io/t/539", "documented"
    ),
    "postgresql.syncs": Figure(
        10_000, "1/s", "syncs of its log that one PostgreSQL is trusted with", "a rule", "assumed"
    ),
    "postgresql.cores": Figure(64, "", "cores that one PostgreSQL is trusted with", "a rule", "assumed"),
    "postgresql.log_bytes": Figure(100e6, "bytes/s", "log that one PostgreSQL is trusted with", "a rule", "assumed"),
    "visibility.writes": Figure(1_000, "1/s", "visibility writes that PostgreSQL is trusted with", "a rule", "assumed"),
    "visibility.rows": Figure(100e6, "", "visibility rows that PostgreSQL is trusted with", "a rule", "assumed"),
    "namespace.calls": Figure(
        2_400, "1/s", "calls that a namespace may make a second", "Temporal's frontend.namespaceRPS", "documented"
    ),
}


def value_of(name: str) -> float:
    """Give a figure's number."""
    return FIGURES[name].value
