"""The examination: all checks on one installation, in the order of the report."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client

from shared.settings import Settings
from starter.insight.doctor.checks import run_checks
from starter.insight.doctor.finding import Finding
from starter.insight.doctor.kafka import Kafka
from starter.insight.doctor.lanes import Lanes
from starter.insight.doctor.machine import Machine
from starter.insight.doctor.server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What to look at: `topics` are those that bridges consume, `data` is the folder of an embedded server."""

    topics: tuple[str, ...] = ()
    data: Path = Path(".dormice")
    seconds: float = 10.0
    """Time limit of each check that calls a server."""
    now: Callable[[], float] = time.time
    """This machine's clock."""


async def examine(
    settings: Settings, scope: Scope, machine: Machine, open_client: Callable[[Settings], Awaitable[Client]]
) -> list[Finding]:
    """Make all checks but those of the machine, which were made before; errors become findings, none is raised."""
    server = Server(open_client, settings, scope.data, scope.now)
    lanes = Lanes(lambda: server.client, lambda: machine.registry, settings, scope.now)
    kafka = Kafka(settings, scope.topics)
    rooms = ([*server.checks(), *lanes.checks()], kafka.checks())
    found = await asyncio.gather(*(run_checks(checks, scope.seconds) for checks in rooms))
    return [finding for findings in found for finding in findings]
