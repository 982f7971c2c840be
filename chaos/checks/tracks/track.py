"""Tracks: check the ledger's entries of one message, one by one; findings have Jepsen's names."""

from chaos.checks.tracks.calls import Calls
from chaos.checks.tracks.due_times import REMEMBERED, DueTimes
from chaos.checks.tracks.findings import Findings
from chaos.checks.tracks.life import Life
from chaos.checks.tracks.marks import Marks
from chaos.ledger import Entry, What
from chaos.load.groups import GROUPS, TOLERANCE_SECONDS
from chaos.load.records import is_by_record
from chaos.load.steering import is_steered

BACKOFF_SECONDS = 6.0
"""Most seconds until a failed call is repeated: the handlers' longest backoff and its jitter."""

STOPPED_SECONDS = 30.0
"""Most seconds after a stop at which a call may still begin that was scheduled before the stop."""


class Track:
    """The state of one message after some entry."""

    def __init__(self, group: int, number: int) -> None:
        self.group = group
        self.number = number
        self.life = Life()
        self.marks = Marks()
        self.calls = Calls()
        self.due = 0.0
        """The latest moment at which it must run, in seconds since the epoch."""
        self.waits: list[int] = []
        """Faults at whose end it was due, and after which it has not run yet."""
        tolerance = TOLERANCE_SECONDS if GROUPS[group].packs else 0.0
        self._due_times = DueTimes(tolerance)

    @property
    def name(self) -> str:
        """The name of the message on the command line."""
        return f"{GROUPS[self.group].kind}:{self.number}"

    @property
    def is_on_its_way(self) -> bool:
        """Whether a record was sent that no call has seen yet: the bridge may not have delivered it."""
        return is_by_record(self.group) and self.marks.is_on_its_way

    @property
    def _is_moved(self) -> bool:
        """Whether others than its handler move its due time."""
        return is_by_record(self.group) or is_steered(self.number)

    def is_overdue(self, now: float, late: float) -> bool:
        """Whether it should have run by `late` seconds before now, has not, and no call of it may still be at work."""
        return self.is_waiting(now - late) and self.calls.open_until < now

    def is_waiting(self, now: float) -> bool:
        """Whether the message should have run by a moment but has not."""
        is_known = self.life.acknowledged_at > 0 or self.calls.newest >= 0
        return is_known and self.due <= now and not self.life.is_at_rest

    def take(self, entry: Entry, findings: Findings) -> Entry | None:
        """Apply one entry; if it is a call that comes again without a failure, give the call before it."""
        match entry.what:
            case What.BEGAN:
                before = self.calls.last
                is_again = self._begin(entry, findings)
                self.calls.begin(entry)
                return before if is_again else None
            case What.AGAIN | What.DONE | What.FAILED | What.CUT_OFF:
                self._finish(entry)
            case What.START_SENT:
                self.life.send(entry.at)
                self.due = entry.due
                self._due_times.not_before[0] = entry.due
            case What.REVISION_SENT:
                self._revise(entry)
            case What.START_ACKNOWLEDGED | What.REVISION_ACKNOWLEDGED:
                self.marks.acknowledge(entry.mark)
                self.life.acknowledge(entry.at)
            case What.STOP_ACKNOWLEDGED:
                self.life.acknowledge_stop(entry.at)
            case _:
                self._steer(entry)

        return None

    def _steer(self, entry: Entry) -> None:
        match entry.what:
            case What.STOP_SENT:
                self.life.is_stop_sent = True
            case What.PAUSE_SENT:
                self.life.is_paused = True
            case What.RESUME_ACKNOWLEDGED:
                self.life.is_paused = False
                self.due = max(self.due, entry.at)
            case _:
                self.due = max(self.due, entry.due)

    def _revise(self, entry: Entry) -> None:
        self.marks.send(entry.mark)
        self.calls.may_skip = True
        if not is_by_record(self.group):
            return

        # a record makes a message due at once, and restarts a stopped one
        self.due = max(self.due, entry.due)
        if self.life.is_stop_sent:
            self.life.send_again()
            self.due = entry.due

    def _begin(self, entry: Entry, findings: Findings) -> bool:
        self._check_wanted(entry, findings)
        if self.life.is_restarted and entry.version == 0:
            self.life.begin_anew()
            self.calls.newest = -1
            self._due_times.restart()

        is_again = entry.version <= self.calls.newest
        is_retry = entry.version == self.calls.failed
        self.calls.failed = -1

        if is_again:
            self._check_repeated(entry, findings, is_retry=is_retry)
        else:
            self._check_gap(entry, findings)
            self.calls.advance(entry.version)
            self._due_times.forget(entry.version)

        self._due_times.note_call(entry)
        self._check_early(entry, findings)
        self._check_mark(entry, findings)
        return is_again and not is_retry

    def _finish(self, entry: Entry) -> None:
        back_at = entry.at + entry.asked
        if entry.what == What.AGAIN:
            self._due_times.ask(entry.version + 1, back_at)

        self.calls.end(entry)
        if entry.version < self.calls.newest or entry.what == What.CUT_OFF:
            return

        if entry.what == What.FAILED:
            self.due = entry.at + BACKOFF_SECONDS
            self.calls.failed = entry.version
        elif entry.what == What.DONE:
            self.life.is_done = True
        else:
            self.due = max(self.due, back_at + self._due_times.tolerance)
            # if one version was called twice, the result of either call may count
            self._due_times.allow(entry.version + 1, back_at)

    def _check_wanted(self, entry: Entry, findings: Findings) -> None:
        life = self.life
        if not life.sent_at:
            findings.add("unexpected", f"{self.name}: was called at {entry.at:.3f} and never sent")
        elif life.stopped_at and entry.at > life.stopped_at + STOPPED_SECONDS:
            findings.add("unexpected", f"{self.name}: was called {entry.at - life.stopped_at:.0f} s after its stop")
        elif entry.mark > self.marks.sent:
            findings.add("unexpected", f"{self.name}: was called with mark {entry.mark}, which nobody sent")

    def _check_gap(self, entry: Entry, findings: Findings) -> None:
        newest = self.calls.newest
        if self.calls.is_gap(entry.version):
            findings.add("version gap", f"{self.name}: version {entry.version} was called after {newest}")

    def _check_repeated(self, entry: Entry, findings: Findings, *, is_retry: bool) -> None:
        """Check that a repeated call has the due time of the first one, and is not of an old version."""
        if self._is_moved:
            return

        due = self._due_times.find_moved(entry, is_retry=is_retry)
        if due is not None:
            sentence = f"{self.name}: version {entry.version} was due at {due:.3f}, {entry.due:.3f}"
            findings.add("duplicated", sentence)

        newest = self.calls.newest
        if entry.version < newest - REMEMBERED:
            findings.add("duplicated", f"{self.name}: version {entry.version} was called after {newest}")

    def _check_early(self, entry: Entry, findings: Findings) -> None:
        if self._is_moved or not self._due_times.is_early(entry):
            return
        early = self._due_times.find_earliest(entry) - entry.at
        findings.add("early", f"{self.name}: version {entry.version} was called {early:.3f} s early")

    def _check_mark(self, entry: Entry, findings: Findings) -> None:
        is_right = self.marks.see(entry.mark, entry.version)
        if not is_right and self.life.count == 1:
            findings.add("revision undone", f"{self.name}: mark {entry.mark} was called after {self.marks.seen}")
