"""Faults: what is done to which part, and the plan of a run, which depends on the seed alone."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

TASK_TIMEOUT_SECONDS = 10.0
"""Timeout of workflow tasks in a run, which is the default."""

PAUSE_SECONDS = (14.0, 36.0)
"""Time from one fault to the next."""

OVERLAP_SHARE = 0.2
OVERLAP_SECONDS = (0.0, 3.0)
"""Time to the next fault for OVERLAP_SHARE of the faults, so that some begin during another or its recovery."""

WORKERS = ("worker 1", "worker 2")
EVERYTHING = "everything"
EMBEDDED = "embedded"
CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault: what is done to one of its targets, and for how long."""

    name: str
    act: str
    """What is done, see `chaos.injection`."""
    targets: tuple[str, ...]
    seconds: tuple[float, float]
    """How long the target is down, stopped or full."""
    weight: int = 1
    """How often the fault comes in each round of all kinds."""
    series: tuple[int, int] = (1, 1)
    """How often the fault is repeated in a row, with `series_pause` seconds between."""
    series_pause: tuple[float, float] = (0.0, 0.0)
    systems: tuple[str, ...] = (EMBEDDED, CLUSTER)
    until_share: float = 1.0
    """Share of the run after which the fault no longer begins."""


STOP_SHORT = (2.0, 5.0)
STOP_LONG = (TASK_TIMEOUT_SECONDS + 1, TASK_TIMEOUT_SECONDS + 6)
FAULTS = (
    Fault(name="worker killed", act="kill", targets=WORKERS, seconds=(0.2, 3), weight=4),
    Fault(name="both workers killed", act="kill", targets=("both workers",), seconds=(0.2, 3), weight=2),
    Fault(name="worker stopped, shortly", act="stop", targets=WORKERS, seconds=STOP_SHORT, weight=2),
    Fault(name="worker stopped beyond its tasks", act="stop", targets=WORKERS, seconds=STOP_LONG, weight=2),
    Fault(name="worker drained and started again", act="restart", targets=WORKERS, seconds=(0, 0)),
    Fault(name="server killed", act="kill", targets=("server",), seconds=(0.2, 4), weight=3),
    Fault(name="server stopped, shortly", act="stop", targets=("server",), seconds=STOP_SHORT),
    Fault(name="server stopped beyond its tasks", act="stop", targets=("server",), seconds=STOP_LONG),
    Fault(name="broker killed", act="kill", targets=("broker",), seconds=(0.2, 3)),
    Fault(name="broker stopped", act="stop", targets=("broker",), seconds=STOP_SHORT),
    Fault(name="bridge killed", act="kill", targets=("bridge",), seconds=(0.2, 3), weight=2),
    Fault(name="bridge stopped beyond its session", act="stop", targets=("bridge",), seconds=(7, 12)),
    Fault(name="Spark driver killed", act="kill", targets=("spark",), seconds=(0.2, 2), weight=2, until_share=0.5),
    Fault(name="everything killed", act="kill", targets=(EVERYTHING,), seconds=(0.2, 3)),
    Fault(
        name="everything killed, thrice within a minute",
        act="kill",
        targets=(EVERYTHING,),
        seconds=(0.2, 2),
        series=(3, 3),
        series_pause=(12, 18),
    ),
    Fault(name="everything stopped", act="stop", targets=(EVERYTHING,), seconds=STOP_SHORT),
    Fault(name="disk full", act="fill", targets=("server",), seconds=(4, 10), systems=(EMBEDDED,)),
    Fault(
        name="PostgreSQL restarted over and over",
        act="restart",
        targets=("postgres",),
        seconds=(0, 0),
        weight=2,
        series=(3, 4),
        series_pause=(5, 40),
        systems=(CLUSTER,),
    ),
    Fault(name="PostgreSQL killed", act="kill", targets=("postgres",), seconds=(0.2, 3), weight=2, systems=(CLUSTER,)),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault of a plan, `at` seconds after the run began."""

    at: float
    fault: str
    act: str
    target: str
    seconds: float


def make_plan(seed: int, minutes: float, system: str) -> list[Planned]:
    """Draw the faults of a run: rounds of all kinds, each in another order, until the time is over."""
    draw = random.Random(seed)
    length = minutes * 60
    plan: list[Planned] = []
    at = draw.uniform(*PAUSE_SECONDS)

    for fault in _draw_rounds(draw, system):
        if at > length * fault.until_share:
            if at > length:
                break
            continue

        for number in range(draw.randint(*fault.series)):
            at += draw.uniform(*fault.series_pause) if number else 0.0
            target = draw.choice(fault.targets)
            seconds = draw.uniform(*fault.seconds)
            plan.append(Planned(round(at, 2), fault.name, fault.act, target, round(seconds, 2)))

        is_overlapping = draw.random() < OVERLAP_SHARE
        span = OVERLAP_SECONDS if is_overlapping else PAUSE_SECONDS
        at += draw.uniform(*span)

    return [planned for planned in plan if planned.at <= length]


def _draw_rounds(draw: random.Random, system: str) -> Iterator[Fault]:
    kinds = [fault for fault in FAULTS if system in fault.systems for _ in range(fault.weight)]
    while True:
        draw.shuffle(kinds)
        yield from kinds
