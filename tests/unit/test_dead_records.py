"""Why a record is dead: programs get a class, people one sentence, and each flaw of an option is found beforehand."""

import pytest

from shared.errors import InvalidEnvelope, InvalidSetting
from shared.messages.envelope import parse_envelope
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.records.record import ERROR_CLASSES, Record
from tests.support.record_samples import BINARY, EVENT, MAPPED, RULES, STRUCTURED, Options, record, refuse

DEAD: list[tuple[Record, Options, str, str, str]] = [
    (record(b""), {}, "NotJson", "value", "is no JSON (expecting value at character 1)"),
    (record(b"{"), {}, "NotJson", "value", "is no JSON"),
    (record(b"[" * 100_000), {}, "NotJson", "value", "is nested deeper than 64 levels"),
    (record(b"NaN"), MAPPED, "NotJson", "value", "holds NaN, which JSON does not know"),
    (record(b"9" * 4301), MAPPED, "NotJson", "value", "more than 4300 digits"),
    (record(1, {"b": b"text"}), MAPPED | {"payload_from": "header:b"}, "NotJson", "payload", "is no JSON"),
    (record(b"\xff"), {}, "NotUtf8", "value", "is not UTF-8 text (byte 1)"),
    (record(1, key=b"a\xff"), MAPPED, "NotUtf8", "key", "is not UTF-8 text (byte 2); send UTF-8"),
    (record(None, key=b"\xff"), {}, "NotUtf8", "key", "is not UTF-8 text (byte 1)"),
    (
        record(1, {"id": b"\xff"}),
        {"kind": "feed", "id_from": "header:id"},
        "NotUtf8",
        "header id",
        "is not UTF-8 text",
    ),
    (record(1, BINARY | {"ce_subject": b"\xff"}), {}, "NotUtf8", "ce_subject", "is not UTF-8 text"),
    (
        record({"kind": "feed", "id": "a"}, {"correlation_id": b"\xff"}),
        {},
        "NotUtf8",
        "correlation_id",
        "is not UTF-8 text",
    ),
    (record([]), {}, "NotAnObject", "value", "send an envelope, or map it with --id-from"),
    (record(b"null"), {"kind": "feed"}, "NotAnObject", "value", "is no JSON object"),
    (record([EVENT], (STRUCTURED,)), {}, "NotAnObject", "value", "is no JSON object; send one CloudEvent"),
    (record(b"x" * 1_000_001), {}, "TooLarge", "record", "is 1000004 bytes with key and headers"),
    (record(1, {"h": b"x" * 999_999}), {}, "TooLarge", "record", "the limit is 1000000"),
    (record(None, key=b"x" * 1_000_001), {}, "TooLarge", "record", "is 1000001 bytes"),
    (record(b'"' + b"x" * 1_000_000), {}, "TooLarge", "record", "the limit is 1000000"),
    (record("x" * 600), MAPPED, "TooLarge", "payload", "is 602 bytes of JSON, the limit is 512"),
    (record({"kind": "x", "id": "a"}), {}, "UnknownKind", "kind", "no handler for 'x' is loaded"),
    (record(None, key=b"x:1"), {}, "UnknownKind", "kind", "no handler for 'x' is loaded"),
    (
        record(1, BINARY | {"ce_type": b"com.example.x"}),
        {},
        "UnknownKind",
        "kind",
        (
            "as the event's type no handler for 'com.example.x' is loaded; "
            "loaded: feed, report; or start the bridge with --kind"
        ),
    ),
    (record({"schema_version": 2, "new": 1}), {}, "UnknownSchemaVersion", "schema_version", "reads schema_version 1"),
    (record({"schema_version": "1"}), {}, "UnknownSchemaVersion", "schema_version", "is '1'"),
    (record({"kind": "feed"}), {}, "MissingField", "id", "is missing"),
    (record({"id": "a"}), {}, "MissingField", "kind", "is missing"),
    (record({"n": 1}), {"id_from": "key"}, "MissingField", "kind", "is missing"),
    (record({"id": "a"}), {"kind": "header:k"}, "MissingField", "kind", "there is no header 'k'; send it"),
    (
        record({"n": 1}),
        {"kind": "feed", "id_from": "/n/id"},
        "MissingField",
        "id",
        "is missing: there is no '/n/id' in the value; send it",
    ),
    (record([1]), {"kind": "feed", "id_from": "/1"}, "MissingField", "id", "no '/1' in the value"),
    (record([1]), {"kind": "feed", "id_from": "/00"}, "MissingField", "id", "no '/00' in the value"),
    (record([1]), {"kind": "feed", "id_from": "/-"}, "MissingField", "id", "no '/-' in the value"),
    (record([1]), {"kind": "feed", "id_from": "/" + "9" * 5000}, "MissingField", "id", "in the value"),
    (record({"id": None}), {"kind": "feed", "id_from": "/id"}, "MissingField", "id", "no '/id'"),
    (record(1, (("id", None),)), {"kind": "feed", "id_from": "header:id"}, "MissingField", "id", "no header 'id'"),
    (record({}), MAPPED | {"payload_from": "/p"}, "MissingField", "payload", "no '/p' in the value"),
    (record(None, key=b"42"), {}, "MissingField", "kind", "give the tombstone a key like kind:id, or use --kind"),
    (record(None), {"kind": "feed", "id_from": "header:id"}, "MissingField", "id", "no header 'id'"),
    (record({"kind": "feed", "id": 7.5}), {}, "InvalidField", "id", "is 7.5, no whole number"),
    (record({"kind": "feed", "id": "a", "x": 1}), {}, "InvalidField", "x", "is not a field of the envelope"),
    (record({"kind": "report", "id": "a"}), {"kind": "feed"}, "InvalidField", "kind", "but --kind says 'feed'"),
    (record({"id": True}), {"kind": "feed", "id_from": "/id"}, "InvalidField", "id", "must be a string"),
    (record(1, key=b""), MAPPED, "InvalidField", "id", "is empty"),
    (record(None, key=b"feed:"), {}, "InvalidField", "id", "is empty"),
    (record(None, key=b":a"), {}, "InvalidField", "kind", "is ''"),
    (record({"p": "2"}), MAPPED | {"priority_from": "/p"}, "InvalidField", "priority", "is '2'"),
    (record(1, {"p": b"9"}), MAPPED | {"priority_from": "header:p"}, "InvalidField", "priority", "is '9'"),
    (record(1, {"correlation-id": b"c" * 201}), MAPPED, "InvalidField", "correlation_id", "is 201 bytes"),
    (
        record(1, BINARY | {"ce_type": b"com.example.Order"}),
        {},
        "InvalidField",
        "kind",
        "as the event's type is 'com.example.Order'; use lower-case letters",
    ),
    (record(EVENT | {"correlationid": 1.5}, (STRUCTURED,)), {}, "InvalidField", "correlation_id", "must be a string"),
    (record(1, key=None), MAPPED, "MissingKey", "key", "is null, but the id comes from it"),
    (record(None, key=None), {}, "MissingKey", "key", "is null"),
    (record(None, key=None), {"kind": "feed"}, "MissingKey", "key", "produce records with a key"),
    (record(1, BINARY, None), {"id_from": "key"}, "MissingKey", "key", "is null"),
    (record(1, BINARY | {"ce_specversion": b"0.3"}), {}, "CloudEventProblem", "ce_specversion", "is '0.3'"),
    (record(1, {"ce_specversion": b"1.0"}), {}, "CloudEventProblem", "ce_id", "is missing"),
    (record(1, BINARY | {"ce_source": b""}), {}, "CloudEventProblem", "ce_source", "string that is not empty"),
    (record(1, BINARY | {"ce_subject": b""}), {}, "CloudEventProblem", "ce_subject", "string that is not empty"),
    (
        record(1, BINARY | {"content-type": b"application/avro"}),
        {},
        "CloudEventProblem",
        "content-type",
        "is 'application/avro'; send data as application/json",
    ),
    (
        record(EVENT, {"content-type": b"application/cloudevents+avro"}),
        {},
        "CloudEventProblem",
        "content-type",
        "send events as application/cloudevents+json",
    ),
    (record({"data": 1}, (STRUCTURED,)), {}, "CloudEventProblem", "specversion", "is missing"),
    (record(EVENT | {"id": 7}, (STRUCTURED,)), {}, "CloudEventProblem", "id", "must be a string"),
    (
        record(EVENT | {"data": 1, "data_base64": "MQ=="}, (STRUCTURED,)),
        {},
        "CloudEventProblem",
        "data_base64",
        "stands beside data",
    ),
    (record(EVENT | {"data_base64": 1}, (STRUCTURED,)), {}, "CloudEventProblem", "data_base64", "is no string"),
    (record(EVENT | {"data_base64": "M"}, (STRUCTURED,)), {}, "CloudEventProblem", "data_base64", "is no Base64"),
    (record(EVENT | {"data_base64": "M!Q=="}, (STRUCTURED,)), {}, "CloudEventProblem", "data_base64", "is no Base64"),
    (record(EVENT | {"data_base64": "ö"}, (STRUCTURED,)), {}, "CloudEventProblem", "data_base64", "is no Base64"),
    (record(EVENT | {"data_base64": "ew=="}, (STRUCTURED,)), {}, "NotJson", "data_base64", "is no JSON"),
    (
        record(EVENT | {"data_base64": "MQ==", "datacontenttype": "image/png"}, (STRUCTURED,)),
        {},
        "CloudEventProblem",
        "datacontenttype",
        "is 'image/png'",
    ),
]

