"""The command `dev`: the embedded server, a worker for all lanes and optionally a broker, ended together in order."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from click import Choice, option

from shared.errors import InvalidSetting
from shared.exit import FINE
from shared.settings import ENV_PREFIX, Settings
from starter.cli.arguments import COUNT, FOLDER, PORT, Arguments
from starter.cli.connection import silence_core
from starter.cli.interruption import run_until_signal
from starter.cli.program import program
from starter.local.disk import DEFAULT_DATA
from starter.local.terminal import echo_err, has_foreground
from starter.steering.selection import Selection

if TYPE_CHECKING:
    from starter.local.embedded import EmbeddedOptions, EmbeddedServer
    from starter.local.kafka.broker import BrokerOptions, EmbeddedBroker

PAGE_GROUP = "dormice.pages"
"""The group of entry points in which what serves an operations page is found: the extra `web` may not be there."""

DEFAULT_PORT = 7233
DEFAULT_UI_PORT = 8233
DEFAULT_KAFKA_PORT = 9092
DEFAULT_PAGE_PORT = 8236
"""Beside that of 'dormice serve', which may run on the same machine."""
PAGE_PORT_HELP = f"the operations page's port ({DEFAULT_PAGE_PORT}); 0: a free one"
SYNC_HELP = (
    "normal: a killed process loses nothing, a power cut may lose the last moments; full: nor does that (slower)"
)
KAFKA_PORT: dict[str, Any] = {**PORT, "metavar": "[PORT]"}
KAFKA_HELP = f"run a Kafka broker too, on this port ({DEFAULT_KAFKA_PORT}; 0: a free one); its first run fetches Kafka"
NO_PAGE = "page     none; for a page of what is wrong, waits and is parked, install dormice with its extra 'web'"
TIME_SKIPPING = "frontend.WorkflowTimeSkippingEnabled=true"
DRAIN_SECONDS = 10
BOARD_SECONDS = 2.0


class PageServer(Protocol):
    """A module that can serve the operations page of an embedded server."""

    def has_web(self) -> bool:
        """Whether what serving needs is installed."""
        ...

    def serve_in_background(
        self, server: "EmbeddedServer", settings: Settings, port: int, servers: str | None
    ) -> AbstractAsyncContextManager[list[str]]:
        """Serve the page for a `with` block, which gets the lines that say where it is."""
        ...


@program.command("dev", prints_data=False)
@option("--data", **FOLDER, default=DEFAULT_DATA, help=f"where messages are kept ({DEFAULT_DATA})")
@option("--port", **PORT, default=DEFAULT_PORT, help=f"the server's port ({DEFAULT_PORT}); 0: a free one")
@option("--ui-port", **PORT, default=DEFAULT_UI_PORT, help=f"the Web UI's port ({DEFAULT_UI_PORT}); 0: a free one")
@option("--no-ui", is_flag=True, help="run without the Web UI")
@option("--page-port", **PORT, default=DEFAULT_PAGE_PORT, help=PAGE_PORT_HELP)
@option("--no-page", is_flag=True, help="run without the operations page")
@option("--page-writes", is_flag=True, help="let people who sign in change things on the page")
@option("--sync", type=Choice(("normal", "full")), default="normal", help=SYNC_HELP)
@option("--kafka", **KAFKA_PORT, is_flag=False, flag_value=DEFAULT_KAFKA_PORT, help=KAFKA_HELP)
@option("--processes", **COUNT, default=1, help="worker processes (1)")
@option("--reload", is_flag=True, help="start the worker anew when a file of a handler's module changes")
@option("--time-skipping", is_flag=True, help="let 'dormice skip' move the clocks of messages; experimental")
@option("--no-board", is_flag=True, help="on a terminal, print the worker's log in place of the board")
def run(args: Arguments, settings: Settings) -> int:
    """Run a server and a worker on this machine until Ctrl-C; messages survive."""
    from shared.temporal.encryption import build_converter
    from starter.local.embedded import EmbeddedOptions, find_program
    from starter.local.supervised_process import find_free_port

    build_converter(settings)  # raises for a wrong key before anything runs
    ui_port = None if args.no_ui else args.ui_port or find_free_port()
    extra_config = (TIME_SKIPPING,) if args.time_skipping else ()
    options = EmbeddedOptions(
        data=args.data,
        port=args.port or find_free_port(),
        ui_port=ui_port,
        sync=args.sync,
        extra_config=extra_config,
    )
    broker_options = None if args.kafka is None else _plan_broker(options, args.kafka)
    find_program()  # raises before a folder is made
    if not args.no_page:
        _check_page_port(args, options)
    code = asyncio.run(run_until_signal(_serve(options, broker_options, args, settings)))
    return FINE if code is None else code


def _plan_broker(server: "EmbeddedOptions", port: int) -> "BrokerOptions":
    from starter.local.kafka.broker import BrokerOptions, check_extras
    from starter.local.supervised_process import check_free, find_free_port

    check_extras()
    for name, taken in (("--port", server.port), ("--ui-port", server.ui_port)):
        if port == taken:
            raise InvalidSetting(f"--kafka: is {port}, the same as {name}; choose another")
    if port:
        check_free("kafka", port)
    return BrokerOptions(data=server.data / "kafka", port=port or find_free_port())


def _check_page_port(args: Arguments, server: "EmbeddedOptions") -> None:
    from starter.local.supervised_process import check_free

    for name, taken in (("--port", server.port), ("--ui-port", server.ui_port), ("--kafka", args.kafka)):
        if args.page_port and args.page_port == taken:
            raise InvalidSetting(f"--page-port: is {args.page_port}, the same as {name}; choose another")
    if args.page_port and _find_page_server() is not None:
        check_free("page-port", args.page_port, "no-page")


async def _serve(
    options: "EmbeddedOptions", broker_options: "BrokerOptions | None", args: Arguments, settings: Settings
) -> int:
    from starter.cli.processes.dev_worker import DevWorker, WorkerLog
    from starter.local.disk import watch_disk
    from starter.local.embedded import run_embedded
    from starter.local.handler_files import HandlerFiles

    has_board = has_foreground() and not args.no_board
    silence_core()
    watching = watch_disk(options.data, options.log, echo_err)
    async with (
        run_embedded(options) as server,
        watching,
        _open_broker(broker_options) as broker,
        _open_page(args, settings, server, broker) as page,
    ):
        log_file = options.data / "worker.log" if has_board else None
        log = WorkerLog(log_file)
        env = _environment(os.environ, server.address, dict(args.set))
        if args.reload:  # the compiled code of a file is taken for new if two versions have one size and one second
            env["PYTHONDONTWRITEBYTECODE"] = "1"
        changes = HandlerFiles(settings.handlers) if args.reload else None
        worker = DevWorker(
            server,
            broker,
            env=env,
            options=("--processes", str(args.processes), "--drain-seconds", str(DRAIN_SECONDS)),
            config=args.config,
            log=log,
            changes=changes,
        )
        async with worker:
            _greet(server, broker, page, log.path)
            async with _open_board(server, settings) if has_board else contextlib.nullcontext():
                return await worker.keep()


def _open_page(
    args: Arguments, settings: Settings, server: "EmbeddedServer", broker: "EmbeddedBroker | None"
) -> AbstractAsyncContextManager[list[str]]:
    if args.no_page:
        return contextlib.nullcontext([])

    page_server = _find_page_server()
    if page_server is None:
        return contextlib.nullcontext([NO_PAGE])

    settings = replace(settings, page_writes=settings.page_writes or args.page_writes)
    broker_address = None if broker is None else broker.address
    return page_server.serve_in_background(server, settings, args.page_port, broker_address)


def _find_page_server() -> PageServer | None:
    """Find what serves the operations page, if it is installed with all that it needs."""
    from importlib.metadata import entry_points

    for point in entry_points(group=PAGE_GROUP):
        page_server: PageServer = point.load()
        if page_server.has_web():
            return page_server

    return None


@contextlib.asynccontextmanager
async def _open_board(server: "EmbeddedServer", settings: Settings) -> AsyncGenerator[None]:
    """Show the board below what is printed; a defect of it leaves everything else at work."""
    from rich.console import Console

    from starter.insight.board.display import Display, taking_keys
    from starter.insight.board.reader import BoardReader
    from starter.local.disk import find_full_disk

    stopping = asyncio.Event()
    client = await server.connect(settings)
    reader = BoardReader(client, settings, Selection(), BOARD_SECONDS, lambda: find_full_disk(server.options.data))

    async def show() -> None:
        with taking_keys({}):
            async with reader.reading():
                footer = "Ctrl-C ends all of it; nothing is lost"
                await Display(reader, BOARD_SECONDS, stopping).draw(Console(), footer, is_alone=False)

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        stopping.set()
        (fault,) = await asyncio.gather(showing, return_exceptions=True)
        if fault is not None:
            echo_err(f"dormice: the board has ended by a defect of its own ({fault!r})")


def _open_broker(options: "BrokerOptions | None") -> "AbstractAsyncContextManager[EmbeddedBroker | None]":
    if options is None:
        return contextlib.nullcontext()
    from starter.local.kafka.broker import run_broker
    from starter.local.kafka.jars import KAFKA_VERSION, find_cache, has_jars

    if not has_jars(find_cache()):
        echo_err(f"fetching Apache Kafka {KAFKA_VERSION} (43 MB) into {find_cache()}, once; this takes about a minute")
    return run_broker(options)


def _environment(environ: Mapping[str, str], address: str, given: Mapping[str, str]) -> dict[str, str]:
    """Give the worker's environment: it connects to this server, whatever Temporal's own settings say.

    Settings `given` by flag are passed in it, too: they may be secrets, and a command line is visible to everybody.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("TEMPORAL_")}
    settings = {ENV_PREFIX + name.upper(): value for name, value in given.items()}
    return {**kept, **settings, "TEMPORAL_ADDRESS": address, "TEMPORAL_CONFIG_FILE": os.devnull}


def _greet(server: "EmbeddedServer", broker: "EmbeddedBroker | None", page: Sequence[str], log: Path | None) -> None:
    lines = [f"server   {server.address}, messages are kept in {server.options.data}"]
    if server.ui_url is not None:
        lines.append(f"Web UI   {server.ui_url}")

    lines += page
    if broker is not None:
        lines.append(f"Kafka    {broker.address}, records are kept in {broker.options.data}")
    if log is not None:
        lines.append(f"log      {log}, what the worker and its handlers say")

    lines.append("try, in another terminal:")
    if server.options.port != DEFAULT_PORT:
        lines.append(f"  export TEMPORAL_ADDRESS={server.address}")

    parts = "both" if broker is None else "all three"
    lines += [
        """  dormice start echo hello --payload '{"delay": 5}'""",
        "  dormice show echo:hello",
        "  dormice list",
        f"Ctrl-C ends {parts}; nothing is lost",
    ]
    echo_err("\n".join(lines))
