"""The ledger: what was sent, answered and called, recorded outside of the tested code, and checks after every step."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from activities.api.outcome import Message
from chaos.simulation.ledger.state_checks import StateChecks
from chaos.simulation.replica.replica import Replica
from chaos.simulation.server.requests import name_version
from chaos.simulation.server.run import Run
from chaos.simulation.virtual_time import EPOCH
from chaos.simulation.worker.worker import Worker

STEPS_KEPT = 40

AFTERMATH_SECONDS = 2.0
"""How long after it goes on a worker that was stopped may still begin calls for which nobody waits any more."""


class Violation(Exception):
    """A promise was broken."""


@dataclass(slots=True)
class Call:
    """One call of a handler."""

    key: str
    version: int
    number: int
    began_at: float
    worker: Worker
    is_open: bool = True
    has_ended: bool = False
    """Whether its handler came to an end by itself."""
    counts_as_failed: bool = False
    """Whether its version is to be called again: it has failed, has used up its time, or has asked for it."""

    @property
    def is_current(self) -> bool:
        """Whether somebody waits for its outcome."""
        return self.worker.server.requests.awaits(self.key, self.worker, self.began_at - EPOCH)

    @property
    def is_hit(self) -> bool:
        """Whether a fault has hit its worker, or a task or answer of those who wait for it."""
        since = self.began_at - EPOCH
        return self.worker.process.was_hit_since(since) or self.worker.server.requests.is_hit(self.key)


@dataclass(slots=True)
class Tracked:
    """What is known of one message outside of the tested code."""

    sent: int = 0
    """Number of chunks or records in which the message was sent."""
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """Number of the senders' receipts by outcome."""
    is_acknowledged: bool = False
    revision: int = 0
    """The newest acknowledged revision."""
    revisions_sent: int = 0
    offsets: dict[str, int] = field(default_factory=dict[str, int])
    """The newest acknowledged offset of each source."""
    soonest: dict[int, float] = field(default_factory=dict[int, float])
    """The earliest moment at which each version may run, by the decision of the version before."""
    asked_until: float = -1.0
    """The last moment at which a signal or record may have changed its due time."""
    asking: int = 0
    """Number of signals and records in flight that may change its due time."""
    decided_from: dict[int, float] = field(default_factory=dict[int, float])
    """For each version, the begin of the first call that could decide its due time."""
    calls: list[Call] = field(default_factory=list[Call])
    last: Call | None = None
    """The call that began last."""
    counts: Counter[int] = field(default_factory=Counter[int])
    decided: int = 0
    """Its version after the last completed task."""
    newest: int = -1
    """The newest version that was called; the task of that call, and so its decision, may be lost."""
    newest_revisions: int = 0
    may_be_over: bool = False
    """Whether its handler returned Done, or a stop was sent."""
    is_stopped: bool = False
    """Whether a stop was acknowledged, and nothing was sent since that starts the message again."""
    is_paused: bool | None = None
    """Whether it was paused or resumed by the last acknowledged verb; None while unknown."""


