"""One message: why it is due then, its last decisions, its payload if asked for, and the verbs that change it."""

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shared.errors import InvalidEnvelope, MessageNotFound, PackNotServed, StandsStill
from shared.messages.json_value import parse_json
from shared.messages.placement import workflow_id
from shared.messages.signals import Signal, write_moment
from shared.messages.timespan import parse_moment
from starter.extras.web.documents import find_api
from starter.extras.web.page.form import read_form
from starter.extras.web.page.operations_page import find_page
from starter.extras.web.page.snapshot import DEADLINE_SECONDS
from starter.extras.web.page.template import message_path, redirect, render
from starter.extras.web.problems import Problem
from starter.extras.web.requests import check_owner, find_access, read_flag, read_name, read_part, read_query
from starter.extras.web.verbs import read_verb
from starter.steering.message_view import HAS_ENDED, MessageView, to_document
from starter.steering.sender import check_signal
from starter.steering.status.web_ui import find_page as find_workflow_page

VERBS = {
    "run_now": ("Run now", "as soon as a worker is free; parked, it gets fresh attempts"),
    "reschedule": ("Reschedule", "give it another due time"),
    "reprioritize": ("Reprioritize", "1 runs first, 5 last"),
    "pause": ("Pause", "do not run it until it is resumed"),
    "resume": ("Resume", "end its pause"),
    "revise": ("Revise", "replace its payload"),
    "stop": ("Stop", "end it for good"),
}
ASKED_AGAIN = {
    "revise": "What stands here takes the place of the payload that it has now.",
    "stop": "It ends for good and does not run any more; its kind and id may be started anew.",
}
FIELDS = ("reason", "due_at", "priority", "payload", "sure")
FINAL = ("done", "stop", "expired", "parked")
"""Decisions after which nothing is due."""


async def show_message(request: Request) -> Response:
    """Show it; its payload only if the address asks for it."""
    api = find_api(request)
    kind, message_id = read_name(request)
    has_payload = read_flag(read_query(request, ("payload",)), "payload", False)
    view = await _fetch(request, kind, message_id)
    document = to_document(view)
    ui = find_page(request).ui_address

    payload = _write_payload(document["payload"]) if has_payload and view.status is not None else ""
    result = _write_payload(document["result"]) if has_payload and view.ended is not None else ""
    web_ui = ui + find_workflow_page(api.client.namespace, view.lives_in) if ui else ""
    return render(
        request,
        "message.html",
        message=document,
        has_payload=has_payload,
        payload=payload,
        result=result,
        is_known=view.status is not None,
        is_over=document["state"] in HAS_ENDED,
        decisions=[*reversed(document["decisions"])],
        final=FINAL,
        verbs=list_verbs(document["state"]),
        base=message_path(kind, message_id),
        web_ui=web_ui,
        lives_in=view.lives_in,
    )


async def _fetch(request: Request, kind: str, message_id: str) -> MessageView:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await check_owner(request, kind, message_id)
            return await find_api(request).control.show(kind, message_id)
    except TimeoutError as exc:
        sentence = f"{workflow_id(kind, message_id)}: nothing came within {DEADLINE_SECONDS:g} s; look again in a while"
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, sentence) from exc


def list_verbs(state: str) -> dict[str, tuple[str, str]]:
    """Give the verbs that make sense in a state."""
    hidden = {"pause"} if state == "paused" else {"resume"}
    return {name: texts for name, texts in VERBS.items() if name not in hidden}


