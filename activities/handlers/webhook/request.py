"""What a webhook is sent: the payload checked, the message as a JSON body, its headers and their signature."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from yarl import URL

from activities.api.context import Context
from activities.api.outcome import Message
from activities.handlers.webhook.signature import SIGNATURE_HEADER, read_signing_keys, sign
from activities.http.address_guard import AddressRefused
from activities.http.urls import read_url
from shared.errors import GiveUp
from shared.messages.json_value import encode_json
from shared.messages.timespan import format_exact

SCHEMA_VERSION = 1
FIELDS = ("url", "data", "headers", "strict")

_PLAIN = "!#$&'()*+,/:;=?@[]|"  # what an idempotency key keeps in a header, beside letters, digits and "_.-~"
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 §5.6.2
_VALUE = re.compile(r"[!-~](?:[ !-~]*[!-~])?")
_OWN_HEADERS = frozenset({"accept-encoding", "content-type", "idempotency-key", "traceparent", "tracestate"})
_CONNECTION_HEADERS = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)


class PayloadRefused(GiveUp):
    """A payload that no webhook can be sent for."""


@dataclass(frozen=True, slots=True)
class WebhookPlan:
    """What a payload asks for; `is_strict` is about how the answer is read."""

    url: URL
    data: Any
    headers: Mapping[str, str]
    is_strict: bool


def read_plan(payload: Any) -> WebhookPlan:
    """Read a payload; raises PayloadRefused."""
    if not isinstance(payload, Mapping):
        raise PayloadRefused('payload: is no object; write {"url": …, "data": …}')

    given = cast("Mapping[str, Any]", payload)
    if unknown := [name for name in given if name not in FIELDS]:
        raise PayloadRefused(f"payload.{unknown[0][:40]}: is not a field of a webhook; use {', '.join(FIELDS)}")
    if not isinstance(given.get("url"), str):
        raise PayloadRefused("payload.url: is missing; give the http or https address to post to, as a string")

    try:
        url = read_url(given["url"])
    except AddressRefused as exc:
        raise PayloadRefused(f"payload.url: {exc}") from exc

    return WebhookPlan(url, given.get("data"), _read_headers(given.get("headers")), _read_strict(given))


def _read_headers(given: Any) -> Mapping[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise PayloadRefused('payload.headers: is no object; write {"name": "value"}')

    for name, value in cast("Mapping[str, Any]", given).items():
        where = f"payload.headers.{name[:40]}"
        if not _NAME.fullmatch(name):
            raise PayloadRefused(f"{where}: is no name of a header; use letters, digits and '-'")
        if name.lower() in _OWN_HEADERS | _CONNECTION_HEADERS or name.lower().startswith("dormice-"):
            raise PayloadRefused(f"{where}: is a header that dormice sets itself; leave it out")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise PayloadRefused(f"{where}: is no value of a header; give a string of printable ASCII")

    return cast("Mapping[str, str]", given)


def _read_strict(given: Mapping[str, Any]) -> bool:
    value = given.get("strict", False)
    if not isinstance(value, bool):
        raise PayloadRefused(f"payload.strict: is {repr(value)[:60]}; give true or false")
    return value


def write_body(plan: WebhookPlan, message: Message, ctx: Context) -> bytes:
    """Give the body of the request: what identifies this call, and the payload's data."""
    body = {
        "schema_version": SCHEMA_VERSION,
        "kind": message.kind,
        "id": message.id,
        "version": message.version,
        "attempt": ctx.attempt,
        "lane": message.lane,
        "due_at": format_exact(ctx.due_at.timestamp()),
        "priority": message.priority,
        "tenant": message.tenant,
        "correlation_id": message.correlation_id,
        "data": plan.data,
    }
    return encode_json(body)


def write_headers(plan: WebhookPlan, message: Message, ctx: Context, body: bytes) -> dict[str, str]:
    """Give the headers of a request that is sent now; raises InvalidSetting if the key can't be read."""
    headers = {
        **plan.headers,
        **message.trace,
        "Accept-Encoding": "gzip",  # only gzip: the size of its output is limited while it is decoded
        "Content-Type": "application/json",
        "Idempotency-Key": quote(ctx.idempotency_key, safe=_PLAIN),
    }
    if keys := read_signing_keys(ctx.settings):
        headers[SIGNATURE_HEADER] = sign(body, int(time.time()), keys)
    return headers
