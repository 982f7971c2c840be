"""All workers of a simulation: starts their processes, has faults hit them, and ends the faults."""

import asyncio
import random
import time

from activities.admission.gates import Gates
from activities.admission.limits import Limits
from activities.calls.dispatch import Dispatch
from activities.http.client import HttpClient
from activities.registry import Registry
from chaos.simulation.server.client import SimulatedClient
from chaos.simulation.server.server import Server
from chaos.simulation.worker.worker import Worker
from shared.settings import Settings
from shared.telemetry.sdk import Telemetry

WORKERS = 2

_HTTP = HttpClient(Settings())
"""No simulated handler uses it; shared, because opening a client takes longer than a short simulation."""


def _read_clock() -> float:
    return time.time()  # looked up at each call: `virtual_clocks` replaces it


class Workers:
    """The worker processes of one simulation; `rng` draws what faults do to them."""

    def __init__(
        self,
        *,
        rng: random.Random,
        server: Server,
        client: SimulatedClient,
        registry: Registry,
        settings: Settings,
        seed: str,
        cached: int,
        drain: float,
    ) -> None:
        self._rng = rng
        self._server = server
        self._client = client
        self._registry = registry
        self._settings = settings
        self._seed = seed
        self._cached = cached
        self._drain = drain
        self._count = 0
        self._workers: list[Worker] = []

    def start(self) -> None:
        """Start as many workers as there usually are."""
        for _ in range(WORKERS):
            self._start_one()

    async def suffer(self) -> None:
        """Kill, stop or drain processes, or empty their caches, at random times; now and then start one anew."""
        while True:
            await asyncio.sleep(1.0)
            for worker in list(self._workers):
                self._strike(worker)

            alive = [worker for worker in self._workers if worker.process.is_alive]
            if len(alive) < WORKERS and self._rng.random() < 0.3:
                self._start_one()

    def heal(self) -> None:
        """Have all go on that are stopped, and start others."""
        for worker in self._workers:
            worker.process.resume()
        self.start()

    def _strike(self, worker: Worker) -> None:
        faults = self._server.faults
        if faults.strikes("worker killed"):
            worker.kill()
        elif faults.strikes("worker stalled"):
            worker.process.stall(self._rng.choice([3.0, 30.0, 90.0]))
        elif faults.strikes("worker drained"):
            worker.drain()

        if faults.strikes("cache evicted"):
            worker.workflows.evict()

    def _start_one(self) -> None:
        self._count += 1
        worker = Worker(
            f"worker-{self._count}",
            self._server,
            self._build_dispatch(),
            self._client,
            seed=self._seed,
            cached=self._cached,
            drain=self._drain,
        )
        self._workers = [*(other for other in self._workers if other.process.is_alive), worker]
        self._server.matching.workers = list(self._workers)

    def _build_dispatch(self) -> Dispatch:
        gates = Gates("dormice", _read_clock)
        limits = Limits("dormice")
        telemetry = Telemetry(is_on=False)
        return Dispatch(self._registry, self._settings, _HTTP.get_session, gates, limits, telemetry, clock=_read_clock)
