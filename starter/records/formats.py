"""Formats: what a record asks for, whether it is an envelope, a CloudEvent, any JSON or a tombstone."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shared.errors import InvalidEnvelope
from shared.messages.envelope import Envelope, EnvelopeRules, parse_envelope, parse_envelope_fast
from shared.messages.json_value import parse_plain_objects
from shared.messages.message import NO_TRACE
from starter.records.dead_letters import find_origin
from starter.records.decoders import StopRequest, choose_decoder
from starter.records.mapping import FormatOptions
from starter.records.producers.spring_headers import read_headers
from starter.records.record import DeadRecord, Headers, Record, read_text
from starter.starting.delivery import Delivery

RECORD_MAX_BYTES = 1_000_000
"""Larger records become dead letters without being parsed."""

ORDINARY_MAX_BYTES = RECORD_MAX_BYTES // 2
"""Key and value of ordinary records are not larger, so that both together are not too large."""

CORRELATION_HEADERS = ("correlation_id", "correlation-id")
TRACESTATE_MAX_BYTES = 512  # W3C Trace Context §3.3.1.5: the least that everybody propagates

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
        self._decoder = choose_decoder(options, rules)
        options.check_kind(rules)

    def decode_many(self, records: Sequence[Record]) -> Iterator[Delivery | DeadRecord]:
        """Say what each record asks for, or why it is dead, as `decode` does; ordinary records take half the time."""
        documents: Iterable[dict[str, Any] | None] = [None] * len(records)
        if self._options.schedules is None:  # else values need not be JSON
            values = (record.value or b"" for record in records)
            documents = parse_plain_objects([value if len(value) <= ORDINARY_MAX_BYTES else b"" for value in values])

        for record, document in zip(records, documents, strict=True):
            if document is not None and self._are_envelopes and not record.headers:
                envelope = parse_envelope_fast(document, self._rules)
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
        asked = self._decoder.read(record, headers, document)

        if isinstance(asked, StopRequest):
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
            return parse_envelope_fast(fields, rules) or parse_envelope(fields, rules)
        except InvalidEnvelope as exc:
            raise DeadRecord(exc.flaw, exc.problem, exc.field) from exc


def _check_size(record: Record) -> None:
    size = len(record.value or b"") + len(record.key or b"")
    if record.headers:
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
    if size > RECORD_MAX_BYTES:
        reason = f"is {size} bytes with key and headers, the limit is {RECORD_MAX_BYTES}; keep bulk data elsewhere"
        raise DeadRecord("TooLarge", reason, "record")


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
