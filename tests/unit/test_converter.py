"""The converter: whatever reads payloads here reads what any SDK writes, and the SDK's own reads what we write."""

import math
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DataConverter

from shared.temporal.converter import DATA_CONVERTER

OURS = DATA_CONVERTER.payload_converter
USUAL = DataConverter.default.payload_converter


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"\x00\xff",
        {"due_at": 1795291200.123, "payload": {"url": "https://example.org/\u20ac"}, "list": [1, None, True, ""]},
        2**63,
        -(10**30),
        "text",
        0.1,
    ],
)
def test_values_are_read_as_the_sdk_reads_and_writes_them(value: Any) -> None:
    """To the digit and to the type, in both directions."""
    for writer, reader in ((OURS, USUAL), (USUAL, OURS)):
        (read,) = reader.from_payloads(writer.to_payloads([value]))
        assert (read, type(read)) == (value, type(value))


def test_what_is_no_json_by_the_book_is_read_as_the_sdk_reads_it() -> None:
    """Another SDK's NaN reaches whoever has something to say about it."""
    (read,) = OURS.from_payloads(
        [Payload(metadata={"encoding": b"json/plain"}, data=b'{"delay":NaN}')], [dict[str, Any]]
    )

    assert math.isnan(read["delay"])


def test_what_is_not_to_be_read_is_not() -> None:
    """A raw value stays bytes."""
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b"{")

    assert OURS.from_payloads([payload], [RawValue]) == [RawValue(payload)]


def test_what_is_no_json_at_all_is_refused() -> None:
    """With the SDK's own error, which its callers know; it names the payload."""
    with pytest.raises(RuntimeError, match="could not be converted"):
        OURS.from_payloads([Payload(metadata={"encoding": b"json/plain"}, data=b"{")], [dict[str, Any]])


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        (b"json/plain", b"{"),
        (b"json/plain", b"\xff\xfe"),
        (b"json/plain", b"[" * 100_000),
        (b"json/plain", b"1" * 5000),
        (b"json/protobuf", b"{}"),
        (b"binary/protobuf", b"\xff"),
        (b"binary/encrypted", b"\xff"),
        (b"\xff\xfe", b""),
        (b"", b""),
    ],
)
def test_what_nobody_names_a_type_for_is_kept_raw_where_it_cant_be_read(encoding: bytes, data: bytes) -> None:
    """Handlers of signals get it that way: whatever somebody sent, reading it raises nothing."""
    payload = Payload(metadata={"encoding": encoding}, data=data)

    assert OURS.from_payloads([payload]) == [RawValue(payload)]
