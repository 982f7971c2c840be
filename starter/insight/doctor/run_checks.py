"""The examination: all checks on one installation, in the order of the report."""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from temporalio.client import Client

from activities.registry import Registry
from shared.settings import Settings
from starter.insight.doctor.checks import Check, Finding, fine, run_checks, wrong
from starter.insight.doctor.kafka import Kafka
from starter.insight.doctor.lanes import Lanes, LaneWorkers
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
    metrics: str = "",
) -> list[Finding]:
    """Make all checks but those of the machine, which were made before; errors become findings, none is raised.

    `registry` are the handlers, `data` is the folder of an embedded server, `topics` are those that bridges consume.
    `seconds` is the time limit of each check that calls a server, `now` this machine's clock, `metrics` the address of
    the server's own metrics.
    """
    server = Server(open_client, settings, data, now, metrics)
    groups = ([*server.checks(), *Lanes(server, registry).checks()], Kafka(settings, topics).checks())
    found = await asyncio.gather(*(run_checks(checks, seconds) for checks in groups))

    return [finding for findings in found for finding in findings]


LANE_CHECKS = ("workers", "backlog", "overdue", "workflows", "kinds")
"""What may go wrong from one minute to the next, and costs few calls however many messages there are."""


async def examine_lanes(
    client: Client, settings: Settings, registry: Registry, *, seconds: float = 5.0
) -> tuple[list[Finding], Mapping[str, LaneWorkers]]:
    """Make the checks of the lanes, and of nothing else but that the server answers; gives the lanes' workers, too."""

    async def connect(_: Settings) -> Client:
        return client

    async def check_health() -> Finding:
        is_serving = await client.service_client.check_health()
        return fine("it answers") if is_serving else wrong("it is not serving", "see whether it is well")

    server = Server(connect, settings, Path())
    server.client = client
    lanes = Lanes(server, registry)
    checks = [Check("server", check_health), *(check for check in lanes.checks() if check.name in LANE_CHECKS)]
    return await run_checks(checks, seconds), lanes.serving
