"""Everything of which the operations page keeps a snapshot, so that its views share what was read of the server."""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial

from shared.keepers.gates import GateClosure
from shared.lanes import LANES
from starter.extras.web.documents import Installation
from starter.extras.web.page.snapshot import Snapshot
from starter.insight.board.counts import KindCounts
from starter.insight.doctor.run_checks import examine_lanes
from starter.insight.forecast import Forecast, make_forecast
from starter.steering.keepers import GateControl, IdleControl, IdleStatus
from starter.steering.packs.packs import Packs
from starter.steering.pages import MessagePage, MessagePages
from starter.steering.selection import Selection

GROUPED_MAX = 500
"""Parked messages whose reasons are read."""
HOURS = (6, 24, 168)
FORECAST_SECONDS = 60.0


class ServerSnapshots:
    """What was last read: lanes, counts, parked messages, gates, idle capacity, and a forecast for each of HOURS."""

    def __init__(self, installation: Installation, list_messages: Callable[[Selection], MessagePages]) -> None:
        self._installation = installation
        self._list_messages = list_messages
        client = installation.client
        settings = installation.settings
        registry = installation.registry
        self.lanes = Snapshot(partial(examine_lanes, client, settings, registry))
        self.counts = Snapshot(KindCounts(client, Packs(client, settings), Selection()).read_totals)
        self.parked = Snapshot(self._read_parked)
        self.gates = Snapshot(self._read_gates)
        self.idle = Snapshot(self._read_idle)
        self.forecasts = {hours: Snapshot(partial(self._foresee, hours), FORECAST_SECONDS) for hours in HOURS}

    def forget(self) -> None:
        """Read anew what a change may have changed."""
        for snapshot in (self.lanes, self.counts, self.parked, self.gates, self.idle):
            snapshot.forget()

    async def _read_parked(self) -> MessagePage:
        return await self._list_messages(Selection(state="parked")).read(GROUPED_MAX)

    async def _read_gates(self) -> Mapping[str, GateClosure]:
        return await GateControl(self._installation.client, self._installation.settings).fetch(time.time())

    async def _read_idle(self) -> list[IdleStatus]:
        control = IdleControl(self._installation.client, self._installation.settings)
        return [await control.status(lane) for lane in LANES]

    async def _foresee(self, hours: int) -> Forecast:
        api = self._installation
        return await make_forecast(api.client, api.settings, time.time(), timedelta(hours=hours), is_exact=False)
