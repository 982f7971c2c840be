"""The converter: how payloads become Python values; they are those of the SDK's own, read in half the time."""

from dataclasses import replace
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
    value_to_type,
)

from shared.json_value import decode_json


class _JsonConverter(JSONPlainPayloadConverter):
    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        try:
            value = decode_json(payload.data)
        except ValueError:  # NaN, for one, which others may send: what to say about it is the receiver's business
            return super().from_payload(payload, type_hint)
        return value if type_hint is None else value_to_type(type_hint, value)


class PayloadConverter(CompositePayloadConverter):
    """The SDK's own converters, but for the one that reads JSON: a pack that wakes reads a hundred kilobytes of it."""

    def __init__(self) -> None:
        """Take the SDK's, in its order."""
        usual = DefaultPayloadConverter.default_encoding_payload_converters
        super().__init__(*(_JsonConverter() if isinstance(c, JSONPlainPayloadConverter) else c for c in usual))


DATA_CONVERTER = replace(DataConverter.default, payload_converter_class=PayloadConverter)
