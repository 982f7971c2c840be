"""Formats: what a record asks for, whether it is an envelope, a CloudEvent, any JSON or a tombstone."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from shared.errors import InvalidEnvelope
from shared.messages.envelope import Envelope, EnvelopeRules, parse_envelope, read_ordinary
from shared.messages.json_value import encode_json, parse_json, parse_plain_objects
from shared.messages.message import NO_TRACE
from starter.records.dead_letters import find_origin
from starter.records.mapping import (
    KEY,
    ChangeOptions,
    FormatOptions,
    Origin,
    RecordView,
    check_same_id,
    find_deleted_id,
    find_kind,
    find_required,
    map_fields,
    to_id,
)
from starter.records.producers.cloud_events import CloudEvent, read_event
from starter.records.producers.debezium import FORMAT as DEBEZIUM
from starter.records.producers.debezium import is_change, is_delete, read_change, read_key_columns, write_id
from starter.records.producers.frames import read_value
from starter.records.producers.schedules import ScheduleOptions, map_schedule
from starter.records.producers.spring_headers import read_headers
from starter.records.record import DeadRecord, Headers, Record, read_text
from starter.starting.delivery import Delivery

RECORD_MAX_BYTES = 1_000_000
"""Larger records become dead letters without being parsed."""

ORDINARY_MAX_BYTES = RECORD_MAX_BYTES // 2
"""Key and value of ordinary records are not larger, so that both together are not too large."""

CORRELATION_HEADERS = ("correlation_id", "correlation-id")
TRACESTATE_MAX_BYTES = 512  # W3C Trace Context §3.3.1.5: the least that everybody propagates

_DEBEZIUM_HINT = f"or start the bridge with --format {DEBEZIUM}"

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")
_TRACEPARENT_BYTES = 55  # of version 00; later ones may be longer
_TRACEPARENT_MAX_BYTES = 200
_TRACESTATE = re.compile(rb"[\t -~]*")


class Formats:
    """Decodes records, without state between them; raises InvalidSetting for a `--kind` without a loaded handler."""

    def __init__(self, options: FormatOptions, rules: EnvelopeRules) -> None:
        self._options = options
        self._rules = rules
        self._name_rules = rules.for_names()
        self._are_envelopes = options.kind is None and options.id_from is None
        self._read = self._choose()
        options.check_kind(rules)

    def decode_many(self, records: Sequence[Record]) -> Iterator[Delivery | DeadRecord]:
        """Say what each record asks for, or why it is dead, as `decode` does; ordinary records take half the time."""
        documents: Iterable[dict[str, Any] | None] = [None] * len(records)
        if self._options.schedules is None:  # else values need not be JSON
            values = (record.value or b"" for record in records)
            documents = parse_plain_objects([value if len(value) <= ORDINARY_MAX_BYTES else b"" for value in values])

        for record, document in zip(records, documents, strict=True):
            if document is not None and self._are_envelopes and not record.headers:
                envelope = read_ordinary(document, self._rules)
                if envelope is not None and len(record.key or b"") <= ORDINARY_MAX_BYTES:
                    yield Delivery(envelope.kind, envelope.id, record.source, record.offset, envelope)
                    continue
            try:
                yield self.decode(record, document)
            except DeadRecord as exc:
                yield exc

    def decode(self, record: Record, document: dict[str, Any] | None = None) -> Delivery:
        """Say what a record asks for; raises DeadRecord and nothing else. Its source and offset are a replay's origin.

        `document` is the record's value if it is parsed already.

        A null value is a tombstone, also of a binary event; so is a schedule that is left out, and a deleted row of
        Debezium. Otherwise the headers decide whether a record is a CloudEvent, unless all records are schedules or
        changes. A record that is none is any JSON with `--id-from`, and an envelope without. `--kind` without
        `--id-from` fills in the kind that an envelope leaves out, and refuses an envelope of another kind, because
        tombstones would miss its message.

        A tombstone's id comes from the header, or the part of the key, that `--id-from` names, else from the key, as
        it has no value to point into. With a `--kind` that needs no value, or with `--id-from key`, the whole key is
        the id; else the key must be "kind:id". If `--kind` gives no kind, the kind is the key up to its first colon.
        """
        _check_size(record)
        headers = read_headers(record.headers)
        source, offset = find_origin(record)
        asked = self._read(record, headers, document)

        if isinstance(asked, _StopRequest):
            name = self._check({"kind": asked.kind, "id": asked.id}, self._name_rules)
            return Delivery(name.kind, name.id, source, offset)

        is_open = headers and asked.get("correlation_id") in ("", None)
        if is_open and (correlation_id := _read_correlation_id(headers)):
            asked = {**asked, "correlation_id": correlation_id}
        envelope = self._check(asked, self._rules)
        trace = read_trace_context(headers) if headers else NO_TRACE
        return Delivery(envelope.kind, envelope.id, source, offset, envelope, trace)

    def _check(self, fields: dict[str, Any], rules: EnvelopeRules) -> Envelope:
        try:
            return read_ordinary(fields, rules) or parse_envelope(fields, rules)
        except InvalidEnvelope as exc:
            raise DeadRecord(exc.flaw, exc.problem, exc.field) from exc

    def _choose(self) -> "_Read":
        """Choose how all records are read."""
        if (schedules := self._options.schedules) is not None:
            return partial(self._read_schedule, schedules)
        if (changes := self._options.changes) is not None:
            return partial(self._read_change, changes)
        return self._read_any

    def _read_schedule(
        self, schedules: ScheduleOptions, record: Record, headers: Headers, _document: Any
    ) -> "dict[str, Any] | _StopRequest":
        view = RecordView(record.key, headers)
        fields = None if record.value is None else map_schedule(record, schedules)
        if fields is None:
            return self._read_tombstone(view)
        return {"kind": self._options.kind, "id": KEY.find(view), **fields}

    def _read_change(
        self, changes: ChangeOptions, record: Record, headers: Headers, document: Any
    ) -> "dict[str, Any] | _StopRequest":
        id_from = changes.id_from
        columns = _find_key_columns(record.key, headers, id_from)
        change = read_change(record.value, headers, columns, document)
        view = RecordView(_to_key(columns, id_from), headers, change.row, timestamp=record.timestamp)
        if change.is_deleted:
            return _StopRequest(find_kind(changes.kind, view), find_deleted_id(id_from, view))

        check_same_id(id_from, view, change.before)
        return map_fields(self._options, view)

    def _read_any(self, record: Record, headers: Headers, document: Any) -> "dict[str, Any] | _StopRequest":
        if record.value is None:
            return self._read_tombstone(RecordView(record.key, headers))

        event = read_event(record.value, headers) if headers else None
        if event is not None:
            view = RecordView(record.key, headers, event.data, event.attributes, record.timestamp)
            return self._read_event_fields(event, view)

        if document is None:
            document = read_value(record.value, headers)
        return self._read_fields(RecordView(record.key, headers, document, timestamp=record.timestamp))

    def _read_fields(self, view: RecordView) -> dict[str, Any]:
        document = view.document
        if self._options.id_from is not None:
            _refuse_delete(document)
            return map_fields(self._options, view)

        if not isinstance(document, dict):
            raise DeadRecord("NotAnObject", "is no JSON object; send an envelope, or map it with --id-from", "value")
        fields = cast("dict[str, Any]", document)
        if is_change(fields):
            flaw = "is a change of Debezium and no envelope"
            raise DeadRecord("InvalidField", f"{flaw}; map it with --id-from, {_DEBEZIUM_HINT}", "value")
        if self._options.kind is not None:
            _agree_on_kind(fields, find_kind(self._options.kind, view))
        return fields

    def _read_event_fields(self, event: CloudEvent, view: RecordView) -> dict[str, Any]:
        fields = map_fields(self._options, view)
        if "kind" not in fields:
            fields["kind"] = self._read_type(event.type)
        fields.setdefault("id", event.message_id)
        fields["correlation_id"] = event.correlation_id
        return fields

    def _read_type(self, event_type: str) -> str:
        if event_type not in self._rules.kinds:
            try:
                parse_envelope({"kind": event_type, "id": "-"}, self._rules)
            except InvalidEnvelope as exc:
                reason = f"as the event's type {exc.problem}; or start the bridge with --kind"
                raise DeadRecord(exc.flaw, reason, exc.field) from exc
        return event_type

    def _read_tombstone(self, view: RecordView) -> "_StopRequest":
        kind = self._options.kind
        id_from = self._options.id_from
        told = kind if isinstance(kind, str) or (kind is not None and kind.part == "header") else None  # by no value
        origin = None if id_from is None or id_from == KEY or id_from.part == "value" else id_from

        key = "" if origin and told else KEY.find(view)
        if origin is None and id_from != KEY:
            _refuse_object(key)
        message_id = to_id(find_required("id", origin, view)) if origin else key
        if told:
            return _StopRequest(find_kind(told, view), message_id)

        name, colon, rest = key.partition(":")
        if not colon or (origin is not None and origin.part == "key"):
            reason = "is told by nothing; give the tombstone a key like kind:id, or use --kind"
            raise DeadRecord("MissingField", reason, "kind")
        # with --id-from key, starts use the whole key as the id, so their tombstones do too
        known_id = message_id if origin or id_from == KEY else rest
        return _StopRequest(name, known_id)


class _StopRequest(NamedTuple):
    """The message that a record asks to stop."""

    kind: Any
    id: Any


_Read = Callable[[Record, Headers, Any], dict[str, Any] | _StopRequest]


def _find_key_columns(key: bytes | None, headers: Headers, id_from: Origin) -> Any:
    """Give the columns in a key; None where it can't be read and is not needed."""
    try:
        return read_key_columns(key, headers)
    except DeadRecord:
        if id_from.part == "key":
            raise
        return None


