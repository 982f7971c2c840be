"""Gates: something that many messages need and that can be closed for all, such as a host that asked for a pause."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

from shared.messages.message import clip_reason
from shared.messages.signal_reading import is_moment, is_text, read_object, require
from shared.messages.timespan import HORIZON, format_exact, format_seconds, parse_moment

GATES_WORKFLOW = "gates"  # workflow type that keeps the list of closed gates
GATES_MEMO = "gates"  # the memo field that holds the list; a memo can be read while no worker runs
# signals of that workflow
CLOSE = "close"
OPEN = "open"
GATES_MAX = 500  # most gates closed at once: every worker that uses gates reads all of them each second
GATE_MAX_BYTES = 300
SHORTEST = timedelta(seconds=1)  # that a person may close a gate for
IMPLICIT = KIND_GATE, LANE_GATE, TENANT_GATE = ("kind:", "lane:", "tenant:")
"""Begins of the names of implicit gates: every message needs those of its kind, its lane and its tenant."""
OBSERVED_WITHIN = timedelta(days=30)
"""Longest time until a worker learns of a closing; a closing of ten years less this time counts as permanent."""


class GateClosure(NamedTuple):
    """Since when a gate is closed and when it opens by itself, in seconds since the epoch."""

    closed_at: float
    opens_at: float
    reason: str = ""

    @classmethod
    def lasting(cls, delay: timedelta, reason: str = "", now: float | None = None) -> Self:
        """Close from now on, for at most ten years, the limit of every wait here."""
        now = time.time() if now is None else now
        return cls(round(now, 3), round(now + min(delay, HORIZON).total_seconds(), 3), reason)

    @classmethod
    def until(cls, opens_at: datetime | None, reason: str = "", now: datetime | None = None) -> Self:
        """Close from now on until a moment, or until it is opened if there is none.

        Raises ValueError with half a sentence for a moment that has passed, or is more than ten years away.
        """
        now = now or datetime.now(UTC)
        if opens_at is None:
            return cls.lasting(HORIZON, reason, now.timestamp())

        flaw = ""
        if opens_at < now:
            flaw = "has passed"
        elif opens_at - now < SHORTEST:
            flaw = "is less than a second away"
        elif opens_at - now > HORIZON:
            flaw = "is more than ten years away"

        if flaw:
            raise ValueError(f"{flaw}; correct it, or leave it out to close the gate until it is opened")
        return cls.lasting(opens_at - now, reason, now.timestamp())

    @property
    def lasts_for_good(self) -> bool:
        """Whether nobody gave an opening time: then it lasts the maximum, less what a worker took to learn of it."""
        return self.opens_at - self.closed_at >= (HORIZON - OBSERVED_WITHIN).total_seconds()

    def describe(self, gate: str, now: float) -> str:
        """Say which gate is closed, until when and why."""
        left = "until it is opened" if self.lasts_for_good else f"for another {format_seconds(self.opens_at - now)}"
        return f"gate {gate} is closed {left}: {self.reason}"

    def to_document(self, gate: str) -> dict[str, Any]:
        """Give it, and the gate that it closes, as an object for JSON."""
        opens_at = None if self.lasts_for_good else format_exact(self.opens_at)
        closed_at = format_exact(self.closed_at)
        return {"gate": gate, "closed_at": closed_at, "opens_at": opens_at, "reason": self.reason}


class CloseRequest(NamedTuple):
    """Content of the signal `close`; without `replaces` it counts only if the gate then opens later than before."""

    gate: str
    opens_at: float
    reason: str
    replaces: bool


def gates_workflow_id(prefix: str) -> str:
    """Name the workflow that keeps the gates; no kind holds a tilde, so it is no message."""
    return f"{prefix}~gates"


def check_gate(name: str) -> str:
    """Give the name of a gate if it is one; raises ValueError with the half of a sentence that says why not."""
    if not name or not name.isprintable() or len(name.encode(errors="replace")) > GATE_MAX_BYTES:
        raise ValueError(f"{name[:40]!r} names no gate; give 1 to {GATE_MAX_BYTES} bytes without control characters")
    return name


def read_closure(opens_at: str | None, reason: str) -> GateClosure:
    """Read until when a person closes a gate, as `GateClosure.until`; raises ValueError with half a sentence."""
    if opens_at is None:
        return GateClosure.until(None, reason)
    moment = parse_moment(opens_at[:60])
    try:
        return GateClosure.until(moment, reason)
    except ValueError as exc:
        raise ValueError(f"is {opens_at[:60]!r}, which {exc}") from exc


def implicit_gates(kind: str, lane: str, tenant: str) -> tuple[str, ...]:
    """Name the gates that a message needs without declaring them."""
    named = (KIND_GATE + kind, LANE_GATE + lane)
    return (*named, TENANT_GATE + tenant) if tenant else named


def pick_implicit(closings: Mapping[str, GateClosure]) -> dict[str, GateClosure]:
    """Keep only the implicit gates."""
    return {name: closing for name, closing in closings.items() if name.startswith(IMPLICIT)}


def read_close(arguments: Sequence[Any]) -> CloseRequest:
    """Read the signal `close`; raises ValueError with half a sentence."""
    given = read_object(arguments)
    opens_at = require("opens_at", given.get("opens_at"), is_moment, "seconds since the epoch")
    reason = require("reason", given.get("reason", ""), is_text, "a string")
    return CloseRequest(_read_gate(given), opens_at, clip_reason(reason), given.get("replaces") is True)


def read_open(arguments: Sequence[Any]) -> str:
    """Read the signal `open`, which names a gate; raises ValueError with half a sentence."""
    return _read_gate(read_object(arguments))


def _read_gate(given: Mapping[str, Any]) -> str:
    return check_gate(require("gate", given.get("gate"), is_text, "its name"))


def read_closings(wire: Mapping[str, Any]) -> dict[str, GateClosure]:
    """Read the closed gates in the memo."""
    return {name: GateClosure(*closing[: len(GateClosure._fields)]) for name, closing in wire.items()}


def pick_closed(closings: Mapping[str, GateClosure], now: float) -> dict[str, GateClosure]:
    """Keep only the gates that are still closed at `now`."""
    return {name: closing for name, closing in closings.items() if closing.opens_at > now}
