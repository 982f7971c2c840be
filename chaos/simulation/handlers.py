"""Handlers: the handlers of simulated messages, which do everything that a handler may do."""

import asyncio
import random
from datetime import timedelta
from typing import Any

from activities.api.context import Context
from activities.api.handler import Handler, handler
from activities.api.outcome import Again, Done, Message, Reject, RetryAfter
from chaos.simulation.faults import Faults
from chaos.simulation.ledger.ledger import Call, Ledger
from chaos.simulation.worker.worker import WORKER, Worker
from shared.messages.encoding import Pack

PACKED = "packed"
SOLO = "solo"
TIMEOUT = timedelta(seconds=25)
MAX_ATTEMPTS = 3
IO_SECONDS = (0.1, 0.3)
LONG_IO_SECONDS = 10.0
LONG_IO_SHARE = 0.01
HANGING_IO_SHARE = 0.002
"""Shares of all calls, at all times: that a site is slow or silent is no fault of the system."""

SILENT = "silent"
"""How ids of messages begin whose site never answers."""

QUIET_DELAYS = (40.0, 80.0)
"""Delays after the last fault: long, because it is enough that each message comes back a few times until the end."""


HANGS_SECONDS = 10 * TIMEOUT.total_seconds()


def _draw_io(message: Message, rng: random.Random) -> float:
    """Draw how many seconds a call waits for its site."""
    share = rng.random()
    if message.id.startswith(SILENT) or share < HANGING_IO_SHARE:
        return HANGS_SECONDS
    if share < HANGING_IO_SHARE + LONG_IO_SHARE:
        return LONG_IO_SECONDS
    return rng.uniform(*IO_SECONDS)


class Handlers:
    """Draws what each call does from the seed, the message and the number of its calls."""

    def __init__(
        self, seed: str, faults: Faults, ledger: Ledger, delays: tuple[float, float], tolerance: float
    ) -> None:
        self._seed = seed
        self._faults = faults
        self._ledger = ledger
        self._delays = delays
        self._tolerance = tolerance

    def build(self, lane: str, pack: Pack) -> list[Handler]:
        """Build the handlers of both kinds."""
        common: dict[str, Any] = {
            "lane": lane,
            "max_attempts": MAX_ATTEMPTS,
            "timeout": TIMEOUT,
            "backoff": timedelta(seconds=1),
            "backoff_max": timedelta(seconds=10),
        }
        return [handler(PACKED, **common, encoding=pack)(self.run), handler(SOLO, **common)(self.run)]

    async def run(self, message: Message, ctx: Context) -> Again | Done | Reject:  # noqa: ARG002 — the shape of every handler
        """Handle one call."""
        worker = WORKER.get()
        await worker.process.wait_while_stalled()
        call = self._ledger.begin_call(message, worker)

        rng = random.Random(f"{self._seed}|{message.kind}:{message.id}:{message.version}:{call.number}")
        try:
            return await self._work(worker, message, rng, call)
        except asyncio.CancelledError:
            if not call.has_ended:
                self._ledger.cut_off(call, message, TIMEOUT.total_seconds())
            raise
        finally:
            call.is_open = False

    async def _work(self, worker: Worker, message: Message, rng: random.Random, call: Call) -> Again | Done | Reject:
        await asyncio.sleep(_draw_io(message, rng))
        if self._faults.strikes("handler is slow", rng):
            await asyncio.sleep(rng.uniform(0, TIMEOUT.total_seconds() - LONG_IO_SECONDS - 0.5))
        if self._faults.strikes("handler hangs", rng):
            await asyncio.sleep(HANGS_SECONDS)
        if self._faults.strikes("handler kills its worker", rng):
            worker.kill()
        await worker.process.wait_while_stalled()
        return self._end(message, rng, call)

    def _end(self, message: Message, rng: random.Random, call: Call) -> Again | Done | Reject:
        strikes = self._faults.strikes
        if strikes("handler fails", rng):
            self._ledger.end_call(call, message, "failed", 0.0)
            raise RuntimeError("simulated")

        if strikes("handler raises no exception", rng):
            self._ledger.end_call(call, message, "failed", 0.0)
            raise rng.choice([asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1)])

        if strikes("handler rejects", rng):
            self._ledger.end_call(call, message, "reject", 0.0)
            return Reject("simulated")

        if strikes("handler retries later", rng):
            delay = rng.uniform(1, 20)
            self._ledger.end_call(call, message, "retry_after", delay)
            raise RetryAfter(timedelta(seconds=delay))

        if strikes("handler is done", rng):
            self._ledger.end_call(call, message, "done", 0.0)
            return Done({"rev": message.payload["rev"]})

        return self._come_back(message, rng, call)

    def _come_back(self, message: Message, rng: random.Random, call: Call) -> Again:
        span = self._delays if self._faults.are_on else QUIET_DELAYS
        delay = rng.uniform(*span)
        self._ledger.end_call(call, message, "again", delay)
        more: dict[str, Any] = {}
        if rng.random() < 0.3:
            more["payload"] = {**message.payload, "cycle": message.version}
        if self._faults.strikes("handler moves lanes", rng):
            more["lane"] = rng.choice(["short", "medium"])
        return Again(after=timedelta(seconds=delay), tolerance=timedelta(seconds=self._tolerance), **more)
