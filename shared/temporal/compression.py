"""Compression: large values of packs travel as zlib, in the form of the compressing codec of Temporal's SDK for Go."""

import zlib

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload

ZLIB = b"binary/zlib"  # the data is the compressed form of a whole Payload
LEVEL = 1  # a state of 151 KB becomes 40 KB in 1.2 ms; higher levels take several times as long for a tenth less
COMPRESSED_MIN = 2_000  # bytes; what is smaller gains nothing on disk
EXPANDED_MAX = 4_000_000
"""Most bytes that a payload may expand to. The server takes 2 MB at once, of which zlib could make 2 GB, and whoever
sends a signal decides what is in it."""


def compress(payload: Payload) -> Payload:
    """Compress a payload if it is large; reading it back gives the same payload."""
    if len(payload.data) < COMPRESSED_MIN:
        return payload
    return Payload(metadata={"encoding": ZLIB}, data=zlib.compress(payload.SerializeToString(), LEVEL))


def measure_share(data: bytes) -> float:
    """Give the size of data after compression, as a share of its size."""
    return len(zlib.compress(data, LEVEL)) / len(data)


def decompress(payload: Payload) -> Payload:
    """Expand a compressed payload, others pass; raises ValueError if it is broken, or larger than EXPANDED_MAX."""
    if payload.metadata.get("encoding") != ZLIB:
        return payload
    expanding = zlib.decompressobj()
    try:
        expanded = expanding.decompress(payload.data, EXPANDED_MAX)
        if not expanding.eof:
            raise ValueError(f"a compressed value is cut off, or expands to more than {EXPANDED_MAX:,} bytes")
        return Payload.FromString(expanded)
    except (zlib.error, DecodeError) as exc:
        raise ValueError(f"a compressed value can't be read ({exc})") from exc
