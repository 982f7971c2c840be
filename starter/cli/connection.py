"""The connections of a command: short-lived, and silent on standard output."""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from shared.settings import Settings
from starter.local.disk import WATCH_SECONDS, find_full_disk_of
from starter.local.terminal import echo_err

if TYPE_CHECKING:
    from temporalio.client import Client

    from starter.control import Control


_background: set[asyncio.Task[None]] = set()
"""What runs until the command ends; a loop keeps no task alive by itself."""


async def open_client(settings: Settings, *, is_starting: bool = False, watches_disk: bool = True) -> "Client":
    """Connect; with `is_starting`, check first whether the server can take new messages.

    With `watches_disk`, the command says when the disk of `dormice dev` is full: it would wait without a word.
    """
    from shared.temporal.connect import check_server, connect, find_address

    silence_core()
    if watches_disk:
        _background.add(asyncio.create_task(_watch_disk(find_address())))
    client = await connect(settings)
    if is_starting:
        await check_server(client)
    return client


async def _watch_disk(server: str) -> None:
    while True:
        if problem := find_full_disk_of(server):
            echo_err(f"dormice: {problem}")
            return
        await asyncio.sleep(WATCH_SECONDS)


def silence_core() -> None:
    """Let the SDK's core log nothing: its retries would stand in standard output, which belongs to a command's data."""
    from temporalio.runtime import Runtime, TelemetryConfig

    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)), error_if_already_set=False)


async def open_control(settings: Settings) -> "Control":
    """Connect, for what is asked of messages that are there."""
    from starter.control import Control

    return Control(await open_client(settings), settings)


async def check_kafka(settings: Settings) -> dict[str, Any]:
    """Check that a broker answers, and give the options of its clients."""
    from shared.kafka.connection import check_broker, kafka_options

    # if the broker is away, one sentence reports that in place of the client's log lines
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    options = kafka_options(settings)
    await check_broker(settings)
    return options
