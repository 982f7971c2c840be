"""The operations page as a whole: who may change what there, and what it has read of the server."""

import secrets
from collections import deque
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from starter.extras.web.documents import Installation
from starter.extras.web.page.sending import SelectionSending
from starter.extras.web.page.server_snapshots import ServerSnapshots
from starter.extras.web.page.template import redirect, render, with_query
from starter.extras.web.problems import Problem
from starter.extras.web.requests import find_address
from starter.extras.web.tokens import READING, Access, Tokens
from starter.steering.keepers import GateControl, IdleControl
from starter.steering.packs.packs import Packs
from starter.steering.pages import MessagePages
from starter.steering.selection import Selection

PACK_SECONDS = 3.0
"""Most that one pack of a list may take; a page has to be there within seconds."""
SENDINGS_KEPT = 20
READ_ONLY = "this page only shows; start it with --page-writes or the setting page_writes to change things here"
_OTHERS = ("/v1/", "/openapi.json", "/healthz", "/readyz")


class OperationsPage:
    """The page of one installation; `tokens` are those of its API, if it has any.

    Where it has none, a `token` of this process alone lets people change things, if the page is writable.
    """

    def __init__(
        self, installation: Installation, version: str, tokens: Tokens | None = None, *, ui_address: str = ""
    ) -> None:
        self.version = version
        self.ui_address = ui_address
        self.is_writable = installation.settings.page_writes
        self.token = secrets.token_urlsafe(18) if self.is_writable and tokens is None else ""
        self.tokens = Tokens.of_one(self.token) if self.token else tokens
        self.sendings = deque[SelectionSending](maxlen=SENDINGS_KEPT)
        client = installation.client
        settings = installation.settings
        self._client = client
        self._packs = Packs(client, settings)
        self.gate_control = GateControl(client, settings)
        self.idle_control = IdleControl(client, settings)
        self.snapshots = ServerSnapshots(installation, self.list_messages)

    def has(self, path: str) -> bool:
        """Whether an address is one of the page, and not of the API."""
        return not path.startswith(_OTHERS)

    def is_open(self, path: str) -> bool:
        """Whether an address needs no session."""
        return path in ("/sign-in", "/sign-out") or path.startswith("/static/")

    def check_writing(self, access: Access) -> None:
        """Raise Problem unless a person may change things here."""
        if not self.is_writable:
            raise Problem(HTTPStatus.FORBIDDEN, READ_ONLY)
        if not access.may_write:
            raise Problem(HTTPStatus.FORBIDDEN, "to change things, sign in with a token that may write")

    def refuse(self, request: Request, problem: Problem) -> Response:
        """Say to a person what is wrong; who has not signed in is asked to."""
        request.scope.setdefault("access", READING)
        if problem.status is HTTPStatus.UNAUTHORIZED and request.method == "GET":
            target = find_address(request)
            page = target if target != "/" else ""
            return redirect(with_query("/sign-in", next=page))
        return render(request, "problem.html", problem.status, problem=problem)

    async def begin(self, sending: SelectionSending, seconds: float) -> None:
        """Show what is done to many, and wait for it a while: it may be over soon."""
        self.sendings.appendleft(sending)
        await sending.wait(seconds)

    def list_messages(self, selection: Selection) -> MessagePages:
        """Give what reads a list a page at a time."""
        return MessagePages(self._client, self._packs, selection, PACK_SECONDS)


def find_page(request: Request) -> OperationsPage:
    """Give the page that a request is about."""
    return request.app.state.page
