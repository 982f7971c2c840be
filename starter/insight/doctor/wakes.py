"""The doctor's check of wakes: whether enough of a pack's messages run in one of them, since each costs the same."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

from temporalio.client import Client

from shared.messages.placement import advise_tolerance, count_in_wake
from shared.messages.timespan import format_seconds
from shared.packs.entry import DECISIONS, DUE, Entry, is_held
from shared.temporal.connect import CALL_TIMEOUT
from starter.insight.doctor.checks import Finding, warning
from starter.steering.selection import Selection
from starter.steering.stored.stored_pack import read_stored

PACKS_READ = 5
"""Of each kind; a hash decides which ids a pack holds, so some stand for all."""

KINDS_READ = 20
APART_SECONDS = 0.5
"""Outcomes of one wake follow one another more closely than this, as long as its handlers do I/O at the same time."""

FEW = 10
"""Messages in a wake below which it is worth telling."""

WAKES_MANY = 0.5
"""Wakes a second of a kind below which nothing is gained: each takes some 60 ms of server and worker together."""

TIMES_MORE = 3.0
"""How many times as many messages a larger tolerance must bring together."""


@dataclass(frozen=True, slots=True)
class PackRhythm:
    """How the messages of a pack come back: how many they are, after how many seconds, and how many a wake runs."""

    messages: int
    interval: float
    in_wake: float

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "PackRhythm | None":
        """Read it from the last decision of each message; None when none has come back yet."""
        came_back = [e for e in entries if not is_held(e) and e[DECISIONS] and e[DECISIONS][-1][2] == "again"]
        if not came_back:
            return None

        intervals = [entry[DECISIONS][-1][0] / 1000 for entry in came_back]
        moments = sorted((entry[DUE] - entry[DECISIONS][-1][0]) / 1000 for entry in came_back)
        wakes = 1 + sum(later - earlier > APART_SECONDS for earlier, later in pairwise(moments))
        return cls(len(came_back), median(intervals), len(came_back) / wakes)


async def check_kind(client: Client, kind: str) -> Finding | None:
    """Give a warning if the wakes of a kind's packs run few messages, and a larger tolerance would help."""
    query = Selection(kind=kind).to_pack_query()
    names = [found.id async for found in client.list_workflows(query, limit=PACKS_READ, rpc_timeout=CALL_TIMEOUT)]
    stored = await asyncio.gather(*(read_stored(client, name) for name in names))
    states = [pack.state for pack in stored if pack.state is not None]
    rhythms = [found for state in states if (found := PackRhythm.of(state.entries.read())) is not None]
    if not rhythms:
        return None

    packs = (await client.count_workflows(query, rpc_timeout=CALL_TIMEOUT)).count
    return find_short_tolerance(kind, rhythms, packs)


def find_short_tolerance(kind: str, rhythms: Sequence[PackRhythm], packs: int) -> Finding | None:
    """Give a warning if it is worth a larger tolerance, by what some of a kind's packs show."""
    messages = mean(rhythm.messages for rhythm in rhythms)
    interval = mean(rhythm.interval for rhythm in rhythms)
    in_wake = mean(rhythm.in_wake for rhythm in rhythms)

    if interval <= 0 or in_wake >= FEW:
        return None

    wakes = packs * messages / (interval * in_wake)
    tolerance = advise_tolerance(messages, interval)
    would_run = count_in_wake(messages, tolerance, interval)
    if wakes < WAKES_MANY or would_run < TIMES_MORE * in_wake:
        return None

    seen = (
        f"each wake of a pack runs about {in_wake:.3g} of its {messages:,.0f} messages, at a rate of {wakes:,.3g} a "
        "second; a wake costs the same whatever it runs"
    )
    advice = f"let Again(tolerance=…) be {format_seconds(tolerance)} where that is fine"
    return warning(seen, f"{advice}: a wake would run {would_run:.0f}", kind)