def _to_key(columns: Any, id_from: Origin) -> str | None:
    """Give the key as the origin of an id sees it: as JSON to point into, or as the id itself."""
    if columns is None or id_from.part != "key":
        return None
    return encode_json(columns).decode() if id_from.steps else write_id(columns)


def _refuse_object(key: str) -> None:
    """Refuse a key that holds an id in an object: taken whole, it would name a message that nobody has started."""
    if not key.startswith("{"):
        return
    with contextlib.suppress(ValueError):
        if isinstance(parse_json(key), dict):
            flaw = "is a JSON object, and a tombstone stops the message that its key names"
            raise DeadRecord("InvalidField", f"{flaw}; name the part with --id-from key:/PART, {_DEBEZIUM_HINT}", "key")


def _refuse_delete(document: Any) -> None:
    """Refuse a deleted row of Debezium where no format says so: mapped as any JSON, it would start what it ends."""
    if is_delete(document):
        raise DeadRecord("InvalidField", "is a delete of Debezium; start the bridge with --format debezium", "value")


def _check_size(record: Record) -> None:
    size = len(record.value or b"") + len(record.key or b"")
    if record.headers:
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
    if size > RECORD_MAX_BYTES:
        reason = f"is {size} bytes with key and headers, the limit is {RECORD_MAX_BYTES}; keep bulk data elsewhere"
        raise DeadRecord("TooLarge", reason, "record")


