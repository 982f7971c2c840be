"""What a message is to the state machine of tests/integration/test_state_machine.py: the smallest model of its life.

It has no workflows, tasks, queries or packs. Moments are seconds since the epoch on the message's own clock. A moment
that the model cannot predict to the millisecond lies between two bounds, until it has been seen.
"""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shared.messages.signals import (
    Pause,
    PullForward,
    Reprioritize,
    Reschedule,
    Resume,
    Revise,
    RunNow,
    Signal,
    Stop,
    to_epoch,
)

ROUNDING = 0.01
NEVER = float("inf")
Call = tuple[int, str]


class Span(NamedTuple):
    """Between which two moments one lies, of which both are possible."""

    start: float
    end: float

    def later(self, seconds: float) -> "Span":
        """Give it that much later."""
        return Span(self.start + seconds, self.end + seconds)

    def latest(self, other: "Span") -> "Span":
        """Give the later one of two moments."""
        return Span(max(self.start, other.start), max(self.end, other.end))


@dataclass
class ExpectedMessage:
    """One message as it must be."""

    kind: str
    id: str
    is_packed: bool
    payload: dict[str, Any]
    due: Span
    priority: int = 3
    version: int = 0
    revision: int = 0
    sources: dict[str, int] = field(default_factory=dict[str, int])
    is_paused: bool = False
    is_parked: bool = False
    is_tried: bool = False
    may_be_pulled: bool | None = False
    """None where its earliest moment and its clock are no longer of one workflow."""
    ended: str = ""
    heard: str = ""
    """Reason of the last signal that must be among its decisions: before that, what is seen is not yet the answer."""
    calls: list[Call] = field(default_factory=list[Call])
    """What its handler must have been called with, repetitions left out: version and payload."""

    @property
    def name(self) -> str:
        """Name it as the ledger does."""
        return f"{self.kind}:{self.id}"

    @property
    def phase(self) -> str:
        """Say what `show` must call its state."""
        if self.ended or self.is_parked:
            return self.ended or "parked"
        return "paused" if self.is_paused else "active"

    @property
    def wake(self) -> Span:
        """Between which moments it runs next."""
        return self.due if self.phase == "active" else Span(NEVER, NEVER)

    def start(self, due: Span, payload: dict[str, Any]) -> None:
        """Begin a new life; the calls of those before remain."""
        fresh = ExpectedMessage(self.kind, self.id, self.is_packed, payload, due, calls=self.calls)
        self.__dict__.update(fresh.__dict__)

    def run_due(self, until: float, now: Span) -> None:
        """Run whenever it is due by a moment; `now` is what the clock shows to a call that is late already."""
        while self.wake.start <= until:
            self.run(now)

    def run(self, now: Span) -> None:
        """Let the handler be called once, and decide."""
        self._note_call()
        begun = self.due.latest(now)

        match self.payload["do"]:
            case "done":
                self.version = self.version + 1
                self.ended = "done"
            case "reject":
                self.is_parked = self.is_tried = True
            case _:
                self.version = self.version + 1
                self.is_tried = False
                self.due = begun.later(self.payload["hours"] * 3600)
                self.may_be_pulled = self.payload["may_be_pulled"]
                self.payload = {**self.payload, "cycles": self.payload["cycles"] + 1}

    def run_steered(self, sent: list[Signal], now: Span) -> None:
        """Let the handler be called once while signals come, whose requests hold when it has ended."""
        standing: list[Signal] = []
        newest = dict(self.sources)
        for signal in sent:
            if isinstance(signal, Revise) and signal.offset > newest.get(signal.source, -1):
                newest[signal.source] = signal.offset
                # a newer record begins a message anew, so it takes back a stop that has not taken place
                standing = [each for each in standing if not isinstance(each, Stop)]
            standing.append(signal)

        self.run(now)
        if newest != self.sources and self.is_parked:  # the handler has refused a payload that is no longer there
            self.version = self.version + 1
            self.is_tried = False
            self._be_due(now)
        for signal in standing:
            self.apply(signal, now)

    def apply(self, signal: Signal, now: Span) -> None:  # noqa: C901 — a table of signals
        """Change as a signal says; what falls due by it has not run yet."""
        if self.ended:
            if self.is_packed or not isinstance(signal, Revise) or not self._is_newer(signal):
                return
            # a newer record begins it anew, as long as its workflow is there
            self.ended = ""
            self.is_paused = False
            self._be_due(now)

        self.heard = signal.reason
        match signal:
            case RunNow():
                self._be_due(now)
            case Reschedule(due_at):
                asked = to_epoch(due_at)
                self._be_due(Span(asked, asked) if asked > now.end else now)  # what has passed means now
            case Reprioritize(priority):
                self.priority = priority
            case Revise():
                self._revise(signal)
            case Pause():
                self.is_paused = True
            case Resume():
                self.is_paused = False
            case Stop():
                self.ended = "stopped"
            case PullForward(expected):
                is_same = abs(to_epoch(expected) - self.due.start) < 0.5
                if is_same and self.phase == "active" and self.may_be_pulled and self.due.start > now.end:
                    self._be_due(now)
                else:
                    self.heard = ""

    def _be_due(self, due: Span) -> None:
        self.due = due
        self.is_parked = False
        self.may_be_pulled = False

    def _is_newer(self, record: Revise) -> bool:
        return record.offset > self.sources.get(record.source, -1)

    def _revise(self, signal: Revise) -> None:
        if not self._is_newer(signal):
            self.heard = ""
            return
        self.version += self.is_tried
        self.payload = signal.payload
        self.revision = self.revision + 1
        self.is_tried = False
        self.sources = {**self.sources, signal.source: signal.offset}

    def _note_call(self) -> None:
        call = self.version, json.dumps(self.payload, sort_keys=True)
        if self.calls[-1:] != [call]:
            self.calls.append(call)

    def find_difference(self, shown: dict[str, Any], reasons: list[str]) -> str:
        """Say in what a status, or what a message ended with, is not as it must be; nothing where it is.

        `reasons` are those of its last decisions.
        """
        expected: dict[str, Any] = {"version": self.version}
        if self.ended:
            expected |= {"state": self.ended, "result": self.version - 1 if self.ended == "done" else None}
        else:
            expected |= {"phase": self.phase, "payload": self.payload, "priority": self.priority}
            # a call that was lost with its worker is an attempt, which a rejection leaves as it is
            expected |= {} if self.is_parked else {"attempt": 0}
            expected |= {"revision": self.revision, "sources": self.sources}

        if self.heard and not any(self.heard in reason for reason in reasons):
            return f"signal {self.heard!r} is not among its decisions, {reasons}"

        found = [f"{k} is {shown[k]!r}, not {value!r}" for k, value in expected.items() if shown[k] != value]
        if not self.ended:
            due = shown["due_at_epoch"]
            if not self.due.start - ROUNDING <= due <= self.due.end + ROUNDING:
                found.append(f"due_at is {due}, not between {self.due.start} and {self.due.end}")

        return ", ".join(found)

    def note_seen(self, shown: dict[str, Any]) -> None:
        """Know to the millisecond what was known roughly."""
        if not self.ended:
            self.due = Span(shown["due_at_epoch"], shown["due_at_epoch"])
