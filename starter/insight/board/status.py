"""What the board shows, as of one moment: as data, as an object for JSON, and as one plain line."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from activities.idle.due_index import SleepingWorkflow
from shared.keepers.gates import GateClosure
from shared.messages.timespan import format_exact, format_moment, format_seconds
from starter.insight.doctor.checks import Finding
from starter.local.terminal import plural
from starter.steering.stored.memo_counts import MessageCount

ALL_KINDS = "all"
OTHER_KINDS = "other kinds"

StateCounts = Mapping[str, MessageCount]
"""How many messages there are in each state."""


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """Workers of a lane, what waits for them and for how many seconds, and calls a second, None if not known (yet)."""

    workers: int = 0
    waiting: int = 0
    waits: float = 0.0
    calls_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class DueSummary:
    """What is due, as closed gates let it."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many are due within each stretch of time, the nearest first."""
    gated: int = 0
    """How many are due before the closed gate of their kind or lane opens; they count as due only then."""
    first: Sequence[SleepingWorkflow] = ()
    """Some of those that are due first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardStatus:
    """What was read last; moments are seconds since the epoch."""

    at: float
    server: str
    fault: str = ""
    """Why the server can't be read now."""
    answered_at: float
    next_try: float = 0.0
    """Seconds until the server is asked again."""
    findings: Sequence[Finding] = ()
    """What is wrong, as the doctor says it."""
    gone: Mapping[str, float] = field(default_factory=dict[str, float])
    """Workers that did not stop in good order, with the moment of their last heartbeat."""
    parked: Sequence[tuple[str, int]] = ()
    """Groups of reasons of parked messages, the most frequent first, with how many of those looked at have them."""
    counts: Mapping[str, StateCounts] = field(default_factory=dict[str, StateCounts])
    """By kind, and of all kinds together as ALL_KINDS."""
    lanes: Mapping[str, LaneStatus] = field(default_factory=dict[str, LaneStatus])
    due: DueSummary = field(default_factory=DueSummary)
    gates: Mapping[str, GateClosure] = field(default_factory=dict[str, GateClosure])

    @property
    def calls_per_second(self) -> float | None:
        """Of all lanes together."""
        known = [lane.calls_per_second for lane in self.lanes.values() if lane.calls_per_second is not None]
        return sum(known) if known else None

    def describe_fault(self) -> str:
        """Say for how long the server has not answered, why, and when it is asked again."""
        silent = format_seconds(self.at - self.answered_at)
        left = format_seconds(self.next_try)
        return f"no answer for {silent}: {self.fault}; asked again in {left}" if self.fault else ""

    def describe_about(self) -> str:
        """Say where inexact counts come from; empty if all are exact."""
        inexact = [count for states in self.counts.values() for count in states.values() if not count.is_exact]
        return max(inexact, key=lambda count: count.age).explain() if inexact else ""

    def to_document(self) -> dict[str, Any]:
        """Give it as an object for JSON."""
        return {
            "at": format_exact(self.at),
            "fault": self.fault or None,
            "answered_at": format_exact(self.answered_at),
            "wrong": [{"about": f.about, "level": f.level, "seen": f.seen, "remedy": f.remedy} for f in self.findings],
            "workers_gone": {worker: format_exact(at) for worker, at in self.gone.items()},
            "parked_reasons": dict(self.parked),
            "counts": {kind: {s: c.to_document() for s, c in states.items()} for kind, states in self.counts.items()},
            "lanes": {lane: asdict(status) for lane, status in self.lanes.items()},
            "calls_per_second": self.calls_per_second,
            "due": dict(self.due.counts),
            "held_at_gates": self.due.gated,
            "next_due": [{"workflow_id": one.workflow_id, "due_at": one.due_at} for one in self.due.first],
            "gates": [closing.to_document(gate) for gate, closing in self.gates.items()],
        }

    def write_line(self) -> str:
        """Write the most important of it in one line."""
        parts = [self.describe_fault()] if self.fault else []
        totals = self.counts.get(ALL_KINDS, {})
        parts += [", ".join(f"{write_count(count)} {state}" for state, count in totals.items())]
        workers = max((lane.workers for lane in self.lanes.values()), default=0)
        parts += [
            f"{plural(workers, 'worker')}, {plural(sum(lane.waiting for lane in self.lanes.values()), 'task')} wait"
        ]
        parts += [f"{self.calls_per_second:,.1f} calls/s"] if self.calls_per_second is not None else []
        parts += [
            f"{finding.level}: {' '.join(filter(None, (finding.about, finding.seen)))}" for finding in self.findings
        ]
        parts += [f"worker {worker} has gone" for worker in self.gone]
        parts += [f"{plural(len(self.gates), 'gate')} closed"] if self.gates else []

        return f"{format_moment(self.at)}  {'; '.join(filter(None, parts))}"


def write_count(count: MessageCount) -> str:
    """Write a number; "about" unless it is exact."""
    about = "" if count.is_exact else "about "
    return f"{about}{count.number:,}"
