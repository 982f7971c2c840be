"""The application: routes requests to operations, and lets in only who may call them."""

import asyncio
import functools
import logging
from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shared.errors import DormiceError
from starter.extras.web.api import bulk, lists, messages
from starter.extras.web.api.openapi import Operation, describe_api
from starter.extras.web.documents import Installation, answer, find_api
from starter.extras.web.guard import Guard
from starter.extras.web.page.operations_page import OperationsPage
from starter.extras.web.page.routes import list_routes
from starter.extras.web.problems import Problem, to_problem
from starter.extras.web.requests import find_path
from starter.extras.web.tokens import Tokens

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0
"""The longest that a request but the bulk one may take."""
CHECK_SECONDS = 5.0
UNLIMITED = "start_messages"


def list_operations(installation: Installation) -> list[Operation]:
    """Give all operations, in the order in which they are routed: first those that are called most."""
    page = functools.partial(Operation, method="GET", answers={200: "the answer"}, is_public=True)
    return [
        *messages.list_operations(installation.settings),
        *bulk.list_operations(),
        *lists.list_operations(),
        page(path="/openapi.json", endpoint=show_api, summary="this document"),
        page(path="/healthz", endpoint=show_health, summary="tell that the process is alive"),
        page(path="/readyz", endpoint=show_readiness, summary="tell whether the server answers"),
    ]


def make_application(
    installation: Installation,
    version: str,
    tokens: Tokens | None,
    hosts: Collection[str],
    page: OperationsPage | None = None,
) -> Starlette:
    """Make the application; without tokens whoever reaches it may do everything, if it is called by one of `hosts`.

    Only with a `page` people find one.
    """
    operations = list_operations(installation)
    public = [each.path for each in operations if each.is_public]
    api = [Route(each.path, _limit(each), methods=[each.method], name=each.name) for each in operations]
    application = Starlette(
        routes=[*api, *([] if page is None else list_routes())],
        middleware=[Middleware(Guard, tokens=tokens, hosts=hosts, public=public, page=page)],
        exception_handlers={
            Problem: _refuse,
            DormiceError: _refuse,
            HTTPException: _refuse,
            Exception: _refuse,
        },
    )
    application.state.installation = installation
    application.state.page = page
    application.state.document = describe_api(operations, version)

    return application


def _limit(operation: Operation) -> Any:
    if operation.name == UNLIMITED:
        return operation.endpoint

    async def call(request: Request) -> Response:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await operation.endpoint(request)
        except TimeoutError as exc:
            sentence = f"nothing has come of it within {ANSWER_SECONDS:.0f} s; ask what became of it, or try again"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, sentence) from exc

    return call


async def show_api(request: Request) -> Response:
    """Give the OpenAPI document."""
    return answer(request.app.state.document)


async def show_health(_: Request) -> Response:
    """Answer that this process is alive."""
    return answer({"alive": True})


async def show_readiness(request: Request) -> Response:
    """Answer whether Temporal's server does."""
    client = find_api(request).client
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            is_serving = await client.service_client.check_health()
    except Exception as exc:  # noqa: BLE001 — whatever it is, the answer is that it is not ready
        logger.warning("server does not answer", extra={"action": "server_check_failed", "reason": str(exc)[:200]})
        is_serving = False
    if is_serving:
        return answer({"ready": True})

    return answer({"ready": False, "reason": "the server does not answer"}, HTTPStatus.SERVICE_UNAVAILABLE)


async def _refuse(request: Request, exc: Exception) -> Response:
    """Give the problem that an error is, to a person as a page."""
    page: OperationsPage | None = request.app.state.page
    problem = _find_problem(request, exc)
    if page is not None and page.has(find_path(request)):
        return page.refuse(request, problem)
    return problem.to_response(**((exc.headers if isinstance(exc, HTTPException) else None) or {}))


def _find_problem(request: Request, exc: Exception) -> Problem:
    if isinstance(exc, Problem):
        return exc
    if isinstance(exc, DormiceError):
        return to_problem(exc)

    if not isinstance(exc, HTTPException):  # it is in the log
        sentence = f"a defect of dormice itself ({type(exc).__name__}); its log says where"
        return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, sentence)

    status = HTTPStatus(exc.status_code)
    what = "use another method"
    if status is HTTPStatus.NOT_FOUND:
        what = f"there is nothing at {find_path(request)[:80]!r}"
    return Problem(status, f"{what}; /openapi.json says what there is")
