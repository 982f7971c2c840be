"""Gates and idle capacity: what is closed, until when and why, and what lanes do when they have nothing to do."""

import asyncio
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from shared.errors import InvalidSetting
from shared.keepers.gates import GateClosure, check_gate, read_closure
from shared.lanes import LANES
from shared.messages.message import clip_reason
from starter.extras.web.page.form import read_form
from starter.extras.web.page.operations_page import find_page
from starter.extras.web.page.template import redirect, render
from starter.extras.web.problems import Problem
from starter.extras.web.requests import check_unlimited, read_query
from starter.extras.web.requests import read_part as read_path
from starter.steering.keepers import describe_lack


async def show_keepers(request: Request) -> Response:
    """Show both."""
    read_query(request, ())
    check_unlimited(request)
    snapshots = find_page(request).snapshots
    gates, idle = await asyncio.gather(snapshots.gates.read(), snapshots.idle.read())

    listed = sorted(gates.value.items()) if gates.value is not None else None
    return render(
        request,
        "keepers.html",
        gates=listed,
        gates_problem=gates.problem,
        idle=idle.value,
        idle_problem=idle.problem,
    )


async def close_gate(request: Request) -> Response:
    """Close a gate."""
    check_unlimited(request)
    form = await read_form(request, "gate", "opens_at", "reason")
    gate = _read_gate(form.get("gate", ""))
    reason = clip_reason(form.get("reason", "closed by hand"))

    closure = _read_closure(form.get("opens_at"), reason)
    try:
        lacking = await find_page(request).gate_control.close(gate, closure)
    except InvalidSetting as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(exc), "gate") from exc

    find_page(request).snapshots.forget()
    return redirect("/gates", f"Gate {gate}: closed{describe_lack(lacking)}.")


async def open_gate(request: Request) -> Response:
    """Open a gate."""
    check_unlimited(request)
    gate = _read_gate((await read_form(request, "gate")).get("gate", ""))
    lacking = await find_page(request).gate_control.open(gate)
    find_page(request).snapshots.forget()
    return redirect("/gates", f"Gate {gate}: open{describe_lack(lacking)}.")


async def switch_idle(request: Request) -> Response:
    """Switch a lane's use of its idle capacity."""
    check_unlimited(request)
    lane = read_path(request, "lane")
    form = await read_form(request, "switch")
    word = form.get("switch")
    if lane not in LANES or word not in ("on", "off"):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"lane: use one of {', '.join(LANES)}, and on or off", "lane")

    await find_page(request).idle_control.switch(lane, is_on=word == "on")
    find_page(request).snapshots.forget()
    return redirect("/gates", f"Idle capacity of lane {lane}: {word}.")


def _read_gate(gate: str) -> str:
    try:
        return check_gate(gate)
    except ValueError as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"gate: {exc}", "gate") from exc


def _read_closure(opens_at: str | None, reason: str) -> GateClosure:
    try:
        return read_closure(opens_at, reason)
    except ValueError as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"opens_at: {exc}", "opens_at") from exc
