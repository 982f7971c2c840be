"""The command `dev`: the embedded server, a worker for all lanes and optionally a broker, ended together in order."""

import argparse
import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import InvalidSetting, Misconfigured
from shared.settings import ENV_PREFIX, Settings
from starter.cli.arguments import COUNT, Commands, port
from starter.cli.exit_codes import FINE, WRONG
from starter.cli.interruption import run_until_signal
from starter.cli.processes.page import has_web, serve_beside
from starter.local.terminal import echo_err

if TYPE_CHECKING:
    from starter.local.embedded import EmbeddedOptions, EmbeddedServer
    from starter.local.kafka.broker import BrokerOptions, EmbeddedBroker

DEFAULT_DATA = Path(".dormice")
DEFAULT_PORT = 7233
DEFAULT_UI_PORT = 8233
DEFAULT_KAFKA_PORT = 9092
DEFAULT_PAGE_PORT = 8236
"""Beside that of 'dormice serve', which may run on the same machine."""
NO_PAGE = "page     none; install dormice with the extra web for a page of what is wrong, waits and is parked"
DRAIN_SECONDS = 10
RESTART_SECONDS, RESTART_SECONDS_MAX = 0.5, 30.0
LEAVE_SECONDS = 30.0
"""Time limit for the worker to end: its drain time, and more to hand back what did not finish."""


def add(commands: Commands) -> None:
    purpose = "run a server and a worker on this machine until Ctrl-C; messages survive"
    add = commands.add("dev", _run, purpose, prints_data=False).add_argument
    add("--data", metavar="DIR", type=Path, default=DEFAULT_DATA, help=f"where messages are kept ({DEFAULT_DATA})")
    add("--port", type=port, default=DEFAULT_PORT, help=f"the server's port ({DEFAULT_PORT}); 0: a free one")
    add("--ui-port", type=port, default=DEFAULT_UI_PORT, help=f"the Web UI's port ({DEFAULT_UI_PORT}); 0: a free one")
    add("--no-ui", action="store_true", help="run without the Web UI")
    page_port_help = f"the operations page's port ({DEFAULT_PAGE_PORT}); 0: a free one"
    add("--page-port", type=port, default=DEFAULT_PAGE_PORT, help=page_port_help)
    add("--no-page", action="store_true", help="run without the operations page")
    add("--page-writes", action="store_true", help="let people who sign in change things on the page")
    normal = "normal: a killed process loses nothing, a power cut may lose the last moments"
    add("--sync", choices=("normal", "full"), default="normal", help=f"{normal}; full: nor does that (slower)")
    where = f"on this port ({DEFAULT_KAFKA_PORT}; 0: a free one)"
    kafka_help = f"run a Kafka broker too, {where}; its first run fetches Kafka"
    add("--kafka", metavar="PORT", nargs="?", const=DEFAULT_KAFKA_PORT, type=port, help=kafka_help)
    add("--processes", **COUNT, default=1, help="worker processes (1)")


def _run(args: argparse.Namespace, settings: Settings) -> int:
    from shared.temporal.encryption import build_converter
    from starter.local.embedded import EmbeddedOptions
    from starter.local.supervised_process import find_free_port

    build_converter(settings)  # raises for a wrong key before anything runs
    options = EmbeddedOptions(
        data=args.data,
        port=args.port or find_free_port(),
        ui_port=None if args.no_ui else args.ui_port or find_free_port(),
        sync=args.sync,
    )
    broker_options = None if args.kafka is None else _plan_broker(options, args.kafka)
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


def _check_page_port(args: argparse.Namespace, server: "EmbeddedOptions") -> None:
    from starter.local.supervised_process import check_free

    for name, taken in (("--port", server.port), ("--ui-port", server.ui_port), ("--kafka", args.kafka)):
        if args.page_port and args.page_port == taken:
            raise InvalidSetting(f"--page-port: is {args.page_port}, the same as {name}; choose another")
    if args.page_port and has_web():
        check_free("page-port", args.page_port)


async def _serve(
    options: "EmbeddedOptions", broker_options: "BrokerOptions | None", args: argparse.Namespace, settings: Settings
) -> int:
    from starter.local.disk import watch_disk
    from starter.local.embedded import run_embedded

    watching = watch_disk(options.data, options.log, echo_err)
    async with (
        run_embedded(options) as server,
        watching,
        _open_broker(broker_options) as broker,
        _open_page(args, settings, server, broker) as page,
    ):
        return await _keep_working(args, server, broker, page)


def _open_page(
    args: argparse.Namespace, settings: Settings, server: "EmbeddedServer", broker: "EmbeddedBroker | None"
) -> AbstractAsyncContextManager[list[str]]:
    if args.no_page or not has_web():
        return contextlib.nullcontext([] if args.no_page else [NO_PAGE])
    settings = replace(settings, page_writes=settings.page_writes or args.page_writes)
    return serve_beside(server, settings, args.page_port, None if broker is None else broker.address)


