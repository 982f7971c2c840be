"""Single messages over HTTP: start, upsert, show, steer and stop them by kind and id."""

import functools
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from activities.registry import envelope_rules
from shared.errors import IdempotencyKeyReused, MessageAlive, PackNotServed, StandsStill
from shared.messages.envelope import Envelope, drop_nulls, parse_envelope
from shared.messages.placement import workflow_id
from shared.messages.signals import VERBS, Signal, Stop, list_fields
from shared.settings import Settings
from starter.extras.web.api.openapi import (
    JSON_VALUE,
    TEXT,
    Operation,
    Parameter,
    Schema,
    describe_envelope,
    describe_object,
)
from starter.extras.web.documents import answer, find_api
from starter.extras.web.problems import Problem
from starter.extras.web.requests import (
    KEY_HEADER,
    check_owner,
    find_access,
    read_flag,
    read_key,
    read_moment,
    read_name,
    read_number,
    read_object,
    read_query,
)
from starter.extras.web.verbs import read_verb
from starter.starting.receipts import Receipt, StartOutcome
from starter.steering.message_view import to_document
from starter.steering.sender import check_signal

PATH = "/v1/messages/{kind}/{id}"
VERSION_MAX = 2**53
WAIT_SECONDS_MAX = 40
"""A request may take a minute in all, and the answer itself may take a while."""
_SCHEMAS: dict[str, Schema] = {
    "priority": {"type": "integer", "minimum": 1, "maximum": 5},
    "payload": JSON_VALUE,
    "if_version": {"type": "integer", "minimum": 0, "maximum": VERSION_MAX},
}


def list_operations(settings: Settings) -> list[Operation]:
    """Give the operations on single messages."""
    key = Parameter(KEY_HEADER, "the same key never does this twice; it is refused with another body", TEXT, "header")
    begun = {201: "it is started", 202: "its pack has it, and no worker answers"}
    started: dict[str, Any] = {"answers": begun, "body": describe_envelope(settings)}
    conditions = (
        Parameter("if_version", "change it only while it is alive and at this version", {"type": "integer"}),
        Parameter("if_due_before", "change it only while it is alive and due before then"),
    )
    changed: dict[str, Any] = {**started, "answers": {**begun, 200: "it is changed, or this key was applied before"}}
    wait = Parameter("wait", "answer when it has ended or is parked, or after so many seconds", {"type": "integer"})
    sent = {200: "the message has taken it; `note` says what keeps it from running", 202: "kept until a worker answers"}
    shown = Parameter("payload", "whether to show payload and result; true when left out", {"type": "boolean"})
    summary = "start a message, or give it payload, lane, priority and due time if it is alive"
    reason = Parameter("reason", "kept with the message")
    make = functools.partial(Operation, path=PATH)

    return [
        make(method="PUT", endpoint=upsert_message, summary=summary, parameters=(key, *conditions), **changed),
        make(
            method="POST", endpoint=start_message, summary="start one that is not alive", parameters=(key,), **started
        ),
        make(
            method="GET",
            endpoint=show_message,
            summary="show it, and why it is due then",
            parameters=(shown, wait),
            answers={200: "the message"},
        ),
        make(method="DELETE", endpoint=stop_message, summary="end it for good", parameters=(key, reason), answers=sent),
        *(
            Operation(
                method="POST",
                path=f"{PATH}/{name}",
                endpoint=_named(name),
                summary=(kind.__doc__ or "").partition("\n")[0].rstrip("."),
                parameters=(key,),
                body=_describe_signal(kind),
                is_body_optional=not _list_required(kind),
                answers=sent,
            )
            for name, kind in VERBS.items()
        ),
    ]


async def start_message(request: Request) -> Response:
    """Start a message."""
    api = find_api(request)
    envelope = await _read_envelope(request)
    read_query(request, ())

    try:
        return _answer_receipt(envelope, await api.control.start(envelope))
    except (MessageAlive, IdempotencyKeyReused):
        await check_owner(request, envelope.kind, envelope.id)
        raise
    except PackNotServed as exc:
        return _answer_kept(envelope.kind, envelope.id, exc, is_due_now=envelope.is_due(datetime.now(UTC)))


