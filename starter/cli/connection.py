"""The connections of a command: short-lived, and silent on standard output."""

import logging
from typing import TYPE_CHECKING, Any

from shared.settings import Settings

if TYPE_CHECKING:
    from temporalio.client import Client

    from starter.control import Control


async def open_client(settings: Settings, *, is_starting: bool = False) -> "Client":
    """Connect; with `is_starting`, check first whether the server can take new messages."""
    from shared.temporal.connect import check_server, connect

    mute_core()
    client = await connect(settings)
    if is_starting:
        await check_server(client)
    return client


def mute_core() -> None:
    """Keep the SDK's core from logging its retries to standard output, which belongs to a command's data."""
    from temporalio.runtime import Runtime, TelemetryConfig

    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)), error_if_already_set=False)


async def open_control(settings: Settings) -> "Control":
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