BAD_OPTIONS: list[tuple[Options, str]] = [
    ({"kind": "Feed"}, "--kind: is 'Feed'; use lower-case letters"),
    ({"kind": ""}, "--kind: is ''"),
    ({"kind": "unheard-of"}, "--kind: no handler for 'unheard-of' is loaded; loaded: feed, report"),
    ({"kind": "header:"}, "--kind: names the header ''; write header:NAME"),
    ({"kind": "header: x"}, "--kind: names the header ' x'"),
    ({"id_from": ""}, "--id-from: is ''; write key, key:/PART, header:NAME or a JSON pointer"),
    ({"id_from": "order.id"}, "--id-from: is 'order.id'; write key, key:/PART, header:NAME or a JSON pointer"),
    ({"id_from": "/a~2"}, "--id-from: has a '~' at position 3 that escapes nothing; write ~0"),
    ({"id_from": "key:/a~2"}, "--id-from: has a '~' at position 3 that escapes nothing; write ~0"),
    (MAPPED | {"lane_from": "key:/a"}, "--lane-from: is 'key:/a'; write header:NAME or a JSON pointer"),
    ({"id_from": "/a~"}, "--id-from: has a '~' at position 3"),
    ({"id_from": "header:a\nb"}, "--id-from: names the header 'a\\nb'"),
    (MAPPED | {"lane_from": "key"}, "--lane-from: is 'key'; write header:NAME or a JSON pointer"),
    (MAPPED | {"scheduled_at_from": "at"}, "--scheduled-at-from: is 'at'"),
    (MAPPED | {"priority_from": "2"}, "--priority-from: is '2'"),
    (MAPPED | {"tenant_from": "acme"}, "--tenant-from: is 'acme'"),
    (MAPPED | {"payload_from": ""}, "--payload-from: is ''"),
    ({"kind": "feed", "payload_from": "/p"}, "--payload-from: maps records whose id comes from somewhere, too; add"),
]


