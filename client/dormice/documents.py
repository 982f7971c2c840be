"""Documents: what goes to the API and comes from it, as frozen dataclasses; moments always have a time zone."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Literal, TypedDict, TypeVar, cast

from dormice.errors import InvalidEnvelope

Found = TypeVar("Found")
Item = TypeVar("Item")
State = Literal["active", "running", "paused", "parked", "done", "stopped"]
Outcome = Literal["started", "already running", "revised", "stopped", "ignored", "rejected", "failed", "kept"]


class Options(TypedDict, total=False):
    """What may be said of a message beside kind, id and payload, see `Envelope`."""

    at: datetime | None
    after: timedelta | None
    tolerance: timedelta
    lane: str
    priority: int
    tenant: str
    correlation_id: str
    idempotency_key: str


class Selection(TypedDict, total=False):
    """Which messages a list or a count is about; without any, all that are alive."""

    kind: str
    lane: str
    state: str
    due_before: datetime


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message to be started: due `at` a moment or `after` a time, at once without either."""

    kind: str
    id: str
    payload: Any = None
    _: dataclasses.KW_ONLY
    at: datetime | None = None
    after: timedelta | None = None
    tolerance: timedelta = timedelta(0)
    """How much later than due it may run."""
    lane: str = ""
    priority: int = 3
    """1 (first) to 5 (last)."""
    tenant: str = ""
    correlation_id: str = ""
    idempotency_key: str = ""

    def to_document(self) -> dict[str, Any]:
        """Give it as the API takes it; raises InvalidEnvelope."""
        texts = ("lane", "tenant", "correlation_id", "idempotency_key")
        given = {name: text for name in texts if (text := getattr(self, name))}
        times = {"scheduled_at": to_moment(self.at, self.after), "tolerance_seconds": self.tolerance.total_seconds()}
        known = {"kind": self.kind, "id": self.id, "payload": self.payload, "priority": self.priority}
        return known | times | given


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Generic[Item]):
    """What became of one start or upsert.

    "already running": it is alive, or has finished, and was left unchanged. "ignored": this idempotency key was applied
    before. "kept": the server has it, and no worker has taken it yet; it takes effect once one is there. "failed": the
    server did not take it in time; the same start may succeed later. "rejected": `field` and `reason` say why.
    """

    item: Item
    """What was given to `start_many`."""
    kind: str
    id: str
    outcome: Outcome
    reason: str
    """Why it is so, or why a message that was changed does not run."""
    field: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What became of a signal."""

    is_kept: bool
    """The server has it, and no worker has taken it yet; it takes effect once one is there."""
    note: str
    """What keeps the message from running as asked, if anything does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One of the last decisions about a message."""

    at: datetime
    what: str
    reason: str
    version: int
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """One message in full; what nobody could tell without a worker is None, and `note` says so."""

    kind: str
    id: str
    workflow_id: str
    state: State | str
    """One of State, or how its workflow was ended by something else: "failed", "terminated" and so on."""
    lane: str
    due_at: datetime | None
    earliest_at: datetime | None
    is_due_soon: bool
    why: str | None
    version: int | None
    attempt: int | None
    priority: int
    tenant: str | None
    payload: Any
    is_payload_kept: bool
    revision: int | None
    correlation_id: str | None
    result: Any
    decisions: tuple[Decision, ...]
    started_at: datetime | None
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMessage:
    """One message of a list; an active one without `due_at` is due now or soon."""

    kind: str
    id: str
    lane: str
    state: State | str
    due_at: datetime | None
    earliest_at: datetime | None
    started_at: datetime | None
    parked_reason: str | None
    parked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCount:
    """How many messages there are; one that is not exact comes from counts of which the oldest has this age."""

    count: int
    is_exact: bool
    oldest_count_seconds: int | None
    packs_not_counted: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSummary:
    """A kind that may be started."""

    kind: str
    lane: str
    encoding: Literal["solo", "pack"]
    max_attempts: int
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateClosure:
    """A closed gate; without `opens_at` it stays closed until somebody opens it."""

    gate: str
    closed_at: datetime
    opens_at: datetime | None
    reason: str


def read_document(kind: type[Found], document: Mapping[str, Any]) -> Found:
    """Read a dataclass from a document of the API; fields that this version does not know are left out."""
    names = [field.name for field in dataclasses.fields(cast("Any", kind))]
    return kind(**{name: _read_value(name, document.get(name)) for name in names})


def _read_value(name: str, value: Any) -> Any:
    if name == "decisions":
        return tuple(read_document(Decision, each) for each in value)
    is_moment = isinstance(value, str) and (name == "at" or name.endswith("_at"))
    return datetime.fromisoformat(value) if is_moment else value


def to_moment(at: datetime | None, after: timedelta | None = None, field: str = "at") -> str | None:
    """Write a moment, given as such or as a time from now; raises InvalidEnvelope for both, or one without a zone."""
    if at is not None and after is not None:
        raise InvalidEnvelope(f"{field}: is given beside after; leave one of them out", field=field)
    if at is not None and at.tzinfo is None:
        raise InvalidEnvelope(f"{field}: {at.isoformat()} has no time zone; add one, for example UTC", field=field)
    moment = at if after is None else datetime.now(UTC) + after
    return None if moment is None else moment.isoformat()


def to_query(filters: Selection) -> dict[str, str | int]:
    """Write a filter as parameters of the address."""
    due_before = to_moment(filters.get("due_before"), field="due_before")
    texts: dict[str, str | int] = {name: value for name, value in filters.items() if isinstance(value, str)}
    return texts if due_before is None else {**texts, "due_before": due_before}


def to_json(document: Mapping[str, Any]) -> bytes:
    """Write JSON; dataclasses, pydantic models and datetimes in it are translated; raises InvalidEnvelope."""
    try:
        return json.dumps(document, default=_translate, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidEnvelope(f"payload: can't be written as JSON ({exc}); use plain values", field="payload") from exc


def _translate(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_moment(value, field="payload")
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is none of its types")
