"""The message as its workflow carries it: a plain frozen state, its outcomes, and their wire forms.

Times are seconds since the epoch (floats rounded to the millisecond), durations are seconds. Wire forms leave
out what has its default value and ignore keys they do not know, so older and newer code read each other's state.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from shared.messages.placement import workflow_id

NO_TURN: Sequence[Any] = ()  # a `Turn`, or its wire form
NO_TRACE: Mapping[str, str] = MappingProxyType({})
DECISIONS_KEPT = 5  # how many of its last decisions a message remembers for `explain`
PAYLOAD_MAX = "payload_max_bytes"  # key in a message workflow's input: the size limit for a revision's payload
REASON_MAX = 300  # characters of a reason that are kept
ENDS = ("done", "stopped", "expired")
"""The phases of messages that have ended."""


def _known(cls: "type[_Record]", wire: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in wire.items() if key in cls._fields}


def _dump(record: "_Record") -> dict[str, Any]:
    fields = zip(record._fields, record, strict=True)
    defaults = record._field_defaults
    return {name: value for name, value in fields if name not in defaults or value != defaults[name]}


Verdict = Literal["again", "done", "reject", "failed", "retry_after", "handed_back", "gated"]
"""The result of a cycle. `failed` counts as an attempt, the last three do not; `gated`: no handler was called."""


class Turn(NamedTuple):
    """What a message holds of a limit while it waits: a slot that it has reserved, or its position in line."""

    moment: float
    is_slot: bool
    key: str  # the beginning of the key's digest: with another payload, or limit, the message may have another key

    @classmethod
    def load(cls, wire: Sequence[Any]) -> "Turn":
        """Read a wire form."""
        return cls(*wire[: len(cls._fields)])


class Outcome(NamedTuple):
    """The result of one cycle, as it travels from the dispatching activity to the workflow.

    `after`, `earliest`, `tolerance`, `backoff` and `backoff_max` are seconds; `at` and `earliest_at` are moments. The
    five fields from `max_attempts` on, and `payload_max_bytes`, are settings of the worker that ran the cycle: as part
    of the history, a changed setting takes effect with the next cycle and never breaks a replay.
    """

    verdict: Verdict
    reason: str = ""
    after: float | None = None
    at: float | None = None
    earliest: float | None = None
    earliest_at: float | None = None
    tolerance: float | None = None
    payload: Any = None
    is_payload_changed: bool = False
    lane: str = ""
    result: Any = None
    max_attempts: int = 5  # 0: unknown when the outcome was made; the worker refuses the next call when all are used up
    backoff: float = 2.0
    backoff_max: float = 3600.0
    cycles_per_run: int = 5
    index_after: float = 60.0
    ended_at: float = 0.0  # when the cycle ended, by its worker's clock; 0 = unknown
    traced: str = ""  # `traceparent` of the cycle's span; empty if it was not sampled
    payload_max_bytes: int = 0  # the size limit for a revision's payload; 0 = an older worker did not send it
    turn: Sequence[Any] = NO_TURN  # of `gated`: what the message now holds of a limit; empty at a gate
    is_expired: bool = False  # with `done`, which is what older code takes it for: its time was over
    started_at: float = 0.0  # when the message was first due, if its handler keeps that; 0 = known already, or not kept

    dump = _dump

    @property
    def word(self) -> str:
        """The word people see: the verdict, or `expired`."""
        return "expired" if self.is_expired else self.verdict

    @classmethod
    def load(cls, wire: dict[str, Any]) -> "Outcome":
        """Read a wire form."""
        return cls(**_known(cls, wire))


class Decision(NamedTuple):
    """One remembered decision: when, on which version, what happened, and when the message was due after it."""

    at: float
    version: int
    what: str
    due_at: float
    reason: str = ""


class MessageState(NamedTuple):
    """All state of a message between two events; only `shared.messages.decision.decide` changes it."""

    kind: str
    id: str
    lane: str
    due_at: float
    earliest_at: float
    latest_at: float = 0.0  # latest time within its tolerance; 0 = it has no tolerance, and `due_at` counts
    payload: Any = None
    version: int = 0
    attempt: int = 0  # failed attempts at the present version
    is_tried: bool = False  # a handler has been called for this version, so another payload means another version
    priority: int = 3
    tenant: str = ""
    correlation_id: str = ""
    is_paused: bool = False
    parked_reason: str = ""  # why it is parked; empty while it is not
    parked_at: float = 0.0
    ended: Literal["", "done", "stopped"] = ""
    result: Any = None
    revision: int = 0  # how many revisions have been applied to the payload
    sources: Mapping[str, int] = MappingProxyType({})  # newest applied offset by "topic@id/partition"
    trace: Mapping[str, str] = NO_TRACE  # W3C Trace Context of the record that started or last revised it
    traced: str = ""  # `traceparent` of the last cycle, which the next one links to; empty if not sampled
    turn: Sequence[Any] = NO_TURN  # its place in a limit's line while it waits there
    started_at: float = 0.0  # when it was first due, if its handler keeps that
    skipped: int = 0  # versions without a decided cycle, which revisions began; counted with `started_at`
    expires_at: float = 0.0  # when it ends, whatever it waits for; 0 = never
    is_expired: bool = False  # with `ended` as "done", so that older code takes it for that
    decisions: tuple[Decision, ...] = ()
    is_running: bool = False  # a handler is at work; what signals ask for waits in the next three fields
    asked_due_at: float | None = None
    asked_stop: str | None = None
    is_revised: bool = False

    @property
    def workflow_id(self) -> str:
        """`kind:id`."""
        return workflow_id(self.kind, self.id)

    @property
    def is_parked(self) -> bool:
        """Whether it failed for good and sleeps until a person replays or stops it."""
        return self.parked_reason != ""

    @property
    def is_expiring(self) -> bool:
        """Whether its next due time is its expiry."""
        return 0.0 < self.expires_at <= self.due_at

    @property
    def is_held(self) -> bool:
        """Whether nothing runs, whatever the time: it is parked or paused."""
        return self.is_parked or self.is_paused

    @property
    def phase(self) -> str:
        """The word people see as search attribute `State`: active, paused, parked, done, stopped or expired."""
        if self.ended:
            return "expired" if self.is_expired else self.ended
        if self.is_parked:
            return "parked"
        return "paused" if self.is_paused else "active"

    def dump(self) -> dict[str, Any]:
        """Give the wire form that the next run starts from."""
        wire = _dump(self)
        if self.decisions:
            wire["decisions"] = [[d.at, d.version, d.what, d.due_at, d.reason] for d in self.decisions]
        return wire

    @classmethod
    def load(cls, wire: dict[str, Any]) -> "MessageState":
        """Read a wire form; raises TypeError when one of the five identifying fields is missing."""
        known = _known(cls, wire)
        if "decisions" in known:
            known["decisions"] = tuple(Decision(*entry[: len(Decision._fields)]) for entry in known["decisions"])
        return cls(**known)

    def remember(self, now: float, what: str, reason: str = "") -> "MessageState":
        """Append a decision, forgetting the oldest; `now` is kept to the millisecond."""
        entry = Decision(round(now, 3), self.version, what, self.due_at, reason)
        return self._replace(decisions=(*self.decisions[1 - DECISIONS_KEPT :], entry))


class HandlerCall(NamedTuple):
    """What the workflow hands to the dispatching activity for one cycle."""

    kind: str
    id: str
    lane: str
    version: int
    attempt: int
    payload: Any
    due_at: float
    priority: int = 3
    tenant: str = ""
    correlation_id: str = ""
    trace: Mapping[str, str] = NO_TRACE
    traced: str = ""  # `traceparent` of the previous cycle, if it was sampled
    turn: Sequence[Any] = NO_TURN
    started_at: float = 0.0
    skipped: int = 0
    expires_at: float = 0.0

    @classmethod
    def of(cls, state: MessageState, attempt: int) -> "HandlerCall":
        """Make the call for a message; `attempt` counts from 1."""
        values = list(_read_call(state))
        values[_ATTEMPT] = attempt
        return cls._make(values)

    def is_over(self, now: float) -> bool:
        """Whether the message expires with this call, instead of a cycle: it was due for that, or it is too late."""
        return self.expires_at > 0.0 and self.expires_at <= max(self.due_at, now)

    dump = _dump

    @classmethod
    def load(cls, wire: dict[str, Any]) -> "HandlerCall":
        """Read a wire form."""
        return cls(**_known(cls, wire))


_read_call = attrgetter(*HandlerCall._fields)
_ATTEMPT = HandlerCall._fields.index("attempt")


def clip_reason(reason: str) -> str:
    """Give a reason as one line of at most 300 characters that UTF-8 can carry, whatever its author wrote."""
    return "" if not reason else " ".join(reason.split())[:REASON_MAX].encode(errors="replace").decode()


_Record = MessageState | Outcome | HandlerCall
