"""The doctor's checks of the lanes, again and again: what is quick to check more often than what is not."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from temporalio.client import Client

from shared.errors import DiskFull
from shared.settings import Settings
from starter.insight.board.section import Section
from starter.insight.doctor.checks import Finding, Severity, run_checks, worst_first
from starter.insight.doctor.lanes import Lanes, LaneWorkers
from starter.insight.doctor.server import Server

CHECK_SECONDS = 10.0
QUICK_CHECKS = ("workers", "backlog")
SLOW_CHECKS = ("overdue", "workflows")
SLOW_REST = 50.0
"""What searches the index for what is overdue may read a row of each running workflow."""

WRONG = (Severity.WRONG, Severity.WARNING)


class LaneChecks:
    """Two sections of the board, and what they have found."""

    def __init__(self, client: Client, settings: Settings, find_full_disk: Callable[[], str]) -> None:
        """Take what says that the server's disk is full, or nothing."""

        async def open_client(_: Settings) -> Client:
            return client

        server = Server(open_client, settings, Path(), time.time)
        server.client = client
        self._lanes = Lanes(server, None)
        self._find_full_disk = find_full_disk
        self.quick = Section(lambda: self._check(QUICK_CHECKS), list[Finding]())
        """Tells which lanes have workers; it is to be read first."""
        self.slow = Section(lambda: self._check(SLOW_CHECKS), list[Finding](), rest=SLOW_REST)

    def list_wrong(self) -> list[Finding]:
        """Give what is wrong, the worst first."""
        found = [*self.quick.value, *self.slow.value]
        if full := self._find_full_disk():
            found.insert(0, Finding.of(DiskFull(full)))
        return worst_first(each for each in found if each.level in WRONG)

    def find_serving(self, lane: str) -> LaneWorkers | None:
        """Give the workers that serve a lane, once that is known."""
        return self._lanes.serving.get(lane)

    async def _check(self, names: Sequence[str]) -> list[Finding]:
        checks = [check for check in self._lanes.checks() if check.name in names]
        return await run_checks([replace(check, needs=()) for check in checks], CHECK_SECONDS)
