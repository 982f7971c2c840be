"""Compression: what is compressed reads as what it was, and nothing that somebody sends fills the memory."""

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from shared.messages.json_value import encode_json
from shared.temporal.compression import COMPRESSED_MIN, EXPANDED_MAX, ZLIB, compress, decompress
from shared.temporal.converter import DATA_CONVERTER

CONVERTER = DATA_CONVERTER.payload_converter
JSON = {"encoding": b"json/plain"}


def zipped(payload: Payload) -> Payload:
    """Give a payload as others may compress it, whatever its size."""
    return Payload(metadata={"encoding": ZLIB}, data=zlib.compress(payload.SerializeToString()))


@given(st.recursive(st.none() | st.integers(-(2**53), 2**53) | st.text(), st.lists, max_leaves=20))
def test_a_compressed_value_is_read_as_if_it_were_not(value: Any) -> None:
    """With and without a type, and small values stay as they are."""
    payload = Payload(metadata=JSON, data=encode_json([value, "x" * COMPRESSED_MIN]))
    small = Payload(metadata=JSON, data=b"[1]")
    compressed = compress(payload)

    assert len(compressed.data) < len(payload.data)
    assert CONVERTER.from_payloads([compressed]) == CONVERTER.from_payloads([payload])
    assert CONVERTER.from_payloads([compressed], [list[Any]]) == CONVERTER.from_payloads([payload], [list[Any]])
    assert decompress(compressed) == payload
    assert compress(small) == decompress(small) == small


@pytest.mark.parametrize(
    "payload",
    [
        Payload(metadata={"encoding": ZLIB}, data=b"no zlib"),
        Payload(metadata={"encoding": ZLIB}, data=b""),
        Payload(metadata={"encoding": ZLIB}, data=zlib.compress(b"\xff no payload")),
        Payload(metadata={"encoding": ZLIB}, data=zipped(Payload(metadata=JSON, data=b"[1]")).data[:-5]),
        zipped(Payload(metadata=JSON, data=b"{")),
        zipped(Payload(metadata={"encoding": b"json/protobuf"}, data=b"{}")),
        zipped(zipped(Payload(metadata=JSON, data=b"[1]"))),
        zipped(Payload(metadata=JSON, data=b" " * EXPANDED_MAX + b"1")),
    ],
    ids=["no zlib", "empty", "no payload", "cut off", "no JSON", "other encoding", "compressed twice", "too large"],
)
def test_what_expands_to_no_readable_value_is_kept_raw(payload: Payload) -> None:
    """A signal with such an argument is ignored; a call with it fails, and says why."""
    assert CONVERTER.from_payloads([payload]) == [RawValue(payload)]
    with pytest.raises((ValueError, RuntimeError)):
        CONVERTER.from_payloads([payload], [dict[str, Any]])


def test_no_payload_expands_to_more_than_the_limit() -> None:
    """Two megabytes of zlib could fill two gigabytes of memory; reading stops at the limit instead."""
    bomb = Payload(metadata={"encoding": ZLIB}, data=zlib.compress(b"\0" * (100 * EXPANDED_MAX)))

    with pytest.raises(ValueError, match="expands to more than 4,000,000 bytes"):
        decompress(bomb)
