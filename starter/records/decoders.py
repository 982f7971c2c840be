"""Decoders: one for each format of a topic's records, chosen once; it gives the fields of a message, or whom to stop.

`Formats` makes a delivery of that.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol, cast

from shared.errors import InvalidEnvelope
from shared.messages.envelope import EnvelopeRules, parse_envelope
from shared.messages.json_value import encode_json, parse_json
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
from starter.records.record import DeadRecord, Headers, Record

_DEBEZIUM_HINT = f"or start the bridge with --format {DEBEZIUM}"


class StopRequest(NamedTuple):
    """The message that a record asks to stop; not yet checked."""

    kind: Any
    id: Any


class Decoder(Protocol):
    """Reads the records of one format; raises DeadRecord."""

    def read(self, record: Record, headers: Headers, document: Any) -> dict[str, Any] | StopRequest:
        """Say what a record asks for; `document` is its value if it is parsed already."""
        ...


class ValueReader(Protocol):
    """Reads values that are JSON and no CloudEvents; raises DeadRecord."""

    def read(self, view: RecordView) -> dict[str, Any]:
        """Give the fields of the message."""
        ...


def choose_decoder(options: FormatOptions, rules: EnvelopeRules) -> Decoder:
    """Choose how all records of a topic are read."""
    if options.schedules is not None:
        return ScheduleDecoder(options.kind, options.schedules, choose_tombstones(options))
    if options.changes is not None:
        return ChangeDecoder(options, options.changes)
    return ValueDecoder(choose_tombstones(options), EventReader(options, rules), choose_values(options))


def choose_values(options: FormatOptions) -> ValueReader:
    """Choose how values are read that are JSON and no CloudEvents."""
    if options.id_from is not None:
        return MappedReader(options)
    if options.kind is not None:
        return KindReader(options.kind)
    return EnvelopeReader()


def choose_tombstones(options: FormatOptions) -> "TombstoneReader":
    """Choose how the message of a null value is found, see `Formats.decode`."""
    kind = options.kind
    id_from = options.id_from
    if kind is None or (isinstance(kind, Origin) and kind.part != "header"):  # then no value tells it
        return _choose_unnamed_tombstones(id_from)

    find_named = partial(find_kind, kind)
    if id_from == KEY:
        return TombstoneReader(find_named, KEY.find)
    if id_from is None or id_from.part == "value":
        return TombstoneReader(find_named, _find_plain_key)
    return TombstoneReader(find_named, partial(_find_id, id_from))


def _choose_unnamed_tombstones(id_from: Origin | None) -> "TombstoneReader":
    """Choose for records whose key tells the kind, as in kind:id."""
    if id_from == KEY:
        # starts use the whole key as the id, so their tombstones do too
        return TombstoneReader(_find_kind_in_key, KEY.find)
    if id_from is None or id_from.part == "value":
        return TombstoneReader(_find_kind_in_key, _find_id_behind_kind)
    if id_from.part == "key":
        return TombstoneReader(_refuse_kind, partial(_find_id, id_from))
    return TombstoneReader(_find_kind_in_key, partial(_find_id_outside_key, id_from))


@dataclass(frozen=True, slots=True)
class TombstoneReader:
    """Reads records without a value: each asks to stop the message that its key and headers name."""

    find_kind: Callable[[RecordView], Any]
    find_id: Callable[[RecordView], Any]

    def read(self, view: RecordView) -> StopRequest:
        """Give the message."""
        message_id = self.find_id(view)  # first: of two faults, this one is told
        return StopRequest(self.find_kind(view), message_id)


@dataclass(frozen=True, slots=True)
class ScheduleDecoder:
    """Reads records whose headers say when and where their value is to be sent."""

    kind: str | Origin | None
    schedules: ScheduleOptions
    tombstones: TombstoneReader

    def read(self, record: Record, headers: Headers, document: Any) -> dict[str, Any] | StopRequest:  # noqa: ARG002 — a value need not be JSON
        """Say what a record asks for; one that is left out stops its message."""
        view = RecordView(record.key, headers)
        fields = None if record.value is None else map_schedule(record, self.schedules)
        if fields is None:
            return self.tombstones.read(view)
        return {"kind": self.kind, "id": KEY.find(view), **fields}


@dataclass(frozen=True, slots=True)
class ChangeDecoder:
    """Reads changes of Debezium; a deleted row stops its message."""

    options: FormatOptions
    changes: ChangeOptions

    def read(self, record: Record, headers: Headers, document: Any) -> dict[str, Any] | StopRequest:
        """Say what a record asks for."""
        id_from = self.changes.id_from
        columns = _find_key_columns(record.key, headers, id_from)
        change = read_change(record.value, headers, columns, document)
        view = RecordView(_to_key(columns, id_from), headers, change.row, timestamp=record.timestamp)
        if change.is_deleted:
            return StopRequest(find_kind(self.changes.kind, view), find_deleted_id(id_from, view))

        check_same_id(id_from, view, change.before)
        return map_fields(self.options, view)


@dataclass(frozen=True, slots=True)
class ValueDecoder:
    """Reads records that are CloudEvents by their headers, or else JSON, or else tombstones."""

    tombstones: TombstoneReader
    events: "EventReader"
    values: ValueReader

    def read(self, record: Record, headers: Headers, document: Any) -> dict[str, Any] | StopRequest:
        """Say what a record asks for."""
        if record.value is None:
            return self.tombstones.read(RecordView(record.key, headers))

        event = read_event(record.value, headers) if headers else None
        if event is not None:
            view = RecordView(record.key, headers, event.data, event.attributes, record.timestamp)
            return self.events.read(event, view)

        if document is None:
            document = read_value(record.value, headers)
        return self.values.read(RecordView(record.key, headers, document, timestamp=record.timestamp))


@dataclass(frozen=True, slots=True)
class EventReader:
    """Reads CloudEvents: their type is the kind, and their id the message's, unless the options name other places."""

    options: FormatOptions
    rules: EnvelopeRules

    def read(self, event: CloudEvent, view: RecordView) -> dict[str, Any]:
        """Give the fields of the message."""
        fields = map_fields(self.options, view)
        if "kind" not in fields:
            fields["kind"] = self._read_type(event.type)
        fields.setdefault("id", event.message_id)
        fields["correlation_id"] = event.correlation_id
        return fields

    def _read_type(self, event_type: str) -> str:
        if event_type not in self.rules.kinds:
            try:
                parse_envelope({"kind": event_type, "id": "-"}, self.rules)
            except InvalidEnvelope as exc:
                reason = f"as the event's type {exc.problem}; or start the bridge with --kind"
                raise DeadRecord(exc.flaw, reason, exc.field) from exc
        return event_type


