"""Tracks: check the ledger's entries of one message, one by one; findings have Jepsen's names."""

from dataclasses import dataclass, field

from chaos.groups import GROUPS, TIMEOUT_SECONDS, TOLERANCE_SECONDS
from chaos.ledger import Entry, What
from chaos.records import is_by_record
from chaos.steering import is_steered

CLOCK_SECONDS = 0.002
"""Rounding error: moments are stored in milliseconds, and the ledger stores a delay with seven digits."""

CALL_SLACK_SECONDS = 5.0
"""Most seconds that a call may last beyond its timeout, on a busy machine."""

BACKOFF_SECONDS = 6.0
"""Most seconds until a failed call is repeated: the handlers' longest backoff and its jitter."""

STOPPED_SECONDS = 30.0
"""Most seconds after a stop at which a call may still begin that was scheduled before the stop."""

REMEMBERED = 8
"""Number of newest versions whose calls may be repeated: a worker stopped for longer has lost its task long ago."""


@dataclass(slots=True)
class Findings:
    """Broken promises: a count by Jepsen's name, and a sentence for each of the first 20 of a name."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    examples: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, word: str, sentence: str) -> None:
        """Count a finding."""
        self.counts[word] = self.counts.get(word, 0) + 1
        if len(found := self.examples.setdefault(word, [])) < 20:
            found.append(sentence)


@dataclass(slots=True)
class Track:
    """The state of one message after some entry; moments are seconds since the epoch, 0 for none."""

    group: int
    number: int
    sent_at: float = 0.0
    acknowledged_at: float = 0.0
    stop_sent: bool = False
    stopped_at: float = 0.0
    """When its stop was acknowledged."""
    is_done: bool = False
    is_paused: bool = False
    newest: int = -1
    """The highest version that was called."""
    failed: int = -1
    """The version whose last call failed, so that its next call is a retry."""
    last: Entry | None = None
    """The begin of its last call."""
    open_until: float = 0.0
    """When a call must have ended that has begun and not ended yet."""
    lives: int = 1
    """How often it was started: after a tombstone, a record starts it again at version 0."""
    is_restarted: bool = False
    """Whether it was stopped and sent again, and version 0 was not called since."""
    may_skip: bool = False
    """Whether it was revised since the newest call: the revision may have replaced a version before its call."""
    due: float = 0.0
    """The latest moment at which it must run."""
    not_before: dict[int, float] = field(default_factory=dict[int, float])
    """The earliest moment at which each version may be called."""
    dues: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict[tuple[int, int], tuple[float, float]])
    """Due time of each (version, attempt) that was called, and when it was called first."""
    back_at: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    """The moments for which calls of the version before asked, by version."""
    mark_sent: int = 0
    mark_acknowledged: int = 0
    mark_seen: int = 0
    mark_version: int = -1
    """The version that was first called with `mark_seen`."""
    waits: list[int] = field(default_factory=list[int])
    """Faults at whose end it was due, and after which it has not run yet."""

    @property
    def name(self) -> str:
        """The name of the message on the command line."""
        return f"{GROUPS[self.group].kind}:{self.number}"

    def is_overdue(self, now: float, late: float) -> bool:
        """Whether it should have run by `late` seconds before now, has not, and no call of it may still be at work."""
        return self.is_waiting(now - late) and self.open_until < now

    def is_waiting(self, now: float) -> bool:
        """Whether the message should have run by a moment but has not."""
        is_known = self.acknowledged_at > 0 or self.newest >= 0
        return is_known and self.due <= now and not (self.is_done or self.stop_sent or self.is_paused)

    @property
    def may_be_anew(self) -> bool:
        """Whether a record may have started it again, with versions from 0 on."""
        return self.lives > 1 or self.is_restarted or self.stop_sent

    @property
    def is_on_its_way(self) -> bool:
        """Whether a record was sent that no call has seen yet: the bridge may not have delivered it."""
        return is_by_record(self.group) and self.mark_sent > self.mark_seen

    def take(self, entry: Entry, findings: Findings) -> Entry | None:
        """Apply one entry; if it is a call that comes again without a failure, give the call before it."""
        match entry.what:
            case What.BEGAN:
                before = self.last
                is_again = self._begin(entry, findings)
                self.last = entry
                self.open_until = entry.at + TIMEOUT_SECONDS + CALL_SLACK_SECONDS
                return before if is_again else None
            case What.AGAIN | What.DONE | What.FAILED | What.CUT_OFF:
                self._finish(entry)
            case What.START_SENT:
                self.sent_at = self.sent_at or entry.at
                self.due = entry.due
                self.not_before[0] = entry.due
            case What.REVISION_SENT:
                self._revise(entry)
            case What.START_ACKNOWLEDGED | What.REVISION_ACKNOWLEDGED | What.STOP_ACKNOWLEDGED:
                self._acknowledge(entry)
            case _:
                self._steer(entry)

        return None

    def _acknowledge(self, entry: Entry) -> None:
        if entry.what == What.STOP_ACKNOWLEDGED:
            self.stopped_at = entry.at if self.stop_sent else 0.0
            return
        self.mark_acknowledged = max(self.mark_acknowledged, entry.mark)
        self.acknowledged_at = self.acknowledged_at or entry.at  # a revision also starts a stopped message

    def _steer(self, entry: Entry) -> None:
        match entry.what:
            case What.STOP_SENT:
                self.stop_sent = True
            case What.PAUSE_SENT:
                self.is_paused = True
            case What.RESUME_ACKNOWLEDGED:
                self.is_paused = False
                self.due = max(self.due, entry.at)
            case _:
                self.due = max(self.due, entry.due)

    def _revise(self, entry: Entry) -> None:
        self.mark_sent = max(self.mark_sent, entry.mark)
        self.may_skip = True
        if is_by_record(self.group):  # a record makes a message due at once, and restarts a stopped one
            self.due = max(self.due, entry.due)
            if self.stop_sent:
                self.stop_sent = False
                self.stopped_at = 0.0
                self.is_restarted = True
                self.due = entry.due

    def _begin(self, entry: Entry, findings: Findings) -> bool:
        self._check_wanted(entry, findings)
        if self.is_restarted and entry.version == 0:
            self.newest = -1
            self.is_restarted = False
            self.lives = self.lives + 1
            self.dues.clear()
            self.back_at.clear()

        is_again = entry.version <= self.newest
        is_retry = entry.version == self.failed

        self.failed = -1
        if not is_again and entry.version > self.newest + 1 and not self.may_skip:
            findings.add("version gap", f"{self.name}: version {entry.version} was called after {self.newest}")

        if is_again:
            self._check_repeated(entry, findings, is_retry=is_retry)
        else:
            self.newest = entry.version
            self.may_skip = False
            if len(self.dues) > 2 * REMEMBERED:
                self._forget()

        self.dues.setdefault((entry.version, entry.attempt), (entry.due, entry.at))
        self._check_early(entry, findings)
        self._check_mark(entry, findings)
        return is_again and not is_retry

    def _check_wanted(self, entry: Entry, findings: Findings) -> None:
        if not self.sent_at:
            findings.add("unexpected", f"{self.name}: was called at {entry.at:.3f} and never sent")
        elif self.stopped_at and entry.at > self.stopped_at + STOPPED_SECONDS:
            findings.add("unexpected", f"{self.name}: was called {entry.at - self.stopped_at:.0f} s after its stop")
        elif entry.mark > self.mark_sent:
            findings.add("unexpected", f"{self.name}: was called with mark {entry.mark}, which nobody sent")

    def _check_repeated(self, entry: Entry, findings: Findings, *, is_retry: bool) -> None:
        """Check that a repeated call has the due time of the first one, and is not of an old version.

        A message of a lost batch is due again when the loss is noticed: after its first call began, and at no moment
        for which a call of the version before has asked. One whose call has failed is due anew in any case, and a batch
        that was lost before that has used up the number of an attempt, which then comes twice.
        """
        if is_by_record(self.group) or is_steered(self.number):
            return

        before = self.dues.get((entry.version, entry.attempt))
        if (
            before is not None
            and abs(before[0] - entry.due) > CLOCK_SECONDS
            and not self._is_due_anew(entry, before[1], is_retry=is_retry)
        ):
            sentence = f"{self.name}: version {entry.version} was due at {before[0]:.3f}, {entry.due:.3f}"
            findings.add("duplicated", sentence)

        if entry.version < self.newest - REMEMBERED:
            findings.add("duplicated", f"{self.name}: version {entry.version} was called after {self.newest}")

    def _is_due_anew(self, entry: Entry, first_call_at: float, *, is_retry: bool) -> bool:
        if is_retry:
            return entry.due >= first_call_at

        slack = CLOCK_SECONDS + (TOLERANCE_SECONDS if GROUPS[self.group].packs else 0.0)
        is_asked_for = any(
            back_at - CLOCK_SECONDS <= entry.due <= back_at + slack for back_at in self.back_at.get(entry.version, ())
        )
        return entry.due >= first_call_at and not is_asked_for

    def _check_early(self, entry: Entry, findings: Findings) -> None:
        if is_by_record(self.group) or is_steered(self.number):
            return
        wanted = max(self.not_before.get(entry.version, 0.0), entry.due)
        if entry.at < wanted - CLOCK_SECONDS:
            findings.add("early", f"{self.name}: version {entry.version} was called {wanted - entry.at:.3f} s early")

    def _check_mark(self, entry: Entry, findings: Findings) -> None:
        if entry.mark > self.mark_seen:
            self.mark_seen = entry.mark
            self.mark_version = entry.version
        elif entry.mark < self.mark_seen and entry.version > self.mark_version >= 0 and self.lives == 1:
            findings.add("revision undone", f"{self.name}: mark {entry.mark} was called after {self.mark_seen}")

    def _finish(self, entry: Entry) -> None:
        back_at = entry.at + entry.asked
        if entry.what == What.AGAIN:
            self.back_at.setdefault(entry.version + 1, []).append(back_at)
        if self.last is not None and self.last.pid == entry.pid:
            self.open_until = 0.0
        if entry.version < self.newest or entry.what == What.CUT_OFF:
            return

        if entry.what == What.FAILED:
            self.due = entry.at + BACKOFF_SECONDS
            self.failed = entry.version
        elif entry.what == What.DONE:
            self.is_done = True
        else:
            self.due = max(self.due, back_at + (TOLERANCE_SECONDS if GROUPS[self.group].packs else 0.0))
            # if one version was called twice, the result of either call may count
            known = self.not_before.get(entry.version + 1, back_at)
            self.not_before[entry.version + 1] = min(known, back_at)

    def _forget(self) -> None:
        oldest = self.newest - REMEMBERED
        self.dues = {key: due for key, due in self.dues.items() if key[0] >= oldest}
        self.not_before = {version: at for version, at in self.not_before.items() if version >= oldest}
        self.back_at = {version: moments for version, moments in self.back_at.items() if version >= oldest}
