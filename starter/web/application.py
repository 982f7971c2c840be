"""The application: routes requests to operations, and lets in only who may call them."""

import asyncio
import functools
import logging
from collections.abc import Collection
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.errors import DormiceError
from starter.web.api import bulk, lists, messages
from starter.web.api.openapi import Operation, describe_api
from starter.web.documents import Installation, answer, find_api
from starter.web.problems import Problem, to_problem
from starter.web.tokens import EVERYTHING, Access, Tokens

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0
"""The longest that a request but the bulk one may take."""
CHECK_SECONDS = 5.0
READ_METHODS = ("GET", "HEAD")
UNLIMITED = "start_messages"


def list_operations(installation: Installation) -> list[Operation]:
    """Give all operations, in the order in which they are routed."""
    page = functools.partial(Operation, method="GET", answers={200: "the answer"}, is_public=True)
    return [
        *lists.list_operations(),
        *bulk.list_operations(),
        *messages.list_operations(installation.settings),
        page(path="/openapi.json", endpoint=show_api, summary="this document"),
        page(path="/healthz", endpoint=show_health, summary="tell that the process is alive"),
        page(path="/readyz", endpoint=show_readiness, summary="tell whether the server answers"),
    ]


def make_application(
    installation: Installation, version: str, tokens: Tokens | None, hosts: Collection[str]
) -> Starlette:
    """Make the application; without tokens whoever reaches it may do everything, if it is called by one of `hosts`."""
    operations = list_operations(installation)
    application = Starlette(
        routes=[Route(each.path, _limit(each), methods=[each.method], name=each.name) for each in operations],
        middleware=[Middleware(Guard, tokens=tokens, hosts=hosts, public=[e.path for e in operations if e.is_public])],
        exception_handlers={
            Problem: _refuse,
            DormiceError: _refuse,
            HTTPException: _refuse,
            Exception: _refuse,
        },
    )
    application.state.installation = installation
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


class Guard:
    """Lets in only who has a token, and no page of another origin: a browser adds what its user may do."""

    def __init__(self, app: ASGIApp, tokens: Tokens | None, hosts: Collection[str], public: Collection[str]) -> None:
        self._app = app
        self._tokens = tokens
        self._hosts = hosts
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on, its path as it was sent: an id may hold an encoded slash."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            access = self._find_access(request)
        except Problem as problem:
            await problem.to_response()(scope, receive, send)
            return
        path = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
        await self._app({**scope, "path": path, "access": access}, receive, send)

    def _find_access(self, request: Request) -> Access:
        host = request.headers.get("host", "")
        if self._tokens is None and _name_of(host) not in self._hosts:
            sentence = f"Host: is {host[:60]!r}; without tokens, call it by {' or '.join(sorted(self._hosts))}"
            raise Problem(HTTPStatus.MISDIRECTED_REQUEST, sentence, "Host")
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise Problem(HTTPStatus.FORBIDDEN, "Origin: pages of other origins may not call this", "Origin")
        if self._tokens is None or request.url.path in self._public:
            return EVERYTHING
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        access = self._tokens.find(token.strip()) if scheme.lower() == "bearer" else None
        if access is None:
            sentence = "Authorization: names no token that is known; send 'Bearer' and a token of api_tokens_file"
            raise Problem(HTTPStatus.UNAUTHORIZED, sentence, "Authorization")
        if request.method not in READ_METHODS and not access.may_write:
            raise Problem(HTTPStatus.FORBIDDEN, "this token is for reading; use one that may write")
        return access


def _name_of(host: str) -> str:
    """Give the name of a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


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
    """Give the problem that an error is."""
    if isinstance(exc, Problem):
        return exc.to_response()
    if isinstance(exc, DormiceError):
        return to_problem(exc).to_response()
    if not isinstance(exc, HTTPException):  # it is in the log
        sentence = f"a defect of dormice itself ({type(exc).__name__}); its log says where"
        return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, sentence).to_response()
    status = HTTPStatus(exc.status_code)
    what = f"there is nothing at {request.url.path[:80]!r}" if status is HTTPStatus.NOT_FOUND else "use another method"
    return Problem(status, f"{what}; /openapi.json says what there is").to_response(**(exc.headers or {}))