def _open_broker(options: "BrokerOptions | None") -> "AbstractAsyncContextManager[EmbeddedBroker | None]":
    if options is None:
        return contextlib.nullcontext()
    from starter.local.kafka.broker import run_broker
    from starter.local.kafka.jars import KAFKA_VERSION, find_cache, has_jars

    if not has_jars(find_cache()):
        echo_err(f"fetching Apache Kafka {KAFKA_VERSION} (43 MB) into {find_cache()}, once; this takes about a minute")
    return run_broker(options)


async def _keep_working(
    args: argparse.Namespace, server: "EmbeddedServer", broker: "EmbeddedBroker | None", page: Sequence[str]
) -> int:
    """Run the worker, and restart it when it dies; gives its exit code when it drained or refused its configuration."""
    from starter.local.supervised_process import start_supervised, stop_supervised

    env, deaths = _environment(os.environ, server.address, dict(args.set)), 0
    while True:
        worker, began = await start_supervised(_worker_command(args), env=env), time.monotonic()
        if not deaths:
            _greet(server, broker, page)
        try:
            code = await _first_end(worker, server, broker)
        finally:
            if worker.returncode is None:
                rest = "the server" if broker is None else "the broker and the server"
                echo_err(f"draining the worker, then stopping {rest}; Ctrl-C leaves at once")
            await stop_supervised(worker, LEAVE_SECONDS)
        if code in (FINE, WRONG):
            echo_err(f"the worker has ended with code {code}")
            return code
        deaths = 1 if time.monotonic() - began > RESTART_SECONDS_MAX else deaths + 1
        pause = min(RESTART_SECONDS_MAX, RESTART_SECONDS * 2**deaths) * random.uniform(0.5, 1)  # noqa: S311 — no secret
        echo_err(f"the worker has ended with code {code}; the server stays, and a new worker starts in {pause:.1f} s")
        await asyncio.sleep(pause)


async def _first_end(
    worker: asyncio.subprocess.Process, server: "EmbeddedServer", broker: "EmbeddedBroker | None"
) -> int:
    """Wait until one of them ends; gives the worker's exit code, and raises if it was the server or the broker."""
    from starter.local.disk import check_room

    worker_end = asyncio.create_task(worker.wait())
    logs = {asyncio.create_task(server.wait()): ("server", server.options.log)}
    if broker is not None:
        logs[asyncio.create_task(broker.wait())] = ("broker", broker.options.log)
    try:
        ended, _ = await asyncio.wait({worker_end, *logs}, return_when=asyncio.FIRST_COMPLETED)
        if worker_end in ended:
            return worker_end.result()
        name, log = logs[ended.pop()]
        check_room(server.options.data)
        raise Misconfigured(f"the embedded {name} has ended by itself; read {log}")
    finally:
        for task in (worker_end, *logs):
            task.cancel()


def _worker_command(args: argparse.Namespace) -> list[str]:
    # -P: a folder named like our packages in the working folder must not be imported
    command = [sys.executable, "-P", "-m", "starter", "worker"]
    command += ["--processes", str(args.processes), "--drain-seconds", str(DRAIN_SECONDS)]
    return command if args.config is None else [*command, "--config", str(args.config)]


def _environment(environ: Mapping[str, str], address: str, given: Mapping[str, str]) -> dict[str, str]:
    """Give the worker's environment: it connects to this server, whatever Temporal's own settings say.

    Settings `given` by flag are passed in it, too: they may be secrets, and a command line is visible to everybody.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("TEMPORAL_")}
    settings = {ENV_PREFIX + name.upper(): value for name, value in given.items()}
    return {**kept, **settings, "TEMPORAL_ADDRESS": address, "TEMPORAL_CONFIG_FILE": os.devnull}


def _greet(server: "EmbeddedServer", broker: "EmbeddedBroker | None", page: Sequence[str]) -> None:
    lines = [f"server   {server.address}, messages are kept in {server.options.data}"]
    if server.ui_url is not None:
        lines.append(f"Web UI   {server.ui_url}")
    lines += page
    if broker is not None:
        lines.append(f"Kafka    {broker.address}, records are kept in {broker.options.data}")
    lines.append("try, in another terminal:")
    if server.options.port != DEFAULT_PORT:
        lines.append(f"  export TEMPORAL_ADDRESS={server.address}")
    lines += [
        """  dormice start echo hello --payload '{"delay": 5}'""",
        "  dormice show echo:hello",
        "  dormice list",
        f"Ctrl-C ends {'both' if broker is None else 'all three'}; nothing is lost",
    ]
    echo_err("\n".join(lines))
