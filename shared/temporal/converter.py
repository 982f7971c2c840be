"""The converter: how payloads become Python values; they are those of the SDK's own, read in half the time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    JSONPlainPayloadConverter,
    value_to_type,
)

from shared.errors import PayloadKeyMissing
from shared.messages.json_value import decode_json

ENCODING = b"binary/encrypted"
"""How Temporal's own samples mark what they have encrypted, in the same layout: their codec servers read ours."""

UNOPENED = "unopened"
"""Metadata of what a worker could not decrypt: why not."""


class _JsonConverter(JSONPlainPayloadConverter):
    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        try:
            value = decode_json(payload.data)
        except ValueError:  # NaN, for one, which others may send: what to say about it is the receiver's business
            return super().from_payload(payload, type_hint)
        return value if type_hint is None else value_to_type(type_hint, value)


class _SealedConverter(EncodingPayloadConverter):
    """Refuses what is still encrypted when it is to be converted."""

    @property
    def encoding(self) -> str:
        return ENCODING.decode()

    def to_payload(self, value: Any) -> Payload | None:  # noqa: ARG002 — nothing is written by it
        return None

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:  # noqa: ARG002 — the SDK's signature
        raise PayloadKeyMissing(payload.metadata.get(UNOPENED, b"it is encrypted").decode(errors="replace"))


class PayloadConverter(CompositePayloadConverter):
    """The SDK's own converters, but for the one that reads JSON: a pack that wakes reads a hundred kilobytes of it.

    Where nobody names a type, a payload that can't be read is given as RawValue instead of raising: that is how handlers
    of signals get their arguments, which are whatever somebody sent (see `workflows.replay.signal_handlers`).
    """

    def __init__(self) -> None:
        """Take the SDK's, in its order."""
        usual = DefaultPayloadConverter.default_encoding_payload_converters
        super().__init__(
            *(_JsonConverter() if isinstance(c, JSONPlainPayloadConverter) else c for c in usual), _SealedConverter()
        )

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Read payloads; those without a type hint never raise."""
        if type_hints is None:
            return [self._read_or_keep(payload) for payload in payloads]
        return super().from_payloads(payloads, type_hints)

    def _read_or_keep(self, payload: Payload) -> Any:
        try:
            return super().from_payloads([payload])[0]
        except (LookupError, RuntimeError, ValueError, TypeError, DecodeError, PayloadKeyMissing):
            return RawValue(payload)  # an unknown encoding, broken data, or no key for it


DATA_CONVERTER = replace(DataConverter.default, payload_converter_class=PayloadConverter)
