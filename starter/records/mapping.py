"""The mapping: which parts of any JSON record become which fields of an envelope, as options name them."""

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, cast

from shared.errors import InvalidEnvelope, InvalidSetting
from shared.messages.envelope import EnvelopeRules, parse_envelope
from starter.records.moments import read_delay
from starter.records.producers.debezium import FORMAT as DEBEZIUM
from starter.records.producers.frames import read_key
from starter.records.producers.schedules import FORMAT, ScheduleOptions
from starter.records.record import DeadRecord, Headers, read_json, read_text

MISSING: Any = object()
"""What an origin gives when the record has nothing there; null is a value."""

_KEY_PREFIX = "key:"
_KEY_POINTER = "key:/"
_BAD_ESCAPE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)  # RFC 6901 §4; longer ones exceed every list


@dataclass(frozen=True, slots=True)
class RecordView:
    """What an origin can read: the key, the headers, and the parsed value or a CloudEvent's data."""

    key: bytes | str | None
    """As the record has it, or as text that was read already."""
    headers: Headers
    document: Any = MISSING
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    """Those of a structured CloudEvent, under their header names ("ce_id")."""
    timestamp: int = -1
    """The record's own, in milliseconds since 1970; -1 when it has none."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a record has a field: in its key, in a header, or in the JSON of its key or value by a JSON pointer."""

    part: Literal["key", "header", "value"]
    name: str = ""
    """The header's name, or the pointer; empty for the whole key."""
    steps: tuple[str, ...] = ()
    """The pointer's parts, unescaped."""

    def find(self, view: RecordView) -> Any:
        """Give the value there, or MISSING; raises DeadRecord when the key is null, or what has to be text is none.

        A header `ce_…` is also found as an attribute of a structured CloudEvent.
        """
        if self.part == "value":
            return self._find_in(view.document)
        if self.part == "header":
            if (attribute := view.attributes.get(self.name)) is not None:
                return attribute
            raw = view.headers.get(self.name)
            return MISSING if raw is None else read_text(raw, f"header {self.name}")
        if view.key is None:
            raise DeadRecord("MissingKey", "is null, but the id comes from it; produce records with a key", "key")

        text = view.key if isinstance(view.key, str) else read_key(view.key, view.headers)
        return self._find_in(read_json(text, "key")) if self.steps else text

    def _find_in(self, place: Any) -> Any:
        for step in self.steps:
            if isinstance(place, dict):
                place = cast("dict[str, Any]", place).get(step, MISSING)
            elif isinstance(place, list) and _INDEX.fullmatch(step):
                items = cast("list[Any]", place)
                place = items[int(step)] if int(step) < len(items) else MISSING
            else:
                return MISSING
        return place

    def __str__(self) -> str:
        if self.part == "key":
            return f"{self.name!r} in the key" if self.name else "the key"
        return f"header {self.name!r}" if self.part == "header" else f"{self.name!r} in the value"


KEY = Origin("key")


def read_origin(option: str, text: str, *, may_be_key: bool = False) -> Origin:
    """Read a header or a JSON pointer, or the key or a part of it; raises InvalidSetting that names the option."""
    if may_be_key and text == "key":
        return KEY

    if may_be_key and text.startswith(_KEY_POINTER):
        pointer = text.removeprefix(_KEY_PREFIX)
        return Origin("key", pointer, _read_pointer(option, pointer))

    if text.startswith("/"):
        return Origin("value", text, _read_pointer(option, text))

    if not text.startswith("header:"):
        choices = "key, key:/PART, header:NAME" if may_be_key else "header:NAME"
        raise InvalidSetting(f"{option}: is {text[:60]!r}; write {choices} or a JSON pointer, for example /order/id")

    name = text.removeprefix("header:")
    if not name or name != name.strip() or not name.isprintable():
        flaw = f"names the header {name[:60]!r}"
        raise InvalidSetting(f"{option}: {flaw}; write header:NAME, for example header:order-id")

    return Origin("header", name)


