"""Spans: how the work on one message is told, as its own code sees it; `shared.telemetry.sdk` knows who listens."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Protocol
from zlib import crc32

Attributes = Mapping[str, str | int | float]

Carrier = Mapping[str, str]
"""W3C Trace Context as headers: `traceparent`, and `tracestate` where there is one; empty for none."""

NOTHING: Mapping[str, str] = MappingProxyType({})
NO_LINKS: Mapping[str, Carrier] = MappingProxyType({})


class Span(Protocol):
    """One piece of work on one message."""

    @property
    def traceparent(self) -> str:
        """Its W3C Trace Context; empty when nobody listens."""
        ...

    @property
    def ids(self) -> Mapping[str, str]:
        """What log lines about the work bear: `trace_id` and `span_id`; empty when nobody listens."""
        ...

    def around(self) -> AbstractContextManager[None]:
        """Be the current span of the code in a `with` block, so that spans begun there are its children."""
        ...

    def end(self, attributes: Attributes, error: str = "") -> None:
        """Say that the work is over; `error` names what went wrong, unless an exception has left the block, which does."""
        ...


class _NoSpan:
    traceparent = ""
    ids = NOTHING
    _around = nullcontext()

    def around(self) -> AbstractContextManager[None]:
        return self._around

    def end(self, attributes: Attributes, error: str = "") -> None:
        pass


NO_SPAN: Span = _NoSpan()
"""The work on a message that is not among the sampled ones, or that nobody listens to."""

_MIX = 0x9E3779B1  # Knuth's multiplicative hash: consecutive ids, whose checksums resemble each other, are torn apart


def draw(name: bytes) -> float:
    """Map a workflow id to [0, 1), the same in every process: a message is sampled as a whole, or not at all.

    It is asked for every record and every cycle, so it is the quickest hash there is, and another one than what spreads
    due times: else all that are sampled would be due at the beginning of their tolerance.
    """
    return (crc32(name) * _MIX & 0xFFFFFFFF) / 2**32
