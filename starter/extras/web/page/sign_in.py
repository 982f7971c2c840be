"""Signing in: a person gives a token once, in a form, and the browser keeps a session in its place."""

import time
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from starter.extras.web.page.form import read_form
from starter.extras.web.page.operations_page import find_page
from starter.extras.web.page.template import render
from starter.extras.web.tokens import SESSION_SECONDS

UNKNOWN = "token: is not known; take one of api_tokens_file, or the one that was printed at the start"


def name_cookie(request: Request) -> str:
    """Name the cookie of a session; by port, because browsers share cookies among all ports of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    if port.isascii() and port.isdecimal():
        return f"dormice_session_{port}"
    return f"dormice_session_{request.scope['scheme']}"


async def show_sign_in(request: Request) -> Response:
    """Show the form."""
    return _show_form(request, request.query_params.get("next", "/"))


async def sign_in(request: Request) -> Response:
    """Take a token, and give a session for it."""
    form = await read_form(request, "token", "next")
    tokens = find_page(request).tokens
    target = form.get("next", "/")

    session = None if tokens is None else tokens.open_session(form.get("token", "").strip(), time.time())
    if session is None:
        return _show_form(request, target, UNKNOWN, HTTPStatus.FORBIDDEN)

    response = RedirectResponse(_keep_here(target), HTTPStatus.SEE_OTHER)
    is_secure = request.scope["scheme"] == "https"
    response.set_cookie(
        name_cookie(request), session, SESSION_SECONDS, httponly=True, samesite="strict", secure=is_secure
    )
    return response


async def sign_out(request: Request) -> Response:
    """Let the browser forget its session."""
    response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
    response.delete_cookie(name_cookie(request), httponly=True, samesite="strict")
    return response


def _show_form(request: Request, target: str, problem: str = "", status: HTTPStatus = HTTPStatus.OK) -> Response:
    return render(request, "sign_in.html", status, problem=problem, next=_keep_here(target))


def _keep_here(target: str) -> str:
    """Give a path of this page; whatever could lead elsewhere becomes the first view."""
    is_path = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if is_path else "/"
