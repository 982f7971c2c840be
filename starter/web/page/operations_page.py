"""The operations page as a whole: who may change what there, and what it has read of the server."""

import secrets
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from shared.keepers.gates import GateClosure
from shared.lanes import LANES
from starter.insight.doctor.checks import Finding
from starter.insight.doctor.lanes import LaneWorkers
from starter.insight.doctor.run_checks import examine_lanes
from starter.insight.forecast import Forecast, make_forecast
from starter.steering.keepers import GateControl, IdleControl, IdleStatus
from starter.steering.packs.packs import Packs
from starter.steering.pages import MessagePage, MessagePages
from starter.steering.selection import Selection
from starter.steering.stored.memo_counts import MessageCount
from starter.web.documents import Installation
from starter.web.page.sending import SelectionSending
from starter.web.page.snapshot import Snapshot
from starter.web.page.template import redirect, render, with_query
from starter.web.problems import Problem
from starter.web.requests import find_address
from starter.web.tokens import READING, Access, Tokens

COUNTED = ("active", "paused", "parked")
"""States of which the overview gives the counts."""
GROUPED_MAX = 500
"""Parked messages whose reasons are read."""
PACK_SECONDS = 3.0
"""Most that one pack of a list may take; a page has to be there within seconds."""
HOURS = (6, 24, 168)
FORECAST_SECONDS = 60.0
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
        self._installation = installation
        self._packs = Packs(installation.client, installation.settings)
        client = installation.client
        settings = installation.settings
        registry = installation.registry
        self.gate_control = GateControl(client, settings)
        self.idle_control = IdleControl(client, settings)
        self.lanes = Snapshot(partial(examine_lanes, client, settings, registry))
        self.counts = Snapshot(self._read_counts)
        self.parked = Snapshot(self._read_parked)
        self.gates = Snapshot(self._read_gates)
        self.idle = Snapshot(self._read_idle)
        self.forecasts = {hours: Snapshot(partial(self._foresee, hours), FORECAST_SECONDS) for hours in HOURS}

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

    def list_messages(self, selection: Selection) -> MessagePages:
        """Give what reads a list a page at a time."""
        return MessagePages(self._installation.client, self._packs, selection, PACK_SECONDS)

    def forget(self) -> None:
        """Read anew what a change may have changed."""
        for snapshot in (self.lanes, self.counts, self.parked, self.gates, self.idle):
            snapshot.forget()

    async def _read_counts(self) -> Mapping[str, MessageCount]:
        control = self._installation.control
        return {state: await control.estimate(Selection(state=state)) for state in COUNTED}

    async def _read_parked(self) -> MessagePage:
        return await self.list_messages(Selection(state="parked")).read(GROUPED_MAX)

    async def _read_gates(self) -> Mapping[str, GateClosure]:
        return await self.gate_control.fetch(time.time())

    async def _read_idle(self) -> list[IdleStatus]:
        return [await self.idle_control.status(lane) for lane in LANES]

    async def _foresee(self, hours: int) -> Forecast:
        api = self._installation
        return await make_forecast(api.client, api.settings, time.time(), timedelta(hours=hours), is_exact=False)


def find_page(request: Request) -> OperationsPage:
    """Give the page that a request is about."""
    return request.app.state.page


LanesFound = tuple[list[Finding], Mapping[str, LaneWorkers]]
"""What `OperationsPage.lanes` gives."""
