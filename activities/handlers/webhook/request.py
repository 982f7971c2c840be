"""What a webhook is sent: the payload checked, the message as a JSON body, its headers and their signature."""

import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx

from activities.api.context import Context
from activities.api.outcome import Message
from activities.http.address_guard import AddressRefused, read_url
from shared.errors import GiveUp, InvalidSetting
from shared.messages.json_value import encode_json
from shared.messages.timespan import format_exact
from shared.settings import Settings, read_secret

SETTING = "webhook_key_file"
KEYS_MAX = 2  # the present key, and while it is replaced the other one
KEY_MIN_CHARACTERS = 16
SIGNATURE_HEADER = "Dormice-Signature"
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

    url: httpx.URL
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


def sign(body: bytes, timestamp: int, keys: tuple[bytes, ...]) -> str:
    """Give the signature header: HMAC-SHA256 of "TIMESTAMP.BODY" with each key, as hexadecimal digits."""
    signed = b"%d.%b" % (timestamp, body)
    return ",".join([f"t={timestamp}", *(f"v1={hmac.digest(key, signed, hashlib.sha256).hex()}" for key in keys)])


def read_signing_keys(settings: Settings) -> tuple[bytes, ...]:
    """Give the keys, read again whenever their file has changed; none without the setting. Raises InvalidSetting."""
    if not settings.webhook_key_file:
        return ()
    path = Path(settings.webhook_key_file)
    try:
        found = path.stat()
    except OSError as exc:
        raise InvalidSetting(f"{SETTING}: {path} can't be read ({exc.strerror}); correct the path") from exc
    return _read_keys(path, (found.st_mtime_ns, found.st_ino, found.st_size))


@lru_cache(maxsize=4)
def _read_keys(path: Path, _stamp: tuple[int, ...]) -> tuple[bytes, ...]:
    lines = [line.strip() for line in read_secret(SETTING, path).splitlines()]
    keys = [line.encode() for line in lines if line and not line.startswith("#")]
    if not 1 <= len(keys) <= KEYS_MAX:
        raise InvalidSetting(f"{SETTING}: {path} holds {len(keys)} keys; write one a line, at most {KEYS_MAX}")
    if any(len(key) < KEY_MIN_CHARACTERS for key in keys):
        raise InvalidSetting(
            f"{SETTING}: {path} holds a key of less than {KEY_MIN_CHARACTERS} characters; "
            "make one with 'openssl rand -hex 32'"
        )
    return tuple(keys)
