"""The envelope, schema_version 1: a message as its sender writes it, checked when it enters dormice."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, cast

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from shared.errors import InvalidEnvelope
from shared.lanes import LANES
from shared.messages.json_value import MAX_DEPTH, find_flaw, find_size_flaw, parse_json
from shared.messages.signals import FINGERPRINT_BYTES
from shared.messages.timespan import HORIZON, read_moment

ID_MAX_BYTES = 200
KIND_MAX_BYTES = 50  # kind + ":" + id must fit the 255 characters that SQL stores of Temporal keep of a workflow id
TENANT_MAX_BYTES = 64  # Temporal's limit for a fairness key
TOLERANCE_MAX = timedelta(days=30)

_LANES = tuple(LANES)
_HORIZON = datetime.now(UTC) + HORIZON  # fixed at import: the true limit only grows, and most moments are far before it
_TOLERANCE_SECONDS_MAX = TOLERANCE_MAX.total_seconds()
_SHOWN_MAX = 10**15  # larger numbers are described in errors, not printed
DOT_IDS = frozenset((".", ".."))
"""Ids that no URL can name: in a path they stand for its own folder and the one above."""
KIND_PATTERN = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


PayloadCheck = Callable[[Any], InvalidEnvelope | None]
"""Gives what is wrong with a payload of plain JSON, by the model of its kind's handler."""


@dataclass(frozen=True, slots=True)
class EnvelopeRules:
    """What differs between installations; `kinds` maps each kind that has a handler to the handler's default lane."""

    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    payload_max_bytes: int = 4096
    payloads: Mapping[str, PayloadCheck] = field(default_factory=dict[str, PayloadCheck])  # of kinds with a model
    expires_after: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    """How long after its first due time a message expires, for kinds whose handlers declare it."""

    def for_names(self) -> "EnvelopeRules":
        """Give the rules for a kind and an id alone, such as a tombstone's, which has no payload."""
        return replace(self, payloads={})


def _text(value: Any, max_bytes: int) -> str:
    if isinstance(value, str) and len(value) <= max_bytes and value.isascii() and value.isprintable():
        return value  # the common case
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # the one text that a whole number has
    if not isinstance(value, str):
        # ValueError in all validators: pydantic turns no other error into a ValidationError
        raise ValueError(f"must be a string, not {_name_type(value)}; put it in quotes")  # noqa: TRY004 — see above
    if flaw := find_flaw(value):
        raise ValueError(f"{flaw}; send text that UTF-8 can encode")
    if (size := len(value.encode())) > max_bytes:
        raise ValueError(f"is {size} bytes of UTF-8, the limit is {max_bytes}; shorten it")
    if found := _CONTROL.search(value):
        raise ValueError(f"has the control character {found.group()!r} at position {found.start() + 1}; remove it")

    return value


def _kind(value: Any) -> str:
    if isinstance(value, int):
        raise ValueError(f"must be a string, not {_name_type(value)}; put it in quotes")  # noqa: TRY004 — see _text
    text = _text(value, KIND_MAX_BYTES)
    if not KIND_PATTERN.fullmatch(text):
        raise ValueError(f"is {text!r}; use lower-case letters, digits, '_', '.' and '-' only, letter or digit first")
    return text


def _message_id(value: Any) -> str:
    if isinstance(value, float):
        raise ValueError(f"is {_show(value)}, no whole number; put it in quotes, as it is to be written")  # noqa: TRY004 — as above
    text = _text(value, ID_MAX_BYTES)
    if not text:
        raise ValueError("is empty; give 1 to 200 bytes")
    check_dots(text)
    return text


def check_dots(message_id: str) -> None:
    """Raise ValueError, with half a sentence, for an id that no URL can name."""
    if message_id in DOT_IDS:
        raise ValueError(f"is {message_id!r}, which in a URL is a step in the path; give another id, such as 'dot'")


def _lane(value: Any) -> str | None:
    if value is not None and value not in _LANES:
        raise ValueError(f"is {_show(value)}; use one of {', '.join(LANES)}, or leave it out for the handler's own")
    return value


