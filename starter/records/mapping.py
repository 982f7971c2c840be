"""The mapping: which parts of any JSON record become which fields of an envelope, as options say."""

from dataclasses import dataclass
from typing import Any, Self

from shared.errors import InvalidEnvelope, InvalidSetting
from shared.messages.envelope import EnvelopeRules, parse_envelope
from starter.records.origins import MISSING, FieldRef, HeaderOrigin, Origin, RecordView, read_field_ref, read_origin
from starter.records.record import DeadRecord, read_json

RECORD_MAX_BYTES = 1_000_000
"""Larger records become dead letters without being parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """How the records of a topic are to be read.

    `kind` is a kind, or the header or JSON pointer that names it; without `id_from` it gives the kind of envelopes,
    CloudEvents and tombstones. With `id_from`, a value that is no CloudEvent is any JSON; `payload_from` and `extras`
    (origins of optional fields) need `id_from`.
    """

    kind: str | FieldRef | None = None
    id_from: Origin | None = None
    payload_from: FieldRef | None = None
    extras: tuple[tuple[str, FieldRef], ...] = ()
    record_max_bytes: int = RECORD_MAX_BYTES

    @classmethod
    def read(
        cls,
        *,
        kind: str | None = None,
        id_from: str | None = None,
        lane_from: str | None = None,
        scheduled_at_from: str | None = None,
        priority_from: str | None = None,
        tenant_from: str | None = None,
        payload_from: str | None = None,
        record_max_bytes: int = RECORD_MAX_BYTES,
    ) -> Self:
        """Read the options as typed, None for those left out; raises InvalidSetting that names the wrong one."""
        if record_max_bytes < 1:
            raise InvalidSetting(f"record_max_bytes: is {record_max_bytes}; give at least 1")
        typed = {
            "lane": lane_from,
            "scheduled_at": scheduled_at_from,
            "priority": priority_from,
            "tenant": tenant_from,
            "payload": payload_from,
        }
        places = {name: read_field_ref(_name_option(name), text) for name, text in typed.items() if text is not None}
        if places and id_from is None:
            raise InvalidSetting(
                f"{_name_option(next(iter(places)))}: maps records whose id comes from somewhere, too; add --id-from, "
                "for example --id-from key"
            )
        return cls(
            kind=None if kind is None else _read_kind(kind),
            id_from=None if id_from is None else read_origin("--id-from", id_from),
            payload_from=places.pop("payload", None),
            extras=tuple(places.items()),
            record_max_bytes=record_max_bytes,
        )

    def check_kind(self, rules: EnvelopeRules) -> None:
        """Raise InvalidSetting when `--kind` is one that no handler is loaded for."""
        if isinstance(self.kind, str) and self.kind not in rules.kinds:
            known = ", ".join(sorted(rules.kinds)) or "none at all"
            raise InvalidSetting(f"--kind: no handler for {self.kind!r} is loaded; loaded: {known}")


def _name_option(name: str) -> str:
    return f"--{name.replace('_', '-')}-from"


def _read_kind(text: str) -> str | FieldRef:
    if text.startswith(("header:", "/")):  # no kind holds ':' or '/'
        return read_field_ref("--kind", text)
    try:
        parse_envelope({"kind": text, "id": "-"}, EnvelopeRules({text: "short"}))
    except InvalidEnvelope as exc:
        raise InvalidSetting(f"--kind: {exc.problem}; or write header:NAME or a JSON pointer") from exc
    return text


def map_fields(options: FormatOptions, sight: RecordView) -> dict[str, Any]:
    """Give the envelope fields that the options name; kind and id only if they name them. Raises DeadRecord.

    An optional field whose origin is null or absent keeps its default; kind, id and payload must be there.
    Whole numbers are valid ids and tenants, and become text ("42"), because a key holds them as text as well.
    A payload in a header is parsed as JSON.
    """
    fields: dict[str, Any] = {}
    if options.kind is not None:
        fields["kind"] = find_kind(options.kind, sight)
    if options.id_from is not None:
        fields["id"] = _to_text(find_required("id", options.id_from, sight))
    for name, origin in options.extras:
        value = origin.find(sight)
        if value is not MISSING and value is not None:
            fields[name] = _convert(name, value, origin)
    fields["payload"] = sight.document if options.payload_from is None else _find_payload(options.payload_from, sight)
    return fields


def find_kind(kind: str | FieldRef, sight: RecordView) -> Any:
    """Give the kind that `--kind` names; raises DeadRecord when the record does not have it."""
    return kind if isinstance(kind, str) else find_required("kind", kind, sight)


def find_required(name: str, origin: Origin, sight: RecordView) -> Any:
    """Give the value of a required field; raises DeadRecord when it is absent or null."""
    value = origin.find(sight)
    if value is MISSING or value is None:
        raise DeadRecord("MissingField", f"is missing: there is no {origin}; send it", name)
    return value


def _find_payload(origin: FieldRef, sight: RecordView) -> Any:
    value = origin.find(sight)
    if value is MISSING:
        raise DeadRecord("MissingField", f"is missing: there is no {origin}; send it", "payload")
    return read_json(value, "payload") if isinstance(origin, HeaderOrigin) else value


def _convert(name: str, value: Any, origin: FieldRef) -> Any:
    if name == "priority" and isinstance(origin, HeaderOrigin):
        # any other value is left to the envelope's own check
        return int(value) if value in {"1", "2", "3", "4", "5"} else value
    return _to_text(value) if name == "tenant" else value


def _to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
