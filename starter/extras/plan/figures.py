"""The figures that plans are made from, each with its source: measured ones come from the results of benchmarks."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

Basis = Literal["measured", "derived", "documented", "assumed"]

MEASURED = Path(__file__).with_name("measured.json")
"""What was measured, and what follows from that alone; each benchmark writes it anew (`bench/figures.py`)."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its unit; `basis` is how far to trust it, `source` the command, page or reason behind it."""

    value: float
    unit: str
    meaning: str
    source: str
    basis: Basis = "measured"


_documented = partial(Figure, basis="documented")
_rule = partial(Figure, source="a rule", basis="assumed")
_SHARD_ADVICE = "docs.temporal.io, History Shard: each is for tens of thousands of executions"
_FILLING = "./run bench packs fill 10000000 3600 14400"

FIGURES: dict[str, Figure] = {
    **{name: Figure(**figure) for name, figure in json.loads(MEASURED.read_text("utf-8")).items()},
    # these two fit what the minutes of a run have cost, with batches of many sizes
    "pack.batch.worker_ms": Figure(34.0, "ms", "worker's processor time of a cold wake", _FILLING),
    "pack.message.worker_ms": Figure(0.02, "ms", "worker's processor time of each message in it", "./run bench packs"),
    "solo.start.worker_ms": _rule(5.0, "ms", "worker's processor time of a message's first task"),
    "pack.start.worker_ms": _rule(0.05, "ms", "worker's processor time of taking a message in"),
    "remote.factor": Figure(
        7 / 3, "", "transactions of an ordinary activity's cycle to a local one's", "shared/lanes.py", "derived"
    ),
    "headroom": _rule(0.6, "", "share of the time that cores are busy: what is late must be caught up with"),
    "shard.workflows": _documented(10_000, "", "open workflows in a history shard", _SHARD_ADVICE),
    "shard.syncs": _rule(10, "1/s", "writes that wait for a sync in a history shard, which does one at a time"),
    "shards.least": _rule(512, "", "history shards, as their number is for good"),
    "shards.most": _rule(16_384, "", "history shards: more cost memory and polls in each server"),
    "partitions.per_task": _documented(0.015, "s", "partitions for each task a second", "community.temporal.io/t/539"),
    "postgresql.syncs": _rule(10_000, "1/s", "syncs of its log that one PostgreSQL is trusted with"),
    "postgresql.cores": _rule(64, "", "cores that one PostgreSQL is trusted with"),
    "postgresql.log_bytes": _rule(100e6, "bytes/s", "log that one PostgreSQL is trusted with"),
    "visibility.writes": _rule(1_000, "1/s", "visibility writes that PostgreSQL is trusted with"),
    "visibility.rows": _rule(100e6, "", "visibility rows that PostgreSQL is trusted with"),
    "namespace.calls": _documented(
        2_400, "1/s", "calls that a namespace may make a second", "Temporal's frontend.namespaceRPS"
    ),
}


def value_of(name: str) -> float:
    """Give a figure's number."""
    return FIGURES[name].value