def _agree_on_kind(fields: dict[str, Any], kind: Any) -> None:
    own = fields.get("kind")
    if own is None:
        fields["kind"] = kind
    elif isinstance(own, str) and own != kind:
        raise DeadRecord("InvalidField", f"is {own[:60]!r}, but --kind says {str(kind)[:60]!r}; agree on one", "kind")


def _read_correlation_id(headers: Headers) -> str:
    for name in CORRELATION_HEADERS:
        if raw := headers.get(name):
            return read_text(raw, name)
    return ""


def find_correlation_id(headers: Headers) -> str:
    """Give the correlation id of a record that can't be decoded; empty when it is no text."""
    with contextlib.suppress(DeadRecord):
        return _read_correlation_id(headers)
    return ""


def read_trace_context(headers: Headers) -> Mapping[str, str]:
    """Give traceparent, and tracestate if there is one, as in W3C Trace Context; empty when traceparent is invalid."""
    parent = headers.get("traceparent")
    if parent is None or len(parent) > _TRACEPARENT_MAX_BYTES or not _TRACEPARENT.fullmatch(parent):
        return NO_TRACE
    if parent.startswith(b"00") and len(parent) != _TRACEPARENT_BYTES:
        return NO_TRACE
    trace = {"traceparent": parent.decode()}
    state = headers.get("tracestate") or b""
    if state and len(state) <= TRACESTATE_MAX_BYTES and _TRACESTATE.fullmatch(state):
        trace["tracestate"] = state.decode()

    return trace
