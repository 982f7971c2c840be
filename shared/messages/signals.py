"""The signals that steer a message: one dataclass argument each, idempotent, usable straight from SDK or Web UI.

Moments are RFC 3339 strings on the wire, so that a person can type them into the Web UI's signal form.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Self

from shared.errors import GiveUp
from shared.messages.timespan import ceil_ms, read_with_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What every signal may have: an idempotency key, with which it takes effect once; empty for none."""

    idempotency_key: str = ""


@dataclass(frozen=True, slots=True)
class RunNow(Request):
    """Run as soon as a worker is free; replays a parked message with fresh attempts."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reschedule(Request):
    """Be due at this moment instead; wakes a parked message up for it."""

    due_at: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reprioritize(Request):
    """Take another priority, 1 (first) to 5 (last), and optionally another due moment."""

    priority: int
    due_at: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Revise(Request):
    """Replace the payload, and optionally the lane, the due moment, the priority and the expiry.

    `source` ("topic@id/partition") and `offset` name the record that the revision comes from. It is ignored unless it
    is newer than the last applied one of its source, so a redelivery does nothing. `trace` is its W3C Trace Context.
    It changes nothing either if the message is at another version than `if_version`, or not due before `if_due_before`.
    """

    payload: Any
    source: str = ""
    offset: int = -1
    lane: str = ""
    due_at: str | None = None
    reason: str = ""
    priority: int | None = None
    trace: Mapping[str, str] | None = None
    if_version: int | None = None
    if_due_before: str | None = None
    expires_at: str | None = None

    @classmethod
    def of_record(
        cls,
        source: str,
        offset: int,
        payload: Any,
        *,
        lane: str,
        due_at: datetime,
        priority: int,
        expires_at: datetime | None,
        trace: Mapping[str, str],
    ) -> Self:
        """Give what a record asks of a message that is alive: to be all that the record says."""
        written = None if expires_at is None else expires_at.isoformat()
        return cls(
            payload,
            source,
            offset,
            lane,
            due_at.isoformat(),
            priority=priority,
            trace=dict(trace),
            expires_at=written,
        )


@dataclass(frozen=True, slots=True)
class Pause(Request):
    """Hold: nothing runs until `Resume`, other signals still change the message."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resume(Request):
    """End a pause; a due time that has passed meanwhile counts as due now."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stop(Request):
    """End the message for good, once no handler is at work; `source` and `offset` are as with `Revise`."""

    reason: str = ""
    source: str = ""
    offset: int = -1

    @classmethod
    def of_record(cls, source: str, offset: int) -> Self:
        """Give what a null record asks of a message that is alive."""
        return cls(TOMBSTONE, source, offset)


@dataclass(frozen=True, slots=True)
class PullForward(Request):
    """Run ahead of time because there is capacity, if the message is still due at `expected_due_at`."""

    expected_due_at: str
    reason: str = "pulled forward by idle capacity"


@dataclass(frozen=True, slots=True)
class PullMany:
    """`PullForward` for a pack: run up to `count` messages ahead of time, the earliest due first, up to `until`.

    `at`, when it was sent, decides what may run early; both times are seconds since the epoch. A second signal with the
    same `token` does nothing.
    """

    count: int
    at: float
    until: float
    token: str

    def of(self, due: int) -> PullForward:
        """Give the signal for one of the messages, which is due at `due` (milliseconds since the epoch)."""
        return PullForward(datetime.fromtimestamp(due / 1000, UTC).isoformat())


@dataclass(frozen=True, slots=True)
class UnreadableSignal:
    """A signal that could not be read: its name, and the problem as half a sentence. It changes nothing."""

    name: str
    problem: str


TOMBSTONE = "its record was deleted"  # reason of a stop that a null record causes
FINGERPRINT_BYTES = 4  # a message keeps one beside each of its keys, and a pack has a thousand messages
REQUEST = "request#"  # begins the source of a request with an idempotency key; no topic may have such a name

Signal = RunNow | Reschedule | Reprioritize | Revise | Pause | Resume | Stop | PullForward

VERBS: dict[str, type[Signal]] = {
    "run_now": RunNow,
    "reschedule": Reschedule,
    "reprioritize": Reprioritize,
    "revise": Revise,
    "pause": Pause,
    "resume": Resume,
    "stop": Stop,
    "pull_forward": PullForward,
}
"""Verb, which is also the name on the workflow → its signal."""

SIGNAL_NAMES: dict[type[Any], str] = {kind: name for name, kind in VERBS.items()}
"""Signal → its verb."""

MOMENTS = ("due_at", "expected_due_at", "if_due_before", "expires_at")
"""Fields of signals that hold a moment."""

RECORDS_ONLY = ("source", "offset", "trace")
"""Fields of signals that only records of a source may set."""


def list_fields(kind: type[Signal]) -> list[str]:
    """Name the fields of a signal that a caller may set."""
    return [field.name for field in fields(kind) if field.name not in RECORDS_ONLY]


def make_signal(verb: str, **given: Any) -> Signal:
    """Make the signal of a verb from values of Python; None leaves out what the signal may lack.

    Raises GiveUp for a moment without a time zone.
    """
    kind = VERBS[verb]
    optional = {field.name for field in fields(kind) if field.default is not MISSING}
    # None is a value only of a field that must be there: a payload may be null
    values: dict[str, Any] = {n: v for n, v in given.items() if v is not None or n not in optional}

    for name in MOMENTS:
        if name in values:
            values[name] = write_moment(values[name])

    return kind(**values)


def name_request(key: str) -> str:
    """Give the source that stands for an idempotency key; its offset is the fingerprint of the request's body."""
    return REQUEST + hashlib.blake2b(key.encode(), digest_size=6).hexdigest()


def find_fingerprint(signal: Signal) -> int:
    """Give a number above 0 that stands for a signal, its idempotency key aside."""
    fields = asdict(signal) | {"idempotency_key": ""}
    text = json.dumps([type(signal).__name__, fields], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=FINGERPRINT_BYTES).digest()) or 1


def write_steering(ids: Sequence[str], signal: Signal, token: str) -> dict[str, Any]:
    """Write a signal for some messages of a pack; the pack's receipt for `token` lists those it did not have."""
    return {"ids": list(ids), "token": token} | asdict(signal)


def write_moment(moment: datetime) -> str:
    """Write a moment as a signal has it; raises GiveUp when it has no time zone."""
    if moment.tzinfo is None:
        raise GiveUp(f"due_at: {moment.isoformat()} has no time zone; add one, for example UTC")
    return moment.astimezone(UTC).isoformat()


def to_epoch(moment: str) -> float:
    """Read a signal's moment, rounded up to the millisecond; raises ValueError when it is none or has no offset."""
    return ceil_ms(read_with_offset(moment).timestamp()) / 1000


def moment_of(signal: Signal) -> float | None:
    """Give the due time that a signal names (seconds since the epoch), None for none; raises as `to_epoch` does."""
    named = signal.due_at if isinstance(signal, Reschedule | Reprioritize | Revise) else None
    return None if named is None else to_epoch(named)
