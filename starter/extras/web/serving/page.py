"""The operations page of the commands `serve` and `dev`: made, served and announced in the same words."""

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING

from shared.errors import DormiceError, has_package
from shared.settings import Settings
from starter.cli.connection import silence_core

if TYPE_CHECKING:
    from starter.extras.web.page.operations_page import OperationsPage
    from starter.local.embedded import EmbeddedServer

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
WEB_PACKAGES = ("httptools", "jinja2", "starlette", "uvicorn")
"""What the extra `web` brings."""


def has_web() -> bool:
    """Whether what serving needs is installed."""
    return all(map(has_package, WEB_PACKAGES))


def describe_page(page: "OperationsPage", address: str) -> list[str]:
    """Say where the page is and how to change things there, in lines."""
    if page.token:
        sentence = f"to change things, sign in at {address}/sign-in with this token, valid until this process ends:"
        return [f"page     {address}", sentence, f"  {page.token}"]
    if page.is_writable:
        return [f"page     {address}"]
    return [f"page     {address}, read-only; --page-writes lets people change things"]


@contextlib.asynccontextmanager
async def serve_in_background(
    server: "EmbeddedServer", settings: Settings, port: int, servers: str | None
) -> AsyncGenerator[list[str]]:
    """Serve the page of an embedded server for a `with` block, which gets the lines that say where it is.

    `servers` are those of an embedded broker, if there is one.
    """
    from importlib.metadata import version

    from activities.registry import load_registry
    from starter.extras.web.documents import Installation
    from starter.extras.web.page.operations_page import OperationsPage
    from starter.extras.web.serving.application import make_application
    from starter.extras.web.serving.server import serving

    silence_core()
    settings = settings if servers is None else replace(settings, kafka_servers=servers)
    try:
        registry = load_registry(settings)
    except DormiceError:
        yield []  # the worker says what is wrong with the handlers
        return
    client = await server.connect(settings)
    installation = Installation(client=client, settings=settings, registry=registry)
    page = OperationsPage(installation, version("dormice"), ui_address=server.ui_url or "")
    application = make_application(installation, version("dormice"), None, NAMES, page)
    async with serving(application, HOST, port) as address:
        yield describe_page(page, address)
