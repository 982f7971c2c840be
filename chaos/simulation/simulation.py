"""One simulation: builds all parts from a seed, injects faults for a while, then waits until all is well again."""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from activities.admission.gates import Gates
from activities.admission.limits import Limits
from activities.calls.dispatch import Dispatch
from activities.http.client import HttpClient
from activities.registry import Registry
from chaos.simulation.bridge import Bridge
from chaos.simulation.client import SimulatedClient
from chaos.simulation.faults import Faults
from chaos.simulation.handlers import SILENT, Handlers
from chaos.simulation.ledger import Ledger, Violation
from chaos.simulation.liveness import check_end
from chaos.simulation.replay_check import ReplayCheck
from chaos.simulation.server.server import Server
from chaos.simulation.users.users import Users
from chaos.simulation.virtual_time import VirtualLoop, virtual_clocks
from chaos.simulation.worker.worker import Worker
from shared.messages.encoding import Pack
from shared.messages.placement import Layout
from shared.settings import Settings
from shared.telemetry.sdk import Telemetry

QUIET_SECONDS = 420.0
"""Time after the last fault: three times as long as it takes to detect anything that is lost."""

_HTTP = HttpClient(Settings())
"""No simulated handler uses it; shared, because opening a client takes longer than a short simulation."""


def _read_clock() -> float:
    return time.time()  # looked up at each call: `virtual_clocks` replaces it


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulation."""

    seed: int
    failure: str
    steps: int
    calls: int
    hits: Counter[str]
    last_steps: list[str]
    virtual_seconds: float


def simulate(seed: int) -> Outcome:
    """Run one simulation; the same seed always gives the same simulation."""
    loop = VirtualLoop()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the log of all faults would hide the result

    try:
        with virtual_clocks(loop, seed):
            asyncio.set_event_loop(loop)
            return loop.run_until_complete(_World(seed, loop).run())
    finally:
        logging.disable(before)
        asyncio.set_event_loop(None)
        loop.close()


class _World:
    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self._seed = seed
        self._loop = loop
        self._rng = random.Random(seed)
        self._workers = 0

    async def run(self) -> Outcome:
        self._build()
        self._loop.set_exception_handler(self._note_error)
        work = [asyncio.create_task(self._live())]
        await asyncio.wait([*work, self.ledger.broken], return_when=asyncio.FIRST_COMPLETED)
        failure = ""

        try:
            done = self.ledger.broken if self.ledger.broken.done() else work[0]
            done.result()
        except Violation as exc:
            failure = str(exc)

        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()

        await asyncio.wait(others, timeout=5) if others else None
        self.ledger.broken.cancel()
        ledger = self.ledger
        self.faults.hits["called again after a fault"] = ledger.repeated_by_faults

        return Outcome(
            self._seed, failure, ledger.count, ledger.calls, self.faults.hits, list(ledger.steps), self._loop.time()
        )

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Let no error of a callback pass unseen: a model that stands still would look like a broken promise."""
        if isinstance(context.get("exception"), Exception):
            self.ledger.violate(f"{context['message']}: {context['exception']!r}")

    def _build(self) -> None:
        rng = self._rng
        self.faults = Faults(random.Random(rng.random()))
        self.ledger = Ledger(self.faults.skew)
        self._replays = ReplayCheck(random.Random(rng.random()), self.ledger)

        self.server = Server(random.Random(rng.random()), self.faults, self._replays.watch, self.ledger.note_failure)
        if self.faults.has("history long"):
            self.server.suggest_after = rng.choice([15, 40, 100])

        self.settings = Settings(patience=timedelta(minutes=4))
        self._cached = rng.choice([1, 2, 4, 100])
        self._drain = rng.choice([2.0, 30.0])
        self.client = SimulatedClient(self.server, self.faults, random.Random(rng.random()))
        lane = rng.choice(["short", "short", "medium"])
        size = rng.choice([4, 20, 200])
        self._pack = Pack(packs=rng.choice([1, 2, 3, 8]), size=size, coalesce=timedelta(seconds=rng.choice([0, 5, 30])))
        self._delays = rng.choice([(1.0, 3.0), (1.0, 10.0), (5.0, 60.0), (5.0, 120.0)])
        self._tolerance = rng.choice([0.0, 5.0, 30.0])
        self._pad = rng.choice([0, 0, 0, 3500]) if self._delays[1] > 10 else 0
        handlers = Handlers(str(self._seed), self.faults, self.ledger, self._delays, self._tolerance)
        self._registry = Registry(("simulation", h) for h in handlers.build(lane, self._pack))
        layout = Layout.of("packed", lane, self._pack)
        self.users = Users(
            rng=random.Random(rng.random()),
            client=self.client,
            settings=self.settings,
            faults=self.faults,
            ledger=self.ledger,
            layout=layout,
            pad=self._pad,
        )
        self.bridge = Bridge(random.Random(rng.random()), self.users, self.faults, self.ledger, self._pad)
        self._processes: list[Worker] = []

        for _ in range(2):
            self._start_worker()

    def _start_worker(self) -> None:
        self._workers += 1
        settings = self.settings
        gates = Gates("dormice", _read_clock)
        limits = Limits("dormice")
        telemetry = Telemetry(is_on=False)
        dispatch = Dispatch(self._registry, settings, _HTTP.get_session, gates, limits, telemetry, clock=_read_clock)
        worker = Worker(
            f"worker-{self._workers}",
            self.server,
            dispatch,
            self.client,
            seed=str(self._seed),
            cached=self._cached,
            drain=self._drain,
        )
        self._processes = [*(other for other in self._processes if other.process.is_alive), worker]
        self.server.matching.workers = list(self._processes)

    async def _live(self) -> None:
        rng = self._rng
        seconds = rng.choice([60.0, 120.0, 240.0]) if self._delays[1] > 10 else 60.0
        count = rng.choice([3, 8, 20]) if self._pad == 0 else 60
        ids = [f"m{n}" for n in range(count)]
        solo = [f"s{n}" for n in range(rng.choice([0, 2, 6]))]
        steps: list[Coroutine[Any, Any, None]] = [
            self.users.senders.start_packed(ids[n::3], seconds / 3) for n in range(min(3, count))
        ]
        silent = [f"{SILENT}{n}" for n in range(rng.choice([0, 0, 1, 3]))]
        steps += [self.users.senders.start_packed([message_id], seconds / 3) for message_id in silent]
        steps += [self.users.senders.start_solo(message_id, seconds / 3) for message_id in (*solo, *silent[:1])]
        steps += [self.users.steerers.steer_for_long(ids[n::2], seconds) for n in range(2)]
        steps.append(self.users.steerers.steer_solo_for_long(solo, seconds))
        if rng.random() < 0.4:
            steps.append(self.users.layout.repack(self._pack.packs + rng.randint(1, 3), rng.uniform(0, seconds)))

        bridged = rng.random() < 0.6
        if bridged:
            steps.append(self.bridge.produce([f"b{n}" for n in range(rng.choice([2, 6]))], seconds))

        working = [asyncio.create_task(step) for step in steps]
        consumer = asyncio.create_task(self.bridge.consume())
        trouble = asyncio.create_task(self._trouble())
        await asyncio.sleep(seconds)
        trouble.cancel()
        self._heal()
        await asyncio.sleep(QUIET_SECONDS)

        for task in (*working, consumer):
            if task.done():
                task.result()
            elif task is not consumer:
                raise Violation(f"somebody still waits for an answer: {task.get_coro()}")

        check_end(self.server, self.ledger, self.bridge)

    async def _trouble(self) -> None:
        """Kill, stop or drain worker processes, or empty their caches, at random times."""
        while True:
            await asyncio.sleep(1.0)
            for worker in list(self._processes):
                if self.faults.strikes("worker killed"):
                    worker.kill()
                elif self.faults.strikes("worker stalled"):
                    worker.process.stall(self._rng.choice([3.0, 30.0, 90.0]))
                elif self.faults.strikes("worker drained"):
                    worker.drain()
                if self.faults.strikes("cache evicted"):
                    worker.workflows.evict()

            if len([worker for worker in self._processes if worker.process.is_alive]) < 2 and self._rng.random() < 0.3:
                self._start_worker()

    def _heal(self) -> None:
        self.ledger.note("nothing goes wrong from here on")
        self.faults.stop()
        for worker in self._processes:
            worker.process.resume()
        for _ in range(2):
            self._start_worker()