async def upsert_message(request: Request) -> Response:
    """Upsert a message."""
    api = find_api(request)
    envelope = await _read_envelope(request)
    query = read_query(request, ("if_version", "if_due_before"))
    conditions: Any = {
        "if_version": read_number(query, "if_version", None, 0, VERSION_MAX),
        "if_due_before": read_moment(query, "if_due_before"),
    }
    is_unconditional = all(condition is None for condition in conditions.values())
    await check_owner(request, envelope.kind, envelope.id, is_new_fine=is_unconditional)

    try:
        return _answer_receipt(envelope, await api.control.upsert(envelope, **conditions))
    except PackNotServed as exc:
        return _answer_kept(envelope.kind, envelope.id, exc, is_due_now=envelope.is_due(datetime.now(UTC)))


async def show_message(request: Request) -> Response:
    """Show a message."""
    api = find_api(request)
    kind, message_id = read_name(request)
    query = read_query(request, ("payload", "wait"))
    has_payload = read_flag(query, "payload", True)
    seconds = read_number(query, "wait", 0, 0, WAIT_SECONDS_MAX) or 0
    await check_owner(request, kind, message_id)
    view = await api.control.show(kind, message_id, wait=timedelta(seconds=seconds))
    await check_owner(request, kind, message_id)  # it may have ended meanwhile, and been started by somebody else
    document = to_document(view)
    hidden = ("web_ui",) if has_payload else ("web_ui", "payload", "result")

    return answer({name: value for name, value in document.items() if name not in hidden})


async def stop_message(request: Request) -> Response:
    """Stop a message."""
    reason = read_query(request, ("reason",)).get("reason", "")
    return await _send(request, "stop", Stop(reason, idempotency_key=read_key(request)))


def _named(name: str) -> Any:
    """Make the endpoint of a verb; its name is what OpenAPI calls it."""

    async def steer(request: Request) -> Response:
        given = await read_object(request, find_api(request).settings.payload_max_bytes, is_optional=True)
        read_query(request, ())
        _add_key(request, given)
        return await _send(request, name, read_verb(name, given))

    steer.__name__ = f"{name}_message" if name != "stop" else "stop_message_for_a_reason"
    return steer


async def _send(request: Request, verb: str, signal: Signal) -> Response:
    api = find_api(request)
    kind, message_id = read_name(request)
    check_signal(signal, api.settings)
    await check_owner(request, kind, message_id)
    try:
        note = await api.control.send(kind, message_id, signal)
    except (PackNotServed, StandsStill) as exc:
        return _answer_kept(kind, message_id, exc)
    return answer({"kind": kind, "id": message_id, "verb": verb, "note": note})


async def _read_envelope(request: Request) -> Envelope:
    api = find_api(request)
    kind, message_id = read_name(request)
    given = {**drop_nulls(await read_object(request, api.settings.payload_max_bytes))}

    for name in ("kind", "id"):
        if name in given:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name}: stands in the path; leave it out", name)

    _add_key(request, given)
    fields = {**given, "kind": kind, "id": message_id}
    envelope = parse_envelope(fields, envelope_rules(api.settings, api.registry))
    find_access(request).check_tenant(envelope.tenant)

    return envelope


def _add_key(request: Request, given: dict[str, Any]) -> None:
    """Add the header's idempotency key to the fields of a body."""
    key = read_key(request)
    if key and given.setdefault("idempotency_key", key) != key:
        sentence = f"idempotency_key: differs from the header {KEY_HEADER}; leave one of them out"
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, sentence, "idempotency_key")


def _answer_receipt(envelope: Envelope, receipt: Receipt[None]) -> Response:
    status = HTTPStatus.CREATED if receipt.outcome is StartOutcome.STARTED else HTTPStatus.OK
    document = {
        "kind": envelope.kind,
        "id": envelope.id,
        "outcome": receipt.outcome.value,
        "is_due_now": receipt.has_taken and envelope.is_due(datetime.now(UTC)),
        "run_id": receipt.run_id,
        "note": receipt.reason,
    }
    return answer(document, status)


def _answer_kept(kind: str, message_id: str, exc: PackNotServed | StandsStill, **more: bool) -> Response:
    note = f"{exc}; what was asked of {workflow_id(kind, message_id)} is kept, and takes effect then"
    return answer({"kind": kind, "id": message_id, "outcome": "kept", **more, "note": note}, HTTPStatus.ACCEPTED)


def _describe_signal(kind: type[Any]) -> Schema:
    return describe_object(_list_required(kind), **{name: _SCHEMAS.get(name, TEXT) for name in list_fields(kind)})


def _list_required(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind) if field.default is MISSING]
