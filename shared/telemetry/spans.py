"""Spans: how the work on one message is traced; `shared.telemetry.sdk` has the spans that are exported."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any
from zlib import crc32

Attributes = Mapping[str, str | int | float]
Carrier = Mapping[str, str]  # W3C Trace Context as headers: `traceparent`, perhaps `tracestate`; empty for none
NOTHING: Mapping[str, Any] = MappingProxyType({})
_NOTHING_AROUND = nullcontext()


class Span:
    """One piece of work on one message; this class is for work that is not sampled or not exported."""

    traceparent = ""  # its W3C Trace Context
    ids: Mapping[str, str] = NOTHING  # fields of log lines about the work: `trace_id` and `span_id`

    def around(self) -> AbstractContextManager[None]:
        """Make this the current span in a `with` block, so that spans begun there are its children."""
        return _NOTHING_AROUND

    def end(self, attributes: Attributes, error: str = "") -> None:
        """End the span; `error` names what went wrong, but an exception that left the block comes first."""


NO_SPAN = Span()

_MIX = 0x9E3779B1  # Knuth's multiplicative hash: spreads consecutive ids, whose checksums resemble each other


def draw(name: bytes) -> float:
    """Map a workflow id to [0, 1), the same in every process: a message is sampled as a whole, or not at all.

    Called for every record and every cycle, so it is the fastest hash there is. It must differ from the hash that
    spreads due times: otherwise all sampled messages would be due at the beginning of their tolerance.
    """
    return (crc32(name) * _MIX & 0xFFFFFFFF) / 2**32
