"""A ledger of handler calls, written by the handlers: what was called, when, and the delay that it asked for.

It is independent of workflows and counters, so it can prove the promises: nothing is early, lost or done twice.
Many processes append to one file; a line is one `write` of less than a page, which the kernel does not split.
"""

import functools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activities import Again, Context, Done, Message, Reject

if TYPE_CHECKING:
    from activities.api.handler import HandlerFunction

LEDGER_VARIABLE = "LEDGER_FILE"  # environment variable that names the file, because handlers run in other processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line: a call began or ended. Times are seconds since the epoch."""

    what: str  # either "began", or how the call ended: "again", "done", "reject", or an exception's name
    id: str
    version: int
    attempt: int
    at: float
    due_at: float
    lane: str
    asked: float | None = None  # delay that the handler asked for, in seconds after `at`, if it ended with "again"
    note: str = ""


class Ledger:
    """One file of entries."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, entry: Entry) -> None:
        """Write one line."""
        line = json.dumps(asdict(entry), separators=(",", ":")) + "\n"
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())

    def read(self, start: int = 0) -> tuple[list[Entry], int]:
        """Give the entries from a byte offset on, and the offset for the next call; skips a half-written line."""
        if not self._path.exists():
            return [], start
        with self._path.open("rb") as file:
            file.seek(start)
            whole, _, _ = file.read().rpartition(b"\n")
        lines = whole.splitlines()
        return [Entry(**json.loads(line)) for line in lines], start + len(whole) + bool(lines)

    @property
    def entries(self) -> list[Entry]:
        """All entries so far."""
        return self.read()[0]


def ledgered(function: "HandlerFunction") -> "HandlerFunction":
    """Make a handler function write the ledger that the environment names."""

    @functools.wraps(function)
    async def keep(message: Message, ctx: Context) -> Again | Done | Reject:
        ledger = Ledger(Path(os.environ[LEDGER_VARIABLE]))
        call: dict[str, Any] = {
            "id": message.id,
            "version": message.version,
            "attempt": ctx.attempt,
            "due_at": ctx.due_at.timestamp(),
            "lane": message.lane,
        }
        ledger.append(Entry(what="began", at=time.time(), **call))

        try:
            outcome = await function(message, ctx)
        except BaseException as exc:
            # a cut-off is noted like a failure; the worker gets what was raised
            ledger.append(Entry(what=type(exc).__name__, at=time.time(), **call))
            raise

        what = type(outcome).__name__.lower()
        note = getattr(outcome, "reason", "")
        asked = outcome.after.total_seconds() if isinstance(outcome, Again) and outcome.after is not None else None
        ledger.append(Entry(what=what, at=time.time(), asked=asked, note=note, **call))

        return outcome

    return keep


def quantile(values: Iterable[float], share: float) -> float:
    """Give the value below which a share of them lies (0.5 is the median); 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What a ledger proves; `lateness` holds the seconds of each call that began at or after its due time."""

    messages: int
    cycles: int
    early: int
    lost: int
    duplicated: int
    gaps: int
    lateness: list[float]


def audit(
    entries: list[Entry],
    *,
    expected: Mapping[str, float],
    now: float,
    grace: float,
    is_left_out: Callable[[str], bool] = lambda _: False,
) -> Audit:
    """Check a ledger against the promises.

    `expected` gives each message's first due time. A call is *early* if it began before the moment that the call
    before it had asked for. A message is *lost* if it never began, or if it is overdue by more than `grace` seconds. A
    version is *duplicated* if it was decided twice, or began again while it was running. A *gap* is a missing version
    below a later one. `is_left_out` selects messages that are never lost: ended, parked or steered by hand.
    """
    by_id: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_id[entry.id].append(entry)

    histories = [_History(by_id.get(key, []), due) for key, due in expected.items()]
    overdue = [h for key, h in zip(expected, histories, strict=True) if not is_left_out(key) and h.is_lost(now, grace)]
    return Audit(
        messages=len(expected),
        cycles=sum(len(h.decided) for h in histories),
        early=sum(h.count_early() for h in histories),
        lost=len(overdue),
        duplicated=sum(h.count_duplicated() for h in histories),
        gaps=sum(h.count_gaps() for h in histories),
        lateness=[late for e in entries if e.what == "began" and (late := e.at - e.due_at) >= 0],
    )


class _History:
    def __init__(self, entries: list[Entry], first_due: float) -> None:
        self._entries = entries
        self._first_due = first_due
        self.decided = [e for e in entries if e.what in ("again", "done")]

    def count_early(self) -> int:
        due = self._first_due
        early = 0
        for entry in self._entries:
            if entry.what == "began":
                early += entry.at < due
            elif entry.what == "again" and entry.asked is not None:
                due = entry.at + entry.asked
        return early

    def is_lost(self, now: float, grace: float) -> bool:
        if not self._entries:
            return now > self._first_due + grace
        last = self._entries[-1]
        if last.what == "done":
            return False
        return last.what == "again" and last.asked is not None and now > last.at + last.asked + grace

    def count_duplicated(self) -> int:
        """Count versions decided again, and calls that began while the same attempt ran on in a living process."""
        repeated = len(self.decided) - len({entry.version for entry in self.decided})
        running: set[tuple[int, int]] = set()
        for entry in self._entries:
            key = (entry.version, entry.attempt)
            if entry.what == "began":
                repeated += key in running
                running.add(key)
            else:
                running.discard(key)

        return repeated

    def count_gaps(self) -> int:
        versions = {e.version for e in self._entries}
        return max(versions) + 1 - len(versions) if versions else 0
