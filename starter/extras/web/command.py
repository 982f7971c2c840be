"""The command `serve`."""

import asyncio
import ipaddress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from click import option

from shared.errors import InvalidSetting, check_extra
from shared.exit import FINE
from shared.settings import Settings
from starter.cli.arguments import PORT, Arguments
from starter.cli.connection import open_client
from starter.cli.interruption import call_at_signals
from starter.cli.program import program
from starter.extras.web.serving.page import WEB_PACKAGES, describe_page
from starter.local.disk import DEFAULT_DATA
from starter.local.terminal import echo_err

if TYPE_CHECKING:
    from starter.extras.web.tokens import Tokens

DEFAULT_PORT = 8235
PATIENCE_MAX = timedelta(seconds=20)
"""Callers repeat a request themselves, so none waits longer for the server."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")

HELP = """\
Starts, upserts, shows, steers and lists messages for applications; /openapi.json describes it. People find the
operations page at its address. It keeps nothing, so as many as you like may stand behind a load balancer. Without
api_tokens_file it answers on this machine alone, and lets whoever calls it do everything. SIGTERM and Ctrl-C let
requests under way finish."""


@program.command("serve", epilog=HELP, prints_data=False)
@option("--port", **PORT, default=DEFAULT_PORT, help=f"where to listen ({DEFAULT_PORT}); 0: a free one")
@option("--no-page", is_flag=True, help="answer programs only: no operations page for people")
@option(
    "--page-writes",
    is_flag=True,
    help="let people who sign in change things on the page; without it they can only look",
)
@option("--host", metavar="HOST", default="127.0.0.1", help="address to listen on (127.0.0.1)")
def run(args: Arguments, settings: Settings) -> int:
    """Answer applications over HTTP until SIGTERM or Ctrl-C."""
    from worker.process import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(args, settings))


async def _serve(args: Arguments, settings: Settings) -> int:
    from importlib.metadata import version

    from activities.registry import load_registry
    from shared.telemetry.logs import set_up_logs
    from starter.steering.status.web_ui import find_ui_address
    from worker.process import tune_memory

    check_extra("web", "serving", *WEB_PACKAGES)
    from starter.extras.web.documents import Installation
    from starter.extras.web.page.operations_page import OperationsPage
    from starter.extras.web.serving.application import make_application
    from starter.extras.web.serving.server import serving

    set_up_logs(settings)
    tokens = _load_tokens(args, settings)
    settings = replace(
        settings,
        patience=min(settings.patience, PATIENCE_MAX),
        page_writes=settings.page_writes or args.page_writes,
    )
    client = await open_client(settings, is_starting=True)
    installation = Installation(client=client, settings=settings, registry=load_registry(settings))
    ui_address = find_ui_address(settings, client.service_client.config.target_host, DEFAULT_DATA)
    page = None if args.no_page else OperationsPage(installation, version("dormice"), tokens, ui_address=ui_address)
    application = make_application(installation, version("dormice"), tokens, {*LOOPBACK, args.host}, page)
    stopping = asyncio.Event()
    call_at_signals(stopping.set)
    tune_memory()
    async with serving(application, args.host, args.port) as address:
        audience = "" if tokens else ", for whoever is on this machine"
        echo_err(f"HTTP API at {address}{audience}")
        if page is not None:
            echo_err("\n".join(describe_page(page, address)))
        await stopping.wait()
    return FINE


def _load_tokens(args: Arguments, settings: Settings) -> "Tokens | None":
    from starter.extras.web.tokens import Tokens

    if settings.api_tokens_file:
        return Tokens.load(Path(settings.api_tokens_file))
    if args.host not in LOOPBACK and not _is_loopback(args.host):
        raise InvalidSetting(
            f"--host: {args.host} can be reached from other machines; set api_tokens_file first, as docs/http-api.md "
            "shows, or leave --host out"
        )
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
