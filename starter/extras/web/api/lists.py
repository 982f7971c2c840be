"""Lists over HTTP: messages by filter, counts, the forecast, kinds and gates."""

import time
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shared.errors import InvalidSetting
from shared.keepers.gates import GateClosure, check_gate, read_closure
from shared.messages.message import clip_reason
from starter.extras.web.api.openapi import FILTERS, TEXT, Endpoint, Operation, Parameter, describe_object
from starter.extras.web.documents import answer, find_api
from starter.extras.web.problems import Problem
from starter.extras.web.requests import (
    LIMIT_MAX,
    check_unlimited,
    find_access,
    read_flag,
    read_number,
    read_object,
    read_part,
    read_query,
    read_selection,
)
from starter.insight.forecast import make_forecast
from starter.steering.keepers import GateControl
from starter.steering.packs.packs import Packs
from starter.steering.pages import MessagePages

PAGE_SIZE = 100
HOURS = 24
HOURS_MAX = 24 * 366


def list_operations() -> list[Operation]:
    """Give the operations on many messages, and on what they share."""
    whole = {"type": "integer", "minimum": 1}
    flag = {"type": "boolean"}
    limit = Parameter("limit", f"most messages of a page ({PAGE_SIZE})", {**whole, "maximum": LIMIT_MAX})
    cursor = Parameter("cursor", "what the page before ended with")
    exact = Parameter("exact", "ask every pack, which needs workers; about when left out", flag)
    hours = Parameter("hours", f"how far to look ahead ({HOURS})", {**whole, "maximum": HOURS_MAX})
    closing = describe_object(opens_at=TEXT, reason=TEXT)
    gate = "/v1/gates/{gate}"

    return [
        _answers("/v1/messages", list_messages, "list messages, a page at a time", *FILTERS, limit, cursor),
        _answers("/v1/messages:count", count_messages, "count messages", *FILTERS, exact),
        _answers("/v1/kinds", list_kinds, "list the kinds that may be started"),
        _answers("/v1/forecast", show_forecast, "tell what is due when, by lane", hours),
        _answers("/v1/gates", list_gates, "list the closed gates"),
        _answers(gate, close_gate, "close a gate", method="PUT", body=closing),
        _answers(gate, open_gate, "open a gate", method="DELETE"),
    ]


def _answers(path: str, endpoint: Endpoint, summary: str, *more: Parameter, **others: Any) -> Operation:
    given: dict[str, Any] = {"method": "GET", "answers": {200: "the answer"}, **others}
    return Operation(path=path, endpoint=endpoint, summary=summary, parameters=more, **given)


async def list_messages(request: Request) -> Response:
    """List messages."""
    api = find_api(request)
    selection, query = read_selection(request, "limit", "cursor")
    limit = read_number(query, "limit", PAGE_SIZE, 1, LIMIT_MAX) or PAGE_SIZE
    pages = MessagePages(api.client, Packs(api.client, api.settings), selection)
    page = await pages.read(limit, query.get("cursor", ""))
    messages = [each.to_document() for each in page.messages]
    return answer({"messages": messages, "cursor": page.cursor or None, "left_out": list(page.left_out)})


async def count_messages(request: Request) -> Response:
    """Count messages."""
    api = find_api(request)
    selection, query = read_selection(request, "exact")
    if read_flag(query, "exact", False):
        return answer({"count": await api.control.count(selection), "is_exact": True})
    return answer((await api.control.estimate(selection)).to_document())


async def list_kinds(request: Request) -> Response:
    """List kinds."""
    read_query(request, ())
    access = find_access(request)
    registry = find_api(request).registry
    kinds = [
        {
            "kind": kind,
            "lane": handler.lane,
            "encoding": "solo" if handler.encoding is None else "pack",
            "max_attempts": handler.max_attempts,
            "summary": handler.summary,
        }
        for kind, handler in sorted(registry.items())
        if access.kinds is None or kind in access.kinds
    ]

    return answer({"kinds": kinds})


async def show_forecast(request: Request) -> Response:
    """Forecast."""
    api = find_api(request)
    query = read_query(request, ("hours",))
    check_unlimited(request)
    hours = read_number(query, "hours", HOURS, 1, HOURS_MAX) or HOURS
    found = await make_forecast(api.client, api.settings, time.time(), timedelta(hours=hours), is_exact=False)
    return answer(found.to_document())


async def list_gates(request: Request) -> Response:
    """List gates."""
    read_query(request, ())
    check_unlimited(request)
    found = await _open_gates(request).fetch(time.time())
    return answer({"gates": [closing.to_document(gate) for gate, closing in sorted(found.items())]})


async def close_gate(request: Request) -> Response:
    """Close a gate."""
    gate = _read_gate(request)
    given = await read_object(request, 0)
    read_query(request, ())

    if unknown := sorted(set(given) - {"opens_at", "reason"}):
        sentence = f"{unknown[0][:60]}: is no field here; use opens_at and reason"
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, sentence, unknown[0][:60])

    closing = _read_closure(given.get("opens_at"), clip_reason(_read_reason(given)))
    try:
        await _open_gates(request).close(gate, closing)
    except InvalidSetting as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(exc), "gate") from exc

    return answer(closing.to_document(gate))


async def open_gate(request: Request) -> Response:
    """Open a gate."""
    read_query(request, ())
    gate = _read_gate(request)
    await _open_gates(request).open(gate)
    return answer({"gate": gate, "closed_at": None, "opens_at": None, "reason": ""})


def _read_gate(request: Request) -> str:
    check_unlimited(request)
    try:
        return check_gate(read_part(request, "gate"))
    except ValueError as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"gate: {exc}", "gate") from exc


def _read_reason(given: dict[str, Any]) -> str:
    reason = given.get("reason", "")
    if not isinstance(reason, str):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "reason: is no text; put it in quotes", "reason")
    return reason


def _read_closure(opens_at: Any, reason: str) -> GateClosure:
    try:
        if not isinstance(opens_at, str | None):
            raise ValueError("is no text; write 2026-11-21T20:00:00Z or +15m")  # noqa: TRY004, TRY301 — completed below
        return read_closure(opens_at, reason)
    except ValueError as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"opens_at: {exc}", "opens_at") from exc


def _open_gates(request: Request) -> GateControl:
    api = find_api(request)
    return GateControl(api.client, api.settings)
