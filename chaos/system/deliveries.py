"""Deliveries of workflow tasks that the server has lost during a run, summed through its restarts."""

import asyncio
import contextlib

from shared.errors import RetryLater
from starter.insight.doctor.deliveries import Deliveries, fetch_deliveries

EVERY_SECONDS = 1.0
NONE = Deliveries(given_up=0, lost=0)


class DeliveryCount:
    """Counts what went wrong; a server that is started again begins its own counters at 0."""

    def __init__(self) -> None:
        self.total = NONE
        self._last = NONE

    def add(self, seen: Deliveries) -> None:
        """Add what the server's counters have gained since they were last seen."""
        has_begun_again = seen.lost < self._last.lost or seen.given_up < self._last.given_up
        last = NONE if has_begun_again else self._last
        self._last = seen
        self.total = Deliveries(
            given_up=self.total.given_up + seen.given_up - last.given_up,
            lost=self.total.lost + seen.lost - last.lost,
        )

    async def watch(self, url: str) -> None:
        """Read the server's metrics every second, for ever; a server that is away is read again later."""
        while True:
            with contextlib.suppress(RetryLater):
                self.add(await fetch_deliveries(url))
            await asyncio.sleep(EVERY_SECONDS)
