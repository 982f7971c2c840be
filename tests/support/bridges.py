"""Bridges in the process of their test: parts of them can be looked at while they run."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from shared.telemetry.sdk import Telemetry
from starter.bridge.bridge import Bridge, BridgeOptions
from starter.records.dead_letters import DeadLetterWriter
from starter.records.formats import Formats
from starter.starting.bulk import BulkStarter


@contextlib.asynccontextmanager
async def run_bridge(
    starter: BulkStarter, address: str, topic: str, formats: Formats, **changes: Any
) -> AsyncGenerator[Bridge]:
    """Run a bridge for the length of a `with` block, with options changed by name; it drains at the end.

    Its group is named after its topic.
    """
    options = BridgeOptions(topics=(topic,), group=f"group-{topic}", client={"bootstrap_servers": address}, **changes)
    writer = DeadLetterWriter(options.client)
    stopping = asyncio.Event()
    bridge = Bridge(options, formats, starter, writer.write, Telemetry(is_on=False))
    running = asyncio.create_task(bridge.run(stopping), name=_name_task(topic))

    try:
        yield bridge
    finally:
        stopping.set()
        await running
        await writer.stop()


def is_running(topic: str) -> bool:
    """Whether a bridge of this process works on a topic; one that has failed does not."""
    return any(task.get_name() == _name_task(topic) for task in asyncio.all_tasks())


def _name_task(topic: str) -> str:
    return f"bridge of {topic}"
