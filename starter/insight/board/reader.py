"""Reads what the board shows: its sections, each at its own pace, so that no slow one holds up another."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

from temporalio.client import Client

from shared.errors import ServerUnreachable
from shared.keepers.gates import GateClosure
from shared.lanes import LANES
from shared.settings import Settings
from starter.control import Control
from starter.insight.board.counts import KindCounts
from starter.insight.board.due import DueReader
from starter.insight.board.heartbeats import Heartbeats
from starter.insight.board.lane_checks import LaneChecks
from starter.insight.board.section import Section
from starter.insight.board.status import BoardStatus, DueSummary, LaneStatus, StateCounts
from starter.steering.keepers import GateControl
from starter.steering.packs.packs import Packs
from starter.steering.selection import Selection
from starter.steering.status.reasons import group_reasons

HEALTH_TIMEOUT = timedelta(seconds=3)
DUE_REST = 4.0
"""Most of the time that counting what is due takes are pauses between its calls."""

PARKED_READ = 100
REASONS_MAX = 3


class BoardReader:
    """Keeps the status of a selection up to date during `async with reader.reading()`, every `interval` seconds."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        selection: Selection,
        interval: float,
        find_full_disk: Callable[[], str],
    ) -> None:
        """Take what says that the server's disk is full, or nothing."""
        packs = Packs(client, settings)
        gates = GateControl(client, settings)
        self._server = f"{client.service_client.config.target_host} {client.namespace}"
        self._interval = interval
        self._shown = [lane for lane in LANES if selection.lane in (None, lane)]
        self._checks = LaneChecks(client, settings, find_full_disk)
        self._heartbeats = Heartbeats(client, settings.task_queue_prefix, self._shown)

        self._answered_at = Section(partial(_check_health, client), time.time())
        self._rates = Section(self._heartbeats.read, dict[str, float]())
        self._counts = Section(KindCounts(client, packs, selection).read, dict[str, StateCounts]())
        self._parked = Section(partial(_read_parked, Control(client, settings), selection), Counter[str]())
        self._due = Section(DueReader(client, packs, gates, selection).read, DueSummary(), rest=DUE_REST)
        self._gates = Section(lambda: gates.fetch(time.time()), dict[str, GateClosure]())
        self._sections = (
            *(self._answered_at, self._checks.quick, self._checks.slow, self._rates, self._counts),
            *(self._parked, self._due, self._gates),
        )

    @property
    def is_complete(self) -> bool:
        """Whether every section has been read."""
        return all(section.has_value for section in self._sections)

    async def read_once(self) -> None:
        """Read every section once. Raises RetryLater and Misconfigured."""
        first = self._checks.quick
        await first.read_once()
        await asyncio.gather(*(section.read_once() for section in self._sections if section is not first))

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        """Read on and on for the length of an `async with` block."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(section.keep(self._interval)) for section in self._sections]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    def status(self) -> BoardStatus:
        """Give what was read last."""
        faulty = next((section for section in self._sections if section.fault), None)
        fault = "" if faulty is None else faulty.fault
        next_try = 0.0 if faulty is None else max(0.0, faulty.next_at - time.monotonic())
        return BoardStatus(
            at=time.time(),
            server=self._server,
            fault=fault,
            answered_at=self._answered_at.value,
            next_try=next_try,
            findings=self._checks.list_wrong(),
            gone=self._heartbeats.gone,
            parked=self._parked.value.most_common(REASONS_MAX),
            counts=self._counts.value,
            lanes={lane: self._describe_lane(lane) for lane in self._shown},
            due=self._due.value,
            gates=self._gates.value,
        )

    def _describe_lane(self, lane: str) -> LaneStatus:
        rate = self._rates.value.get(lane)
        if (serving := self._checks.find_serving(lane)) is None:
            return LaneStatus(calls_per_second=rate)
        return LaneStatus(len(serving.versions), serving.waiting, serving.waits.total_seconds(), rate)


async def _check_health(client: Client) -> float:
    """Give when the server has answered that it is ready."""
    if not await client.service_client.check_health(timeout=HEALTH_TIMEOUT):
        raise ServerUnreachable("the server says that it is not ready; look at its log")
    return time.time()


async def _read_parked(control: Control, selection: Selection) -> Counter[str]:
    listing = control.list(replace(selection, state="parked"), PARKED_READ)
    return Counter(group_reasons([listed.parked_reason async for listed in listing]))
