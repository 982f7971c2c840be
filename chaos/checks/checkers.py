"""Checkers: one pass over the ledger and the faults that finds broken promises and measures recovery."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chaos.checks.tracks.findings import Findings
from chaos.checks.tracks.track import Track
from chaos.faults import EVERYTHING
from chaos.injection import Injected
from chaos.ledger import Entry, What
from chaos.load.groups import GROUPS
from shared.messages.placement import pack_index

LATE_SECONDS = 20.0
"""Most lateness of a message, beyond its tolerance, once the faults are over."""

REPEATED = "repeated without a fault"
WORKER_AFTERMATH_SECONDS = 5.0
"""How long after it goes on a worker that was stopped may still do, or answer, what nobody waits for any more."""

SERVER_AFTERMATH_SECONDS = 30.0
"""How long after a fault of the server its calls may still fail or be late: it reads its shards again, under load."""

SERVER_TARGETS = ("server", "postgres", EVERYTHING)

Message = tuple[int, int]


@dataclass(slots=True)
class Impact:
    """The calls that a fault hit, and the recovery of the messages that were due at its end."""

    injected: Injected
    in_flight: dict[str, int] = field(default_factory=dict[str, int])
    """Calls in flight when the fault began, by encoding and lane; if it hit workers, only calls of those workers."""
    calls_lost: int = 0
    batches_lost: int = 0
    due_at_end: int = 0
    not_back: int = 0
    recovered_at: float = 0.0
    is_overlapped: bool = False
    """Whether another fault began before all messages were back."""

    @property
    def recovery_seconds(self) -> float | None:
        """Seconds from the fault's end until every message that was due then has run; None while one has not."""
        if self.not_back:
            return None
        return max(0.0, self.recovered_at - self.injected.ended_at)


