"""What a handler gets and returns: the message it is called with and its possible outcomes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.api.calendar import Calendar
from activities.api.payload import PayloadModel
from shared.errors import InvalidOutcome
from shared.keepers.gates import check_gate
from shared.lanes import LANES
from shared.messages.decision import TOLERANCE_SHARE
from shared.messages.json_value import encode_json, find_flaw
from shared.messages.message import HandlerCall, Outcome, clip_reason

CALENDAR_TOLERANCE = timedelta(minutes=1)  # who names a minute means it; a herd is spread over that minute


class _Unchanged:
    """Stands for "keep the payload as it is", because None is a payload too."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Any = _Unchanged()


@dataclass(frozen=True, kw_only=True)  # without slots, because `build_message` fills its dictionary
class Message:
    """One message as its handler sees it.

    `version` counts the cycles decided before this one, so the first call sees 0, and also revisions of a payload that
    has been tried. If its handler declares `keeps_age`, `cycles` counts the cycles alone, and `started_at` is when the
    message was first due; if not, they are the version and None. `trace` is the W3C Trace Context of
    the record that it came by, as headers to send along: empty, or `traceparent` and perhaps `tracestate`.
    """

    kind: str
    id: str
    version: int
    lane: str
    payload: Any
    priority: int = 3
    tenant: str = ""
    correlation_id: str = ""
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    cycles: int = 0
    started_at: datetime | None = None


def build_message(call: HandlerCall, model: PayloadModel | None = None) -> Message:
    """Make the message of a call, with its payload as the handler's model reads it; raises InvalidPayload.

    It is filled at once, in half of the time that the constructor of a frozen class takes.
    """
    message = object.__new__(Message)
    payload = call.payload if model is None else model.read(call.payload)
    started_at = datetime.fromtimestamp(call.started_at, UTC) if call.started_at else None
    vars(message).update(
        kind=call.kind,
        id=call.id,
        version=call.version,
        lane=call.lane,
        payload=payload,
        priority=call.priority,
        tenant=call.tenant,
        correlation_id=call.correlation_id,
        trace=call.trace,
        cycles=call.version - call.skipped,
        started_at=started_at,
    )
    return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Come back: after a delay counted from the decision, or at a moment, or at the next one of a calendar.

    `earliest` is the soonest that idle capacity may pull the message forward: a delay like `after`, or a moment
    like `at`; half of the delay when left out. `tolerance` is how much later than due is fine: 5 % of the delay,
    at most 15 minutes, when left out; the due time is spread inside it. `payload` replaces the present one,
    `lane` moves the message to another lane. A calendar says itself how early is fine, and without a tolerance the
    message is due within a minute. Delays are clamped to between one second and ten years, and the
    reason that `dormice show` prints says so.
    """

    after: timedelta | None = None
    at: datetime | Calendar | None = None
    earliest: timedelta | datetime | None = None
    tolerance: timedelta | None = None
    payload: Any = UNCHANGED
    reason: str = ""
    lane: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The message has nothing more to do; its workflow completes with `result` (small JSON)."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Reject:
    """This message can't succeed as it is: park it now, without further attempts, for a person to look at."""

    reason: str


class RetryAfter(Exception):
    """Raise to try this version again after `delay` without using up an attempt (a server said when).

    `gate` names a gate to close for all messages whose handlers declare it, for `gate_delay` or else `delay`: they wait
    until it opens, and their handlers are not called. The constructor raises InvalidOutcome, which parks the message,
    when a delay is no timedelta or `gate` is no valid name.
    """

    def __init__(
        self, delay: timedelta, reason: str = "", *, gate: str = "", gate_delay: timedelta | None = None
    ) -> None:
        _seconds("RetryAfter(delay", delay)
        _seconds("RetryAfter(gate_delay", gate_delay)
        super().__init__(clip_reason(reason) or f"asked to retry after {delay}")
        self.delay = delay
        self.gate = read_gate("RetryAfter", gate)
        self.gate_delay = delay if gate_delay is None else gate_delay


