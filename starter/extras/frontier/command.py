"""The command `frontier`."""

import asyncio
import contextlib
import ipaddress
import re
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from click import option

from shared.errors import InvalidSetting, check_extra
from shared.exit import FINE
from shared.messages.encoding import PACKS_MAX
from shared.settings import Settings
from starter.cli.arguments import COUNT, SECONDS, Arguments, read_seconds
from starter.cli.interruption import drain_at_signal
from starter.cli.program import program
from starter.local.terminal import echo_err
from worker.options import health_options

if TYPE_CHECKING:
    from starter.extras.frontier.frontier import Frontier, FrontierOptions
    from starter.extras.frontier.server.server import FrontierServer

LISTEN = "127.0.0.1:7071"
KIND = "frontier"
PACKS = 100
BUFFER = 1_000_000

FRONTIER_HELP = """\
Crawlers put and get URLs as with any server of URLFrontier's interface. Each URL is a packed message, which sleeps
until the URL may be fetched again. One process serves a kind, and needs no other worker; a second one of the kind waits
until the first has gone. The interface knows no passwords: who reaches the address can read and delete everything.
SIGTERM and Ctrl-C drain, a second one leaves at once."""


@dataclass(frozen=True, slots=True)
class _Plan:
    listen: tuple[str, int]
    options: "FrontierOptions"
    drain: timedelta
    health: tuple[str, int] | None


@program.command("frontier", epilog=FRONTIER_HELP, prints_data=False)
@option("--listen", metavar="HOST:PORT", default=LISTEN, help=f"where crawlers connect ({LISTEN}); port 0: a free one")
@option("--kind", default=KIND, help=f"kind of the messages that the URLs are ({KIND})")
@option(
    "--packs",
    **COUNT,
    default=PACKS,
    help=f"packs of the kind, when its first URL is put ({PACKS}); a full pack holds some thousand URLs",
)
@option("--buffer", **COUNT, default=BUFFER, help=f"most URLs that wait in memory to be fetched ({BUFFER:,})")
@option("--drain-seconds", **SECONDS, default=30.0, help="what is under way gets to finish (30)")
@health_options("/healthz, /readyz and /status")
def run(args: Arguments, settings: Settings) -> int:
    """Keep the URLs of crawlers that speak URLFrontier's interface until SIGTERM or Ctrl-C."""
    from shared.telemetry.logs import set_up_logs
    from worker.process import new_event_loop

    set_up_logs(settings)
    plan = _read_plan(args, settings)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(plan, settings))


def _read_plan(args: Arguments, settings: Settings) -> _Plan:
    """Read the options; raises InvalidSetting, and Misconfigured without grpcio."""
    from activities.registry import load_registry
    from shared.messages.envelope import KIND_MAX_BYTES, KIND_PATTERN
    from starter.extras.frontier.frontier import FrontierOptions

    check_extra("frontier", "the frontier", "grpc")
    if not KIND_PATTERN.fullmatch(args.kind) or len(args.kind) > KIND_MAX_BYTES:
        flaw = f"is {args.kind!r}; give lower-case letters, digits, '_', '.' and '-', at most {KIND_MAX_BYTES}"
        raise InvalidSetting(f"--kind: {flaw}")
    if args.kind in load_registry(settings):
        raise InvalidSetting(f"--kind: {args.kind} has a handler, which would not get its messages; give another kind")
    if args.packs > PACKS_MAX:
        raise InvalidSetting(f"--packs: is {args.packs}; give a number from 1 to {PACKS_MAX:,}")
    drain = read_seconds("drain-seconds", args.drain_seconds)
    health = None if args.health_port is None else (args.health_host, args.health_port)
    return _Plan(
        listen=read_listen(args.listen),
        options=FrontierOptions(kind=args.kind, packs=args.packs, buffer=args.buffer, drain=drain),
        drain=drain,
        health=health,
    )


def read_listen(text: str) -> tuple[str, int]:
    """Read the HOST:PORT to listen at, an IPv6 address in brackets; raises InvalidSetting."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+)):([0-9]{1,5})", text)
    if found is None or int(found[3]) > 65535:
        raise InvalidSetting(f"--listen: is {text!r}; write HOST:PORT, for example {LISTEN} or [::1]:7071")
    return found[1] or found[2], int(found[3])


async def _serve(plan: _Plan, settings: Settings) -> int:
    from shared.telemetry.sdk import start_telemetry
    from shared.temporal.connect import check_server, connect
    from starter.extras.frontier.frontier import Frontier
    from starter.extras.frontier.server.server import FrontierServer
    from starter.extras.frontier.server.status import FrontierReadiness
    from worker.health import open_endpoint, watch_server
    from worker.main import HEARTBEAT, alongside
    from worker.process import tune_memory

    stopping = asyncio.Event()
    readiness = FrontierReadiness(stopping.is_set)
    with start_telemetry(settings, "dormice-frontier") as telemetry:
        async with open_endpoint(plan.health, readiness.report, {"/status": readiness.report_status}):
            client = await connect(settings, heartbeat=HEARTBEAT)  # shows others that this process is there
            await check_server(client)
            frontier = Frontier(client, settings, plan.options)
            server = FrontierServer(frontier, *plan.listen)
            readiness.frontier = frontier
            tune_memory()
            async with alongside(watch_server(client, readiness, telemetry)):
                drain_at_signal(stopping)
                await _answer(frontier, server, stopping, plan)
    echo_err("drained; every URL that was acknowledged is stored")
    return FINE


async def _answer(frontier: "Frontier", server: "FrontierServer", stopping: asyncio.Event, plan: _Plan) -> None:
    """Answer crawlers once this process alone serves the kind, until the order to stop or an error."""
    ending = asyncio.Event()
    running = asyncio.create_task(frontier.run(ending))
    try:
        await _wait_for_first(running, frontier.started.wait(), stopping.wait())
        if frontier.started.is_set() and not stopping.is_set():
            await server.start()
            _announce(server.address, plan.listen[0])
            await _wait_for_first(running, stopping.wait())
    finally:
        await server.drain(plan.drain)
        ending.set()
        await running


async def _wait_for_first(running: "asyncio.Task[None]", *events: Coroutine[Any, Any, Any]) -> None:
    waiting = [asyncio.create_task(event) for event in events]
    try:
        await asyncio.wait({running, *waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _announce(address: str, host: str) -> None:
    echo_err(f"URLFrontier's interface at {address}")
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host != "localhost":
        echo_err("dormice: warning: it knows no passwords; let nobody but crawlers reach this address")
