"""The guard: lets in only who may call, programs by their token and people by the session of their browser."""

import time
from collections.abc import Collection
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from starter.extras.web.page.operations_page import OperationsPage
from starter.extras.web.page.sign_in import name_cookie
from starter.extras.web.problems import Problem
from starter.extras.web.requests import find_path
from starter.extras.web.tokens import EVERYTHING, READING, Access, Tokens

READ_METHODS = ("GET", "HEAD")


class Guard:
    """Lets in only who has a token, and no page of another origin: a browser adds what its user may do."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens | None,
        hosts: Collection[str],
        public: Collection[str],
        page: OperationsPage | None,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._hosts = hosts
        self._public = public
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on with the path that was checked.

        That is the path as it was sent, for an id may hold an encoded slash; never one that is made with the Host
        header, which the caller chooses. Without a root path the router takes it whole, as the checks do.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        path = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
        scope = {**scope, "path": path, "root_path": ""}
        request = Request(scope)
        page = self._page if self._page is not None and self._page.has(path) else None

        try:
            self._check_place(request)
            access = self._find_access(request) if page is None else self._find_visitor(request, page)
        except Problem as problem:
            response = problem.to_response() if page is None else page.refuse(request, problem)
            await response(scope, receive, send)
            return

        await self._app({**scope, "access": access}, receive, send)

    def _check_place(self, request: Request) -> None:
        """Raise Problem for another host, and for a page of another origin."""
        host = request.headers.get("host", "")
        if self._tokens is None and _name_of(host) not in self._hosts:
            sentence = f"Host: is {host[:60]!r}; without tokens, call it by {' or '.join(sorted(self._hosts))}"
            raise Problem(HTTPStatus.MISDIRECTED_REQUEST, sentence, "Host")
        origin = request.headers.get("origin")
        is_own = origin is None or (host != "" and _place_of(origin) == host)
        if not is_own:
            raise Problem(HTTPStatus.FORBIDDEN, "Origin: pages of other origins may not call this", "Origin")

    def _find_access(self, request: Request) -> Access:
        if self._tokens is None or find_path(request) in self._public:
            return EVERYTHING
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        access = self._tokens.find(token.strip()) if scheme.lower() == "bearer" else None
        if access is None:
            sentence = "Authorization: names no token that is known; send 'Bearer' and a token of api_tokens_file"
            raise Problem(HTTPStatus.UNAUTHORIZED, sentence, "Authorization")
        if request.method not in READ_METHODS and not access.may_write:
            raise Problem(HTTPStatus.FORBIDDEN, "this token is for reading; use one that may write")

        return access

    def _find_visitor(self, request: Request, page: OperationsPage) -> Access:
        """Give what a person may do, who has signed in or needs not to."""
        session = request.cookies.get(name_cookie(request), "")
        access = page.tokens.find_session(session, time.time()) if page.tokens and session else None
        if access is None and self._tokens is None:
            access = READING
        if page.is_open(find_path(request)):
            return replace(access or READING, may_write=False)
        if access is None:
            raise Problem(HTTPStatus.UNAUTHORIZED, "sign in first: this page shows nothing to people without a token")
        if request.method not in READ_METHODS:
            page.check_writing(access)

        return replace(access, may_write=access.may_write and page.is_writable)


def _place_of(origin: str) -> str:
    """Give the host and port of an Origin header; empty for what is no address, as is the word null."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _name_of(host: str) -> str:
    """Give the name of a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