def _write_payload(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


async def steer_message(request: Request) -> Response:
    """Send a verb; one that can't be undone is asked again first."""
    kind, message_id = read_name(request)
    verb = read_part(request, "verb")
    if verb not in VERBS:
        raise Problem(HTTPStatus.NOT_FOUND, f"{verb[:60]!r} is no verb of this page; use one of its buttons")

    form = await read_form(request, *FIELDS)
    try:
        return await _steer(request, (kind, message_id), verb, form)
    except InvalidEnvelope as exc:
        return ask_anew(request, (kind, message_id), verb, form, str(exc))
    except Problem as exc:
        if exc.status is not HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        return ask_anew(request, (kind, message_id), verb, form, exc.detail)


async def show_revision(request: Request) -> Response:
    """Show the form of a revision, which begins with the payload that the message has now."""
    kind, message_id = read_name(request)
    read_query(request, ())
    find_page(request).check_writing(find_access(request))
    view = await _fetch(request, kind, message_id)
    if view.status is None:
        return ask_anew(request, (kind, message_id), "revise", {}, "no worker tells the payload that it has now")
    form = {"payload": _write_payload(view.status["payload"])}
    return ask_anew(request, (kind, message_id), "revise", form)


def ask_anew(
    request: Request, name: tuple[str, str], verb: str, form: Mapping[str, str], problem: str = ""
) -> Response:
    """Ask for the fields of a verb, beginning with those that a person has sent, which so are not lost."""
    is_refused = bool(problem) and request.method == "POST"
    sentences = [ASKED_AGAIN[verb]] if verb in ASKED_AGAIN else []
    status = HTTPStatus.UNPROCESSABLE_ENTITY if is_refused else HTTPStatus.OK
    return render(
        request,
        "verb.html",
        status,
        title=f"{VERBS[verb][0]} {workflow_id(*name)}",
        problem=problem,
        sentences=sentences,
        action=message_path(*name, verb),
        verb=verb,
        form={"priority": "", **form},
        button=VERBS[verb][0],
        is_final=verb in ASKED_AGAIN,
        back=message_path(*name),
    )


async def _steer(request: Request, name: tuple[str, str], verb: str, form: Mapping[str, str]) -> Response:
    api = find_api(request)
    kind, message_id = name
    signal = read_given(verb, form)
    check_signal(signal, api.settings)
    await check_owner(request, kind, message_id)
    if verb == "revise" and form.get("sure") != "yes":
        return ask_anew(request, name, verb, form)

    if verb in ASKED_AGAIN and form.get("sure") != "yes":
        return render(
            request,
            "confirm.html",
            title=f"{VERBS[verb][0]} {workflow_id(kind, message_id)}?",
            sentences=[ASKED_AGAIN[verb]],
            action=message_path(kind, message_id, verb),
            fields={**form, "sure": "yes"},
            asks_reason="reason" not in form,
            button=VERBS[verb][0],
            back=message_path(kind, message_id),
        )

    notice = await _send(request, name, signal)
    find_page(request).snapshots.forget()
    return redirect(message_path(kind, message_id), notice or f"{VERBS[verb][0]}: sent.")


async def _send(request: Request, name: tuple[str, str], signal: Signal) -> str:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS * 2):
            return await find_api(request).control.send(*name, signal)
    except (PackNotServed, StandsStill) as exc:
        return f"{exc}; what was asked is kept, and takes effect then"
    except MessageNotFound as exc:
        raise Problem(HTTPStatus.NOT_FOUND, str(exc)) from exc
    except TimeoutError:
        return "nothing has come of it yet; look at the message, and send it again if it has not taken it"


def read_given(verb: str, form: Mapping[str, str]) -> Signal:
    """Read the signal that a form means; raises Problem for a wrong field."""
    given: dict[str, Any] = {"reason": form["reason"]} if "reason" in form else {}
    if verb == "reschedule" or (verb == "reprioritize" and "due_at" in form):
        given["due_at"] = write_moment(_read_moment(form.get("due_at", "")))

    if verb == "reprioritize":
        priority = form.get("priority", "")
        given["priority"] = int(priority) if priority in tuple("12345") else priority

    if verb == "revise":
        try:
            given["payload"] = parse_json(form.get("payload", ""))
        except ValueError as exc:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"payload: {exc}; write JSON", "payload") from exc

    return read_verb(verb, given)


def _read_moment(text: str) -> datetime:
    try:
        return parse_moment(text[:60])
    except ValueError as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"due_at: {exc}", "due_at") from exc
