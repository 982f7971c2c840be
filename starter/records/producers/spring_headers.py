"""Headers as Spring and others write them: values in quotes, and other prefixes for the attributes of CloudEvents."""

import contextlib

from shared.messages.json_value import parse_json
from starter.records.record import Headers

SPRING_TYPES = "spring_json_header_types"
"""The header by which Spring's own reader knows the types of the others: it writes many of them as JSON."""

EVENT_PREFIX = "ce_"
"""What the Kafka protocol binding of CloudEvents says."""

_VERSION = "specversion"
_OTHER_PREFIXES = frozenset({"ce_", "ce-", "cloudevents_", "cloudevents:"})  # those of HTTP and AMQP, in any case


def read_headers(pairs: tuple[tuple[str, bytes | None], ...]) -> Headers:
    """Give a record's headers by name, as they would be without Spring: no quotes, attributes of events under `ce_`.

    Quotes are a part of the text, unless the record has Spring's own header, or a version of CloudEvents in quotes.
    """
    headers: Headers = dict(pairs)
    if not pairs:  # as most are
        return headers

    prefix = next((found for found in map(_find_prefix, headers) if found), EVENT_PREFIX)
    if SPRING_TYPES in headers or _is_quoted(headers.get(prefix + _VERSION)):
        headers = {name: _unquote(raw) for name, raw in headers.items()}
        headers.setdefault("content-type", headers.get("contentType"))

    if prefix != EVENT_PREFIX and EVENT_PREFIX + _VERSION not in headers:
        attributes = [name for name in headers if name.startswith(prefix)]
        headers |= {EVENT_PREFIX + name.removeprefix(prefix).lower(): headers[name] for name in attributes}
    return headers


def _find_prefix(name: str) -> str:
    """Give what stands before the version of CloudEvents in a header's name; empty for any other header."""
    small = name.lower()
    is_version = small.endswith(_VERSION) and small.removesuffix(_VERSION) in _OTHER_PREFIXES
    return name[: -len(_VERSION)] if is_version else ""


def _is_quoted(raw: bytes | None) -> bool:
    return raw is not None and len(raw) > 1 and raw.startswith(b'"') and raw.endswith(b'"')


def _unquote(raw: bytes | None) -> bytes | None:
    if raw is None or not _is_quoted(raw):
        return raw
    with contextlib.suppress(ValueError):
        text = parse_json(raw)
        if isinstance(text, str):
            return text.encode()
    return raw