def read_gate(call: str, name: object) -> str:
    """Give a gate's name from a handler or its declaration, or "" for none; raises InvalidOutcome."""
    if name is None or name == "":
        return ""
    if not isinstance(name, str):
        raise InvalidOutcome(f"{call}(gate={_describe(name)}) is no string; write for example gate='host:example.org'")
    try:
        return check_gate(name)
    except ValueError as exc:
        raise InvalidOutcome(f"{call}(gate): {exc}") from exc


def to_outcome(
    returned: object, payload_max_bytes: int, model: PayloadModel | None = None, ran_at: float = 0.0
) -> Outcome:
    """Check what a handler returned and give its wire form; raises InvalidOutcome with a sentence if it is none.

    `ran_at` is when it began to run, in seconds since the epoch: a calendar goes on after that moment.
    """
    if isinstance(returned, Again):
        if isinstance(returned.at, Calendar):
            returned = _choose_moment(returned, returned.at, datetime.fromtimestamp(ran_at, UTC))
        return _to_again(returned, payload_max_bytes, model)
    if isinstance(returned, Done):
        _check_json("result", returned.result, payload_max_bytes)
        return Outcome("done", result=returned.result)
    if isinstance(returned, Reject):
        return Outcome("reject", reason=clip_reason(str(returned.reason)) or "rejected by its handler")

    raise InvalidOutcome(f"the handler returned {_describe(returned)}; return Again, Done or Reject")


def _choose_moment(again: Again, calendar: Calendar, ran_at: datetime) -> Again:
    if again.earliest is not None:
        raise InvalidOutcome("Again(earliest) does not go with a calendar; write daily(…, early=timedelta(hours=1))")
    moment = calendar.next(ran_at + calendar.early)
    default = min((moment - ran_at) * TOLERANCE_SHARE, CALENDAR_TOLERANCE)
    tolerance = default if again.tolerance is None else again.tolerance
    return replace(again, at=moment, earliest=moment - calendar.early, tolerance=tolerance)


def _to_again(again: Again, payload_max_bytes: int, model: PayloadModel | None) -> Outcome:
    after = again.after
    at = again.at
    earliest = again.earliest
    if (after is None) == (at is None):
        raise InvalidOutcome("Again needs exactly one of after and at")
    if again.lane is not None and again.lane not in tuple(LANES):
        raise InvalidOutcome(f"Again(lane={again.lane!r}) names no lane; use one of {', '.join(LANES)}")

    is_changed = again.payload is not UNCHANGED
    payload: Any = None

    if is_changed:
        payload = again.payload if model is None else model.write(again.payload)
        _check_json("payload", payload, payload_max_bytes)

    is_moment = isinstance(earliest, datetime)
    earliest_span = None if is_moment else _seconds("Again(earliest", earliest)
    earliest_moment = _epoch("earliest", earliest) if is_moment else None

    return Outcome(
        "again",
        clip_reason(str(again.reason)),
        after=_seconds("Again(after", after),
        at=_epoch("at", at),
        earliest=earliest_span,
        earliest_at=earliest_moment,
        tolerance=_seconds("Again(tolerance", again.tolerance),
        payload=payload,
        is_payload_changed=is_changed,
        lane=again.lane or "",
    )


def _seconds(call: str, value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, timedelta):
        raise InvalidOutcome(f"{call}={_describe(value)}) is no timedelta; write timedelta(hours=1)")
    return value.total_seconds()


def _epoch(name: str, value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidOutcome(f"Again({name}={_describe(value)}) is no datetime with a time zone; add tzinfo=UTC")
    return value.timestamp()


def _check_json(name: str, value: Any, max_bytes: int) -> None:
    if flaw := find_flaw(value):
        raise InvalidOutcome(f"the returned {name} {flaw}; return plain JSON")
    if (size := len(encode_json(value))) > max_bytes:
        raise InvalidOutcome(f"the returned {name} is {size} bytes of JSON, the limit is {max_bytes}")


def _describe(value: object) -> str:
    text = repr(value)
    ending = "…" if len(text) > 60 else ""
    return f"{type(value).__name__} {text[:60]}{ending}"