class Examination:
    """Reads entries in order and collects what they prove."""

    def __init__(self, faults: Sequence[Injected]) -> None:
        self.impacts = [Impact(fault) for fault in sorted(faults, key=lambda fault: fault.began_at)]
        self.findings = Findings()
        self.tracks: dict[Message, Track] = {}
        self.cycles = self.calls = self.failed = self.repeated = 0
        self.cycles_by_group: defaultdict[str, int] = defaultdict(int)
        self.lateness = array("f")
        self._open: defaultdict[int, set[Message]] = defaultdict(set)
        """Calls in flight, by process."""
        ends = [(impact.injected.ended_at, 1, number) for number, impact in enumerate(self.impacts)]
        begins = [(impact.injected.began_at, 0, number) for number, impact in enumerate(self.impacts)]
        self._moments = sorted(ends + begins, reverse=True)

    def read(self, entries: Iterable[Entry]) -> "Examination":
        """Read all entries, and give this object."""
        for entry in entries:
            while self._moments and self._moments[-1][0] <= entry.at:
                self._pass_moment()
            self._take(entry)
        while self._moments:
            self._pass_moment()
        return self

    def _take(self, entry: Entry) -> None:
        key = (entry.group, entry.number)
        track = self.tracks.get(key)
        if track is None:
            track = self.tracks[key] = Track(*key)

        before = track.take(entry, self.findings)
        if before is not None:
            self.repeated += 1
            self._check_repeated(track, before, entry)

        if entry.what == What.BEGAN:
            self.calls += 1
            self._open[entry.pid].add(key)
            self.lateness.append(max(0.0, entry.at - entry.due))
        elif entry.what == What.CUT_OFF:
            self._open[entry.pid].discard(key)
        elif entry.what in (What.AGAIN, What.DONE, What.FAILED):
            self._end_call(entry, key, track)
        elif entry.what in (What.STOP_SENT, What.PAUSE_SENT):
            self._release(track)  # a stopped or paused message need not come back

    def _check_repeated(self, track: Track, before: Entry, again: Entry) -> None:
        """Check that a fault has hit the call before: its worker, or the server while somebody waited for it."""
        if before.version != again.version or track.life.may_be_anew:
            return
        if not any(_may_have_hit(impact.injected, before, again) for impact in self.impacts):
            seconds = again.at - before.at
            sentence = f"{track.name}: version {again.version} was called at {before.at:.3f} and {seconds:.1f} s later"
            self.findings.add(REPEATED, sentence)

    def _end_call(self, entry: Entry, key: Message, track: Track) -> None:
        self._open[entry.pid].discard(key)
        if entry.what == What.FAILED:
            self.failed += 1
        else:
            self.cycles += 1
            self.cycles_by_group[GROUPS[entry.group].name] += 1
        for number in track.waits:
            self.impacts[number].recovered_at = max(self.impacts[number].recovered_at, entry.at)
        self._release(track)

    def _release(self, track: Track) -> None:
        for number in track.waits:
            self.impacts[number].not_back -= 1
        track.waits.clear()

    def _pass_moment(self) -> None:
        at, is_end, number = self._moments.pop()
        impact = self.impacts[number]

        if not is_end:
            for other in self.impacts[:number]:
                other.is_overlapped = other.is_overlapped or other.not_back > 0
            self._note_hit(impact)
            return

        for track in self.tracks.values():
            if track.is_waiting(at) and not track.is_on_its_way:
                track.waits.append(number)
                impact.due_at_end += 1

        impact.not_back = impact.due_at_end

    def _note_hit(self, impact: Impact) -> None:
        fault = impact.injected
        own = [pid for pid in (*fault.killed, *fault.stopped) if self._open.get(pid)]
        for pid in own or (() if "worker" in fault.target else list(self._open)):
            for group, _ in self._open[pid]:
                name = GROUPS[group].name
                impact.in_flight[name] = impact.in_flight.get(name, 0) + 1

        packs: set[tuple[int, int]] = set()
        for pid in fault.killed:
            lost = self._open.pop(pid, set[Message]())
            impact.calls_lost += len(lost)
            packs |= {
                (group, pack_index(str(number), GROUPS[group].packs)) for group, number in lost if GROUPS[group].packs
            }

        impact.batches_lost = len(packs)

    def find_overdue(self, now: float) -> list[Track]:
        """Give the messages that have not run although they are late by more than LATE_SECONDS."""
        return [track for track in self.tracks.values() if track.is_overdue(now, LATE_SECONDS)]

    def check_end(self, now: float) -> list[Track]:
        """Count what is certain only at the end: lost revisions, and messages that never ran or stand still.

        Gives those messages.
        """
        overdue = self.find_overdue(now)
        for track in overdue:
            if track.calls.newest < 0:
                self.findings.add("lost", f"{track.name}: was acknowledged and never called")
            else:
                late = now - track.due
                self.findings.add("standing still", f"{track.name}: version {track.calls.newest}, due {late:.0f} s ago")

        known = {track.name for track in overdue}
        for track in self.tracks.values():
            marks = track.marks
            is_alive = not (track.life.is_at_rest or track.name in known)
            if is_alive and marks.acknowledged > marks.seen:
                lost = f"{track.name}: mark {marks.acknowledged} was acknowledged, {marks.seen} called last"
                self.findings.add("revision lost", lost)

        return overdue

    @property
    def acknowledged(self) -> int:
        """The number of messages whose start was acknowledged."""
        return sum(track.life.acknowledged_at > 0 for track in self.tracks.values())


def _may_have_hit(fault: Injected, before: Entry, again: Entry) -> bool:
    """Return whether a fault may be the reason why a version was called again."""
    if before.pid in fault.killed or before.pid in fault.drained:
        return fault.began_at <= again.at
    over_at = fault.ended_at + WORKER_AFTERMATH_SECONDS
    if before.pid in fault.stopped:
        return fault.began_at <= again.at and over_at >= before.at
    if again.pid in fault.stopped:  # it goes on with what another worker was given meanwhile
        return fault.began_at <= again.at <= over_at

    is_of_server = fault.target in SERVER_TARGETS
    return is_of_server and fault.began_at <= again.at and fault.ended_at + SERVER_AFTERMATH_SECONDS >= before.at