def _read_pointer(option: str, text: str) -> tuple[str, ...]:
    if found := _BAD_ESCAPE.search(text):
        flaw = f"has a '~' at position {found.start() + 1} that escapes nothing"
        raise InvalidSetting(f"{option}: {flaw}; write ~0 for '~' and ~1 for '/'")
    # RFC 6901 §4: ~1 first, or "~01" would become "/"
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Where changes of Debezium have what names their message, also those of deleted rows."""

    kind: str | Origin
    id_from: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """How the records of a topic are to be read.

    `kind` is a kind, or the header or JSON pointer that names it; without `id_from` it gives the kind of envelopes,
    CloudEvents and tombstones. With `id_from`, a value that is no CloudEvent is any JSON; `payload_from` and `extras`
    (origins of optional fields, and of a delay in `delay_unit`) need `id_from`. With `schedules` all records are
    schedules of a literal kind. With `changes` they are Debezium's, and pointers point into their rows.
    """

    kind: str | Origin | None = None
    id_from: Origin | None = None
    payload_from: Origin | None = None
    extras: tuple[tuple[str, Origin], ...] = ()
    delay_unit: str = "milliseconds"
    schedules: ScheduleOptions | None = None
    changes: ChangeOptions | None = None

    @classmethod
    def read(
        cls,
        *,
        kind: str | None = None,
        id_from: str | None = None,
        delay_unit: str | None = None,
        **origins: str | None,
    ) -> Self:
        """Read the options as typed, None for those left out; raises InvalidSetting that names the wrong one.

        `origins` may be lane_from, scheduled_at_from, delay_from, expires_at_from, priority_from, tenant_from and
        payload_from.
        """
        places = {name: read_origin(_name_option(name), text) for name, text in origins.items() if text is not None}
        if places and id_from is None:
            flaw = f"{_name_option(next(iter(places)))}: maps records whose id comes from somewhere, too"
            raise InvalidSetting(f"{flaw}; add --id-from, for example --id-from key")

        if "delay_from" in places and "scheduled_at_from" in places:
            raise InvalidSetting("--delay-from: says when, as --scheduled-at-from does; use one of the two")
        if delay_unit is not None and "delay_from" not in places:
            raise InvalidSetting("--delay-unit: says how --delay-from counts; add --delay-from, or leave it out")

        kind_origin = None if kind is None else _read_kind(kind)
        id_origin = None if id_from is None else read_origin("--id-from", id_from, may_be_key=True)
        return cls(
            kind=kind_origin,
            id_from=id_origin,
            payload_from=places.pop("payload_from", None),
            extras=tuple((name.removesuffix("_from"), origin) for name, origin in places.items()),
            delay_unit=delay_unit or "milliseconds",
        )

    @classmethod
    def of_schedules(cls, kind: str, schedules: ScheduleOptions, **mapping: str | None) -> Self:
        """Give the options for schedules as messages of a kind; raises InvalidSetting for any option of a mapping."""
        if given := next((name for name, text in mapping.items() if text is not None), None):
            flaw = f"{_name_option(given)}: can't be used with --format {FORMAT}, whose headers say everything"
            raise InvalidSetting(f"{flaw}; leave it out")
        if not isinstance(name := _read_kind(kind), str):
            raise InvalidSetting(f"--kind: is {name}, but with --format {FORMAT} it must be a kind, for example topic")
        return cls(kind=name, id_from=KEY, schedules=schedules)

    @classmethod
    def of_changes(cls, *, kind: str | None = None, id_from: str | None = None, **mapping: str | None) -> Self:
        """Read the options for changes of Debezium: the id is the row's key unless named; raises InvalidSetting."""
        options = cls.read(kind=kind, id_from=id_from or "key", **mapping)
        name = options.kind
        if name is None or (isinstance(name, Origin) and name.part != "header"):
            flaw = f"has to be told with --format {DEBEZIUM}, also for records without a value"
            raise InvalidSetting(f"--kind: {flaw}; write a kind, or header:NAME")
        return replace(options, changes=ChangeOptions(name, options.id_from or KEY))

    def check_kind(self, rules: EnvelopeRules) -> None:
        """Raise InvalidSetting when `--kind` is one that no handler is loaded for."""
        if isinstance(self.kind, str) and self.kind not in rules.kinds:
            known = ", ".join(sorted(rules.kinds)) or "none at all"
            raise InvalidSetting(f"--kind: no handler for {self.kind!r} is loaded; loaded: {known}")