@pytest.mark.parametrize(("given_record", "options", "error_class", "field", "phrase"), DEAD, ids=range(len(DEAD)))
def test_a_dead_record_says_why(
    given_record: Record, options: Options, error_class: str, field: str, phrase: str
) -> None:
    """Programs get a class to select by, people one sentence that names the field."""
    error = refuse(given_record, **options)

    assert (error.error_class, error.field) == (error_class, field)
    assert phrase in error.reason
    assert str(error) == f"{field}: {error.reason}"
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("value", [b"\xff", b"{", b"[]", b'{"id": "a"}', b'{"schema_version": 2}', b'{"kind": 1}'])
def test_a_dead_envelope_has_the_class_that_its_flaw_has_elsewhere(value: bytes) -> None:
    """What refuses a line of a file refuses a record, under the same name."""
    with pytest.raises(InvalidEnvelope) as caught:
        parse_envelope(value, RULES)

    assert caught.value.flaw == refuse(record(value)).error_class


def test_every_error_class_is_seen() -> None:
    """No class exists on paper only."""
    assert {row[2] for row in DEAD} == set(ERROR_CLASSES)


@pytest.mark.parametrize(("options", "sentence"), BAD_OPTIONS)
def test_a_bad_option_is_refused_before_any_record_is_read(options: Options, sentence: str) -> None:
    """The sentence names the option, its problem and what to write."""
    with pytest.raises(InvalidSetting) as caught:
        Formats(FormatOptions.read(**options), RULES)

    assert str(caught.value).startswith(sentence)


def test_the_largest_record_is_read() -> None:
    """The limit counts value, key, and names and values of headers, and is reachable."""
    maximum = b'"' + b"x" * (1_000_000 - 7) + b'"'

    assert refuse(record(maximum, {"h": b"x"}, b"k-1"), **MAPPED).field == "payload"  # and not the record
    assert refuse(record(maximum, {"h": b"xx"}, b"k-1"), **MAPPED).field == "record"
