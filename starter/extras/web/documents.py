"""Documents: what the API answers with, and what every endpoint has at hand."""

from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from temporalio.client import Client

from activities.registry import Registry
from shared.settings import Settings
from starter.control import Control
from starter.local.terminal import write_json


@dataclass(frozen=True, kw_only=True)
class Installation:
    """What the API speaks for."""

    client: Client
    settings: Settings
    registry: Registry

    @cached_property
    def control(self) -> Control:
        """The verbs."""
        return Control(self.client, self.settings, self.registry)


def find_api(request: Request) -> Installation:
    """Give what a request is about."""
    return request.app.state.installation


def answer(document: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Answer with a document as JSON, which no cache may keep."""
    return Response(write_json(document), status.value, {"Cache-Control": "no-store"}, "application/json")