@dataclass(frozen=True, slots=True)
class MappedReader:
    """Reads any JSON, whose parts become the fields that the options name."""

    options: FormatOptions

    def read(self, view: RecordView) -> dict[str, Any]:
        """Give the fields of the message."""
        # mapped as any JSON, a deleted row would start the message that it ends
        if is_delete(view.document):
            flaw = "is a delete of Debezium; start the bridge with --format debezium"
            raise DeadRecord("InvalidField", flaw, "value")
        return map_fields(self.options, view)


class EnvelopeReader:
    """Reads envelopes."""

    def read(self, view: RecordView) -> dict[str, Any]:
        """Give the fields of the message."""
        return _read_envelope_fields(view)


@dataclass(frozen=True, slots=True)
class KindReader:
    """Reads envelopes that may leave out their kind, and may have no other: tombstones would miss its message."""

    kind: str | Origin

    def read(self, view: RecordView) -> dict[str, Any]:
        """Give the fields of the message."""
        fields = _read_envelope_fields(view)
        kind = find_kind(self.kind, view)
        own = fields.get("kind")

        if own is None:
            fields["kind"] = kind
        elif isinstance(own, str) and own != kind:
            flaw = f"is {own[:60]!r}, but --kind says {str(kind)[:60]!r}; agree on one"
            raise DeadRecord("InvalidField", flaw, "kind")
        return fields


def _read_envelope_fields(view: RecordView) -> dict[str, Any]:
    if not isinstance(view.document, dict):
        raise DeadRecord("NotAnObject", "is no JSON object; send an envelope, or map it with --id-from", "value")

    fields = cast("dict[str, Any]", view.document)
    if is_change(fields):
        flaw = "is a change of Debezium and no envelope"
        raise DeadRecord("InvalidField", f"{flaw}; map it with --id-from, {_DEBEZIUM_HINT}", "value")
    return fields


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


def _find_id(origin: Origin, view: RecordView) -> Any:
    return to_id(find_required("id", origin, view))


def _find_id_outside_key(origin: Origin, view: RecordView) -> Any:
    """Give an id that is not in the key, which is needed too."""
    KEY.find(view)
    return _find_id(origin, view)


def _find_plain_key(view: RecordView) -> str:
    """Give the key, unless it holds an id in an object: whole, it would name a message that nobody has started."""
    key: str = KEY.find(view)
    if key.startswith("{"):
        with contextlib.suppress(ValueError):
            if isinstance(parse_json(key), dict):
                flaw = "is a JSON object, and a tombstone stops the message that its key names"
                remedy = f"name the part with --id-from key:/PART, {_DEBEZIUM_HINT}"
                raise DeadRecord("InvalidField", f"{flaw}; {remedy}", "key")
    return key


def _find_id_behind_kind(view: RecordView) -> str:
    """Give the id in a key like kind:id; empty if that is another key, which has no kind either."""
    return _find_plain_key(view).partition(":")[2]


def _find_kind_in_key(view: RecordView) -> str:
    """Give the kind in a key like kind:id."""
    kind, colon, _ = KEY.find(view).partition(":")
    if not colon:
        _refuse_kind(view)
    return kind


def _refuse_kind(_view: RecordView) -> NoReturn:
    reason = "is told by nothing; give the tombstone a key like kind:id, or use --kind"
    raise DeadRecord("MissingField", reason, "kind")
