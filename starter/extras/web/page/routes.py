"""Routes: which view is at which address, and which forms are sent where."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from starter.extras.web.page.sign_in import show_sign_in, sign_in, sign_out
from starter.extras.web.page.template import redirect, show_static, with_query
from starter.extras.web.page.views import dead_letters, keepers, message, messages, overview, parked, workers
from starter.extras.web.problems import Problem
from starter.extras.web.requests import find_path

ANSWER_SECONDS = 40.0
"""Most that an answer may take; views have their own, shorter limit, and forms send little."""

Endpoint = Callable[[Request], Awaitable[Response]]


def list_routes() -> list[Route]:
    """Give all routes of the page."""
    message_path = "/messages/{kind}/{id}"
    return [
        _get("/", overview.show_overview),
        _get("/messages", messages.show_messages),
        _get(message_path, message.show_message),
        _get(f"{message_path}/revise", message.show_revision),
        _post(f"{message_path}/{{verb}}", message.steer_message),
        _get("/parked", parked.show_parked),
        _get("/parked/{verb}", parked.confirm_parked),
        _post("/parked/{verb}", parked.send_parked),
        _get("/gates", keepers.show_keepers),
        _post("/gates/close", keepers.close_gate),
        _post("/gates/open", keepers.open_gate),
        _post("/idle/{lane}", keepers.switch_idle),
        _get("/dead-letters", dead_letters.show_dead_letters),
        _get("/dead-letters/{verb}", dead_letters.confirm_dead_letters),
        _post("/dead-letters/{verb}", dead_letters.send_dead_letters),
        _get("/workers", workers.show_workers),
        _get("/sign-in", show_sign_in),
        _post("/sign-in", sign_in),
        _post("/sign-out", sign_out),
        Route("/static/{name}", show_static, methods=["GET"]),
    ]


def _get(path: str, show: Endpoint) -> Route:
    async def answer(request: Request) -> Response:
        given = request.query_params.multi_items()
        if any(not value for _, value in given):  # a form sends its empty fields, too
            return redirect(with_query(find_path(request), dict(given)))
        return await _limit(show, request)

    return Route(path, answer, methods=["GET"])


def _post(path: str, do: Endpoint) -> Route:
    async def answer(request: Request) -> Response:
        return await _limit(do, request)

    return Route(path, answer, methods=["POST"])


async def _limit(endpoint: Endpoint, request: Request) -> Response:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await endpoint(request)
    except TimeoutError as exc:
        sentence = f"nothing has come of it within {ANSWER_SECONDS:.0f} s; look what became of it, or try again"
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, sentence) from exc