class Ledger:
    """The records of all messages; a broken promise ends the simulation."""

    def __init__(self, skew: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[None] = self._loop.create_future()
        self.messages: dict[tuple[str, str], Tracked] = {}
        self.steps: list[str] = []
        self.count = 0
        self.calls = 0
        self.repeated_by_faults = 0
        self._skew = 2 * skew + 0.002
        self._checks = StateChecks(self)

    @property
    def now(self) -> float:
        """The server's clock."""
        return EPOCH + self._loop.time()

    def of(self, kind: str, message_id: str) -> Tracked:
        """Give the record of a message."""
        found = self.messages.get((kind, message_id))
        if found is None:
            found = self.messages[kind, message_id] = Tracked()
        return found

    def note(self, step: str) -> None:
        """Record a step; the last STEPS_KEPT steps explain a failure."""
        self.count += 1
        self.steps.append(f"{self._loop.time():9.3f}  {step}")
        del self.steps[:-STEPS_KEPT]

    def violate(self, what: str) -> None:
        """Record that a promise was broken, and end the simulation."""
        if not self.broken.done():
            self.note(f"BROKEN: {what}")
            self.broken.set_exception(Violation(what))

    def begin_call(self, message: Message, worker: Worker) -> Call:
        """Record a handler's call, and check that it is allowed."""
        tracked = self.of(message.kind, message.id)
        name = f"{message.kind}:{message.id} version {message.version}"
        self.calls += 1
        tracked.counts[message.version] += 1
        key = name_version(message.kind, message.id, message.version)
        call = Call(key, message.version, tracked.counts[message.version], self.now, worker)
        unawaited = "" if call.is_current else " (nobody waits for it)"
        self.note(f"call {name} no. {call.number} on {worker.name}{unawaited}")
        if call.is_current:
            self._check_call(name, tracked, call)

        self._check_repeated(name, tracked, call)
        tracked.calls = [before for before in tracked.calls if before.is_open] + [call]
        tracked.last = call
        tracked.decided_from.setdefault(message.version + 1, self.now)

        return call

    def cut_off(self, call: Call, message: Message, timeout: float) -> None:
        """Record that a call was cancelled, which counts as a failure after `timeout` seconds."""
        seconds = self.now - call.began_at
        call.counts_as_failed = seconds > timeout - self._skew - 0.1
        self.note(f"end  {message.kind}:{message.id} version {call.version}: cut off after {seconds:.1f} s")

    def end_call(self, call: Call, message: Message, outcome: str, delay: float) -> None:
        """Record the outcome of a call; a message that comes back may do so after `delay` seconds at the earliest."""
        tracked = self.of(message.kind, message.id)
        self.note(f"end  {message.kind}:{message.id} version {call.version}: {outcome} {delay:.3f}")
        if outcome == "again":
            soonest = self.now + delay
            following = call.version + 1
            tracked.soonest[following] = min(soonest, tracked.soonest.get(following, soonest))
        if outcome == "done":
            tracked.may_be_over = True

        call.has_ended = True
        call.counts_as_failed = outcome not in ("again", "done")

    def note_failure(self, run: Run, exc: Exception) -> None:
        """Record that workflow code failed a task, which breaks a promise."""
        self.violate(f"a task of {run.workflow_id} ({run.run_id}) failed: {type(exc).__name__}: {exc}")

    def watch(self, run: Run, replica: Replica) -> None:
        """Check a run's state after a completed task."""
        what = [str(event.what) for event in run.history[-6:]]
        self.note(f"task {run.workflow_id} {run.run_id} done, at event {len(run.history)}: … {', '.join(what)}")
        self._checks.check(run, replica)

    def _check_call(self, name: str, tracked: Tracked, call: Call) -> None:
        if tracked.sent == 0:
            self.violate(f"{name} is called, and nobody has sent it")

        for other in tracked.calls:
            if other.is_open and other.is_current:
                self.violate(f"{name} is called while version {other.version} of it is at work")

        if tracked.decided > call.version and not tracked.may_be_over:
            self.violate(f"{name} is called when it is at version {tracked.decided}")

        revised = tracked.revisions_sent - tracked.newest_revisions
        if call.version > tracked.newest + 1 + revised and not tracked.may_be_over:
            self.violate(f"{name} is called, and version {tracked.newest + 1} never was")

        soonest = tracked.soonest.get(call.version)
        decided_from = tracked.decided_from.get(call.version, self.now)
        if (
            soonest is not None
            and tracked.asked_until < decided_from
            and not tracked.asking
            and not tracked.may_be_over
            and revised == 0
        ):
            early = soonest - self.now
            if early > self._skew:
                self.violate(f"{name} is called {early:.3f} s early")

        if call.version != tracked.newest:
            tracked.newest = call.version
            tracked.newest_revisions = tracked.revision

    def _check_repeated(self, name: str, tracked: Tracked, call: Call) -> None:
        """Check that a version is called again only after a failure or a fault."""
        before = tracked.last
        if before is None or before.version != call.version or tracked.may_be_over:
            return

        # a worker that was stopped goes on with tasks that another one was given meanwhile
        is_old_task = not call.is_current and call.worker.process.was_hit_since(self.now - EPOCH - AFTERMATH_SECONDS)
        if before.is_hit or is_old_task:
            self.repeated_by_faults += 1
        elif before.is_open or not before.counts_as_failed:
            self.violate(f"{name} is called again without a fault, after {self.now - before.began_at:.1f} s")
