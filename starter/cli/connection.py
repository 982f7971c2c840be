"""The connection of a command: short-lived, and silent on standard output."""

from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from shared.settings import Settings
from shared.temporal.connect import check_server, connect
from starter.control import Control


async def open_client(settings: Settings, *, is_starting: bool = False) -> Client:
    """Connect; with `is_starting`, check first whether the server can take new messages."""
    # the SDK's core logs its retries to standard output, which belongs to a command's data
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)), error_if_already_set=False)
    client = await connect(settings)
    if is_starting:
        await check_server(client)
    return client


async def open_control(settings: Settings) -> Control:
    """Connect for steering messages."""
    return Control(await open_client(settings), settings)
