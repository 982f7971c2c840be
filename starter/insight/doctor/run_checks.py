"""The examination: all checks on one installation, in the order of the report."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from activities.registry import Registry
from shared.settings import Settings
from starter.insight.doctor.checks import Finding, run_checks
from starter.insight.doctor.kafka import Kafka
from starter.insight.doctor.lanes import Lanes
from starter.insight.doctor.server import OpenClient, Server


async def examine(
    settings: Settings,
    registry: Registry | None,
    open_client: OpenClient,
    *,
    data: Path = Path(".dormice"),
    topics: tuple[str, ...] = (),
    seconds: float = 10.0,
    now: Callable[[], float] = time.time,
) -> list[Finding]:
    """Make all checks but those of the machine, which were made before; errors become findings, none is raised.

    `registry` are the handlers, `data` is the folder of an embedded server, `topics` are those that bridges consume.
    `seconds` is the time limit of each check that calls a server, `now` this machine's clock.
    """
    server = Server(open_client, settings, data, now)
    groups = ([*server.checks(), *Lanes(server, registry).checks()], Kafka(settings, topics).checks())
    found = await asyncio.gather(*(run_checks(checks, seconds) for checks in groups))
    return [finding for findings in found for finding in findings]