def _moment(value: Any) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float | datetime):
        raise ValueError(  # noqa: TRY004 — see _text
            f"must be a string in RFC 3339 form, not {_name_type(value)}; write it like 2026-11-21T20:00:00Z"
        )
    moment = read_moment(value)
    if moment > _HORIZON and moment > datetime.now(UTC) + HORIZON:
        raise ValueError(f"is {moment.isoformat()}, more than ten years ahead; correct the date")

    return moment


def _tolerance(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number of seconds, not {_name_type(value)}; write for example 60")  # noqa: TRY004 — see _text
    if not 0 <= value <= _TOLERANCE_SECONDS_MAX:
        raise ValueError(f"is {_show(value)}; give seconds between 0 and {_TOLERANCE_SECONDS_MAX:.0f}")
    return float(value)


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 5:
        raise ValueError(f"is {_show(value)}; give a whole number from 1 (first) to 5 (last)")
    return value


def _payload(value: Any) -> Any:
    if flaw := find_flaw(value):
        raise ValueError(f"{flaw}; send plain JSON")
    return value


def _schema_version(value: Any) -> int:
    if isinstance(value, bool) or value != 1:
        raise ValueError(f"is {_show(value)}; this version of dormice reads schema_version 1")
    return 1


class Envelope(BaseModel):
    """One message as its sender describes it; every field is valid once this object exists."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Annotated[Literal[1], BeforeValidator(_schema_version)] = 1
    kind: Annotated[str, BeforeValidator(_kind)]
    id: Annotated[str, BeforeValidator(_message_id)]
    lane: Annotated[str | None, BeforeValidator(_lane)] = None
    scheduled_at: Annotated[datetime | None, BeforeValidator(_moment)] = None
    expires_at: Annotated[datetime | None, BeforeValidator(_moment)] = None
    tolerance_seconds: Annotated[float, BeforeValidator(_tolerance)] = 0.0
    priority: Annotated[int, BeforeValidator(_priority)] = 3
    tenant: Annotated[str, BeforeValidator(lambda v: _text(v, TENANT_MAX_BYTES))] = ""
    payload: Annotated[Any, BeforeValidator(_payload)] = None
    correlation_id: Annotated[str, BeforeValidator(lambda v: _text(v, ID_MAX_BYTES))] = ""
    idempotency_key: Annotated[str, BeforeValidator(lambda v: _text(v, ID_MAX_BYTES))] = ""

    def is_due(self, now: datetime) -> bool:
        """Whether the message is due at once: no moment was given for it, or one that has passed."""
        return self.scheduled_at is None or self.scheduled_at <= now

    @property
    def fingerprint(self) -> int:
        """A number above 0 that stands for what the sender asks for: the same for the same, seldom for anything else.

        An idempotency key is kept with it, so that a key that comes with another body is found out.
        """
        # what the handler declares counts from each request's own moment
        expires_at = self.expires_at if "expires_at" in self.model_fields_set else None
        moments = (self.scheduled_at, expires_at)
        others = (self.lane, self.tolerance_seconds, self.priority, self.tenant, self.correlation_id)
        text = json.dumps([self.payload, *moments, *others], sort_keys=True, default=str)
        digest = hashlib.blake2b(text.encode(), digest_size=FINGERPRINT_BYTES).digest()

        return int.from_bytes(digest) or 1


DEFAULTS: dict[str, Any] = {
    name: None if at.is_required() else at.default for name, at in Envelope.model_fields.items()
}
"""What each field is when it is left out."""

_OPTIONAL = frozenset(name for name, at in Envelope.model_fields.items() if not at.is_required())
_OPTIONAL_TEXTS = (("tenant", TENANT_MAX_BYTES), ("correlation_id", ID_MAX_BYTES), ("idempotency_key", ID_MAX_BYTES))
_set = object.__setattr__  # the model is frozen


def parse_envelope(raw: str | bytes | Mapping[str, Any], rules: EnvelopeRules) -> Envelope:
    """Check an envelope, as JSON text or an object, against every rule and fill in its lane; raises InvalidEnvelope."""
    if isinstance(raw, str | bytes):
        try:
            raw = parse_json(raw)
        except ValueError as exc:
            flaw = "NotUtf8" if isinstance(exc.__cause__, UnicodeDecodeError) else "NotJson"
            raise InvalidEnvelope("envelope", f"{exc}; send one JSON object", flaw) from exc

    if not isinstance(raw, Mapping):
        raise InvalidEnvelope("envelope", f"is {_name_type(raw)}; send one JSON object", "NotAnObject")

    try:
        envelope = Envelope.model_validate(_fill_in_lane(drop_nulls(raw), rules))
    except ValidationError as exc:
        raise _translate(exc) from exc

    if envelope.kind not in rules.kinds:
        known = ", ".join(sorted(rules.kinds)) or "none at all"
        raise InvalidEnvelope("kind", f"no handler for {envelope.kind!r} is loaded; loaded: {known}", "UnknownKind")

    if too_large := find_size_flaw(envelope.payload, rules.payload_max_bytes):
        raise InvalidEnvelope("payload", too_large, "TooLarge")
    if rules.payloads and (unfit := find_misfit(envelope.kind, envelope.payload, rules.payloads)) is not None:
        raise unfit
    return _with_expiry(envelope, rules)


def drop_nulls(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out the optional fields that are null: most writers of JSON have no other way to leave a field out."""
    if None not in fields.values():
        return fields
    return {name: value for name, value in fields.items() if value is not None or name not in _OPTIONAL}


def _with_expiry(envelope: Envelope, rules: EnvelopeRules) -> Envelope:
    """Check the expiry, or set what the handler declares."""
    scheduled = envelope.scheduled_at
    expires = envelope.expires_at
    if expires is None:
        if (span := rules.expires_after.get(envelope.kind)) is None:
            return envelope
        now = datetime.now(UTC)
        expiring = envelope.model_copy(update={"expires_at": max(scheduled or now, now) + span})
        expiring.model_fields_set.discard("expires_at")
        return expiring

    if scheduled is not None and expires <= scheduled:
        flaw = f"is {expires.isoformat()}, not after scheduled_at, {scheduled.isoformat()}"
        raise InvalidEnvelope("expires_at", f"{flaw}; give a later moment, or leave it out")

    return envelope


def find_misfit(kind: str, payload: Any, checks: Mapping[str, PayloadCheck]) -> InvalidEnvelope | None:
    """Return what is wrong with a payload by the model of its kind, None if it has none."""
    check = checks.get(kind)
    return None if check is None else check(payload)


def parse_envelope_fast(given: Mapping[str, Any], rules: EnvelopeRules) -> Envelope | None:
    """Give what `parse_envelope` gives for ordinary fields, parsed from JSON, in half its time; None if in doubt."""
    given = drop_nulls(given)
    fields = {**DEFAULTS, **given}
    kind = fields["kind"]
    message_id = fields["id"]
    at = fields["scheduled_at"]
    if len(fields) > len(DEFAULTS) or type(kind) is not str or kind not in rules.kinds or kind in rules.expires_after:
        return None
    if fields["lane"] is None:
        fields["lane"] = rules.kinds[kind]
    if not KIND_PATTERN.fullmatch(kind) or len(kind) > KIND_MAX_BYTES:
        return None
    if type(message_id) is int:
        message_id = fields["id"] = str(message_id)
    if not is_plain_id(message_id) or not has_plain_options(fields):
        return None

    if at is not None:
        if type(at) is not str:
            return None
        try:
            fields["scheduled_at"] = _moment(at)
        except ValueError:
            return None

    if encode_payload_fast(kind, fields["payload"], rules, is_parsed=True) is None:
        return None

    envelope = Envelope.__new__(Envelope)  # all that `model_construct` does for such a model, which takes much longer
    _set(envelope, "__dict__", fields)
    _set(envelope, "__pydantic_fields_set__", {*given, "lane"})
    _set(envelope, "__pydantic_extra__", None)
    _set(envelope, "__pydantic_private__", None)

    return envelope


def _is_plain(text: Any, bytes_max: int) -> bool:
    """Return whether this is text of a good length without any character that the rules may refuse."""
    if type(text) is not str or not text.isprintable():  # lone surrogates are not printable either
        return False
    encoded = text if text.isascii() else text.encode()
    return len(encoded) <= bytes_max


def is_plain_id(text: Any) -> bool:
    """Return whether this is surely an id."""
    return _is_plain(text, ID_MAX_BYTES) and text != "" and text not in DOT_IDS


def has_plain_options(fields: dict[str, Any]) -> bool:
    """Return whether the fields that most messages leave out are surely valid; makes the tolerance a float."""
    if fields["expires_at"] is not None:
        return False

    lane = fields["lane"]
    if lane is not None and (type(lane) is not str or lane not in _LANES):
        return False

    tolerance = fields["tolerance_seconds"]
    priority = fields["priority"]
    version = fields["schema_version"]

    if type(tolerance) not in (int, float) or not 0 <= tolerance <= _TOLERANCE_SECONDS_MAX:
        return False
    fields["tolerance_seconds"] = float(tolerance)

    if type(version) is not int or version != 1:
        return False
    if type(priority) is not int or not 1 <= priority <= 5:
        return False

    for name, bytes_max in _OPTIONAL_TEXTS:
        if (text := fields[name]) != "" and not _is_plain(text, bytes_max):
            return False

    return True


def encode_payload_fast(kind: str, payload: Any, rules: EnvelopeRules, *, is_parsed: bool) -> bytes | None:
    """Give a payload as `encode_json` writes it if it is surely valid, None if in doubt.

    `is_parsed`: it comes from JSON, so it needs no look at its values unless it is large.
    """
    try:
        text = orjson.dumps(payload)
    except TypeError:  # whole numbers of more than 64 bits, lone surrogates, or too deep
        return None

    bytes_max = rules.payload_max_bytes
    if bytes_max and len(text) > bytes_max:
        return None

    # each level takes a bracket at both ends, and a number like 1e400, which is parsed as infinity, is written as null
    is_safe = is_parsed and len(text) <= 2 * MAX_DEPTH and b"null" not in text
    if not is_safe and find_flaw(payload) is not None:
        return None
    if rules.payloads and find_misfit(kind, payload, rules.payloads) is not None:
        return None

    return text


def _fill_in_lane(raw: Mapping[str, Any], rules: EnvelopeRules) -> Mapping[str, Any]:
    """Fill in the lane before validation: pydantic's copy with another lane costs as much as all the checks."""
    kind = raw.get("kind")
    lane = rules.kinds.get(kind) if raw.get("lane") is None and isinstance(kind, str) else None
    return raw if lane is None else {**raw, "lane": lane}


def _translate(exc: ValidationError) -> InvalidEnvelope:
    first = exc.errors(include_url=False)[0]
    name = repr(str(first["loc"][0]))[1:-1][:60] if first["loc"] else "envelope"
    if first["type"] == "missing":
        return InvalidEnvelope(name, "is missing; every message needs one", "MissingField")
    if first["type"] == "extra_forbidden":
        return InvalidEnvelope(name, f"is not a field of the envelope; use {', '.join(Envelope.model_fields)}")
    if first["type"] == "value_error":
        flaw = "UnknownSchemaVersion" if name == "schema_version" else "InvalidField"
        return InvalidEnvelope(name, first["msg"].removeprefix("Value error, "), flaw)

    return InvalidEnvelope(name, f"{first['msg']}; correct it")


def _show(value: Any) -> str:
    """Describe a wrong value for an error, even if it is very long, deep or unprintable."""
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _name_type(value)
    return "a number far too large" if abs(value) >= _SHOWN_MAX else repr(value)


def _name_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "true/false", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(cast("type[Any]", type(value)), type(value).__name__)
