"""The payload of a held task: what the kind `celery` reads, written from a message of Celery and read back."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# — neither Celery nor kombu says its types

import base64
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kombu.compression import compress
from kombu.entity import Exchange, Queue
from kombu.serialization import dumps

CONTENT = {"content_type": "application/json", "content_encoding": "utf-8"}
PROPERTIES = {"delivery_mode": 2, "priority": 0, "immediate": None, "mandatory": None}
PLAIN = Queue("", Exchange("", "direct"), "").as_dict(recurse=True)
NOT_HELD = ("retry", "retry_policy", "timeout", "confirm_timeout")
RECEIVED = ("correlation_id", "reply_to", "delivery_mode", "priority", "message_id", "timestamp", "type", "app_id")
HEADERS: dict[str, Any] = {
    "lang": "py",
    "shadow": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "parent_id": None,
    "ignore_result": False,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}
"""What the headers of most tasks say, beside their name and id."""


def write_published(task_id: str, body: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write what `kombu.Producer.publish` is given; what the kind fills in by itself is left out, as most headers are.

    As `publish` does, it adds the header `compression` where something is compressed.
    """
    rest = {name: value for name, value in options.items() if name not in NOT_HELD}
    headers = rest.pop("headers")
    exchange = rest.pop("exchange")
    declare = rest.pop("declare") or []

    if isinstance(exchange, Exchange):
        rest["delivery_mode"] = rest.get("delivery_mode") or exchange.delivery_mode
        exchange = exchange.name

    content_type, encoding, text = dumps(body, rest.pop("serializer"))
    if method := rest.pop("compression"):
        text, headers["compression"] = compress(text, method)

    place = _write_place(exchange, rest.pop("routing_key"), declare)
    if (seconds := rest.pop("expiration", None)) is not None:
        place["expires_at"] = round(time.time() + seconds, 3)
    return _write_headers(task_id, headers) | place | _write_rest(task_id, (content_type, encoding, text), rest)


def write_received(task_id: str, message: Any, queues: Mapping[str, Any]) -> dict[str, Any]:
    """Write what a worker has received; kombu has decompressed it. Raises ValueError for an expiry that is no time."""
    headers = {name: value for name, value in message.headers.items() if name != "compression"}
    exchange = message.delivery_info["exchange"] or ""
    routing_key = message.delivery_info["routing_key"]
    declared = [queues[routing_key]] if routing_key in queues else []
    place = _write_place(exchange, routing_key, declared)
    if expires := headers.get("expires"):
        place["expires_at"] = datetime.fromisoformat(expires).timestamp()

    text = message.body
    if isinstance(text, bytes) and message.content_encoding == CONTENT["content_encoding"]:
        text = text.decode()

    properties = {name: message.properties[name] for name in RECEIVED if name in message.properties}
    content = (message.content_type, message.content_encoding, text)
    return _write_headers(task_id, headers) | place | _write_rest(task_id, content, properties)


def read_payload(task_id: str, payload: Mapping[str, Any], queues: Mapping[str, Any]) -> dict[str, Any]:
    """Give the arguments of kombu's `publish` that a payload stands for, with the queue if the application knows it."""
    headers = payload["headers"]
    if "task" in payload:
        headers = {**HEADERS, "id": task_id, "root_id": task_id, "task": payload["task"], **headers}

    body = payload["body"]
    routing_key = payload.get("routing_key", payload.get("queue", ""))
    return {
        "body": body if isinstance(body, str) else base64.b64decode(body["base64"]),
        "headers": headers,
        "exchange": payload.get("exchange", ""),
        "routing_key": routing_key,
        "declare": [queues[routing_key]] if routing_key in queues else [],
        **{name: payload.get(name, default) for name, default in CONTENT.items()},
        "delivery_mode": 2,
        "correlation_id": task_id,
        **payload.get("properties", {}),
    }


def _write_headers(task_id: str, headers: dict[str, Any]) -> dict[str, Any]:
    defaults = {**HEADERS, "id": task_id, "root_id": task_id}
    if "task" not in headers or not defaults.keys() <= headers.keys():
        return {"headers": headers}  # of Celery's first protocol, or of another version
    return {"task": headers["task"], "headers": _leave_out(headers, {**defaults, "task": headers["task"]})}


def _write_place(exchange: str, routing_key: str, declare: list[Any]) -> dict[str, Any]:
    documents = [_describe(each) for each in declare]
    if not exchange and documents == [routing_key]:
        return {"queue": routing_key}
    return {"exchange": exchange, "routing_key": routing_key, "declare": documents}


def _describe(entity: Any) -> Any:
    """Describe a queue or an exchange; a queue with an exchange of its own, direct and of its name, is its name."""
    if isinstance(entity, Exchange):
        return {"exchange": _leave_out(entity.as_dict(), PLAIN["exchange"])}
    named = {"name": entity.name, "routing_key": entity.name, "exchange": {**PLAIN["exchange"], "name": entity.name}}
    changed = _leave_out(entity.as_dict(recurse=True), {**PLAIN, **named})
    return {"queue": {"name": entity.name, **changed}} if changed else entity.name


def _leave_out(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in defaults or defaults[name] != value}


def _write_rest(task_id: str, content: tuple[Any, Any, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    content_type, encoding, text = content
    body = text if isinstance(text, str) else {"base64": base64.b64encode(text).decode()}
    kept = _leave_out(properties, {**PROPERTIES, "correlation_id": task_id})
    written = {"body": body, **_leave_out({"content_type": content_type, "content_encoding": encoding}, CONTENT)}
    return written | ({"properties": kept} if kept else {})