def _name_option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read_kind(text: str) -> str | Origin:
    if text.startswith(("header:", "/")):  # no kind holds ':' or '/'
        return read_origin("--kind", text)
    try:
        parse_envelope({"kind": text, "id": "-"}, EnvelopeRules({text: "short"}))
    except InvalidEnvelope as exc:
        raise InvalidSetting(f"--kind: {exc.problem}; or write header:NAME or a JSON pointer") from exc
    return text


def map_fields(options: FormatOptions, view: RecordView) -> dict[str, Any]:
    """Give the envelope fields that the options name; kind and id only if they name them. Raises DeadRecord.

    An optional field whose origin is null or absent keeps its default; kind, id and payload must be there.
    Whole numbers are valid ids and tenants, and become text ("42"), because a key holds them as text as well.
    A payload in a header is parsed as JSON.
    """
    fields: dict[str, Any] = {}
    if options.kind is not None:
        fields["kind"] = find_kind(options.kind, view)
    if options.id_from is not None:
        fields["id"] = to_id(find_required("id", options.id_from, view))

    for name, origin in options.extras:
        value = origin.find(view)
        if value is not MISSING and value is not None:
            if name == "delay":
                fields["scheduled_at"] = read_delay(value, options.delay_unit, view.timestamp)
            else:
                fields[name] = _convert(name, value, origin)

    payload = view.document
    if (origin := options.payload_from) is not None:
        payload = find_required("payload", origin, view, may_be_null=True)
        if origin.part == "header":
            payload = read_json(payload, "payload")

    return {**fields, "payload": payload}


def find_kind(kind: str | Origin, view: RecordView) -> Any:
    """Give the kind that `--kind` names; raises DeadRecord when the record does not have it."""
    return kind if isinstance(kind, str) else find_required("kind", kind, view)


def find_required(name: str, origin: Origin, view: RecordView, *, may_be_null: bool = False) -> Any:
    """Give the value of a required field; raises DeadRecord when it is absent, or null where that is no value."""
    value = origin.find(view)
    if value is MISSING or (value is None and not may_be_null):
        raise DeadRecord("MissingField", f"is missing: there is no {origin}; send it", name)
    return value


def find_deleted_id(id_from: Origin, view: RecordView) -> Any:
    """Give the id of a deleted row; raises DeadRecord where neither its last state nor its key has it."""
    try:
        return to_id(find_required("id", id_from, view))
    except DeadRecord as exc:
        if exc.error_class != "MissingField":
            raise
        flaw = f"is missing in what a delete tells of its row: there is no {id_from}"
        remedy = "take the id from the key, or let the database tell whole rows (REPLICA IDENTITY FULL)"
        raise DeadRecord("MissingField", f"{flaw}; {remedy}", "id") from exc


def check_same_id(id_from: Origin, view: RecordView, before: Any) -> None:
    """Raise DeadRecord for an update that gives a row another id: the message of the old one would live on."""
    if id_from.part != "value":
        return
    old, new = (to_id(id_from.find(replace(view, document=row))) for row in (before, view.document))
    if old not in (MISSING, None) and old != new:
        flaw = f"was {str(old)[:60]!r} and became {str(new)[:60]!r} by an update, which one record can't follow"
        raise DeadRecord("InvalidField", f"{flaw}; stop the old message by hand, or take the id from the key", "id")


def _convert(name: str, value: Any, origin: Origin) -> Any:
    if name == "priority" and origin.part == "header":
        # any other value is left to the envelope's own check
        return int(value) if value in {"1", "2", "3", "4", "5"} else value
    return to_id(value) if name == "tenant" else value


def to_id(value: Any) -> Any:
    """Give a whole number as text, which a key holds as text as well; anything else as it is."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
