"""One simulation: builds all parts from a seed, injects faults for a while, then waits until all is well again."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from activities.registry import Registry
from chaos.simulation.checks.liveness import check_end
from chaos.simulation.checks.replay_check import ReplayCheck
from chaos.simulation.faults import Faults
from chaos.simulation.handlers import PACKED, SILENT, Handlers
from chaos.simulation.ledger.ledger import Ledger, Violation
from chaos.simulation.server.client import SimulatedClient
from chaos.simulation.server.server import Server
from chaos.simulation.users.bridge import Bridge
from chaos.simulation.users.users import Users
from chaos.simulation.users.workload import Workload
from chaos.simulation.virtual_time import VirtualLoop, virtual_clocks
from chaos.simulation.worker.workers import Workers
from shared.messages.placement import Layout
from shared.settings import Settings

QUIET_SECONDS = 420.0
"""Time after the last fault: three times as long as it takes to detect anything that is lost."""


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
            return loop.run_until_complete(_run(seed, loop))
    finally:
        logging.disable(before)
        asyncio.set_event_loop(None)
        loop.close()


async def _run(seed: int, loop: VirtualLoop) -> Outcome:
    return await _World(seed, loop).run()


class _World:
    """All parts of one simulation; in another order of draws each seed would mean another one."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        rng = random.Random(seed)
        self._seed = seed
        self._loop = loop
        self._rng = rng

        self._faults = Faults(random.Random(rng.random()))
        self._ledger = Ledger(self._faults.skew)
        replays = ReplayCheck(random.Random(rng.random()), self._ledger)
        self._server = Server(random.Random(rng.random()), self._faults, replays.watch, self._ledger.note_failure)
        if self._faults.has("history long"):
            self._server.suggest_after = rng.choice([15, 40, 100])

        settings = Settings(patience=timedelta(minutes=4))
        cached = rng.choice([1, 2, 4, 100])
        drain = rng.choice([2.0, 30.0])
        client = SimulatedClient(self._server, self._faults, random.Random(rng.random()))
        self._workload = Workload.draw(rng)

        self._users = Users(
            rng=random.Random(rng.random()),
            client=client,
            settings=settings,
            faults=self._faults,
            ledger=self._ledger,
            layout=Layout.of(PACKED, self._workload.lane, self._workload.pack),
            pad=self._workload.pad,
        )
        bridge_rng = random.Random(rng.random())
        self._bridge = Bridge(bridge_rng, self._users, self._faults, self._ledger, self._workload.pad)
        self._workers = Workers(
            rng=rng,
            server=self._server,
            client=client,
            registry=self._build_registry(),
            settings=settings,
            seed=str(seed),
            cached=cached,
            drain=drain,
        )
        self._workers.start()

    async def run(self) -> Outcome:
        """Live until the end, or until a promise is broken."""
        self._loop.set_exception_handler(self._note_error)
        life = asyncio.create_task(self._live())
        await asyncio.wait([life, self._ledger.broken], return_when=asyncio.FIRST_COMPLETED)
        failure = ""

        try:
            done = self._ledger.broken if self._ledger.broken.done() else life
            done.result()
        except Violation as exc:
            failure = str(exc)

        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()

        if others:
            await asyncio.wait(others, timeout=5)
        self._ledger.broken.cancel()
        return self._to_outcome(failure)

    def _to_outcome(self, failure: str) -> Outcome:
        ledger = self._ledger
        hits = self._faults.hits
        hits["called again after a fault"] = ledger.repeated_by_faults
        return Outcome(self._seed, failure, ledger.count, ledger.calls, hits, list(ledger.steps), self._loop.time())

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Let no error of a callback pass unseen: a model that stands still would look like a broken promise."""
        if isinstance(context.get("exception"), Exception):
            self._ledger.violate(f"{context['message']}: {context['exception']!r}")

    def _build_registry(self) -> Registry:
        workload = self._workload
        handlers = Handlers(str(self._seed), self._faults, self._ledger, workload.delays, workload.tolerance)
        return Registry(("simulation", each) for each in handlers.build(workload.lane, workload.pack))

    async def _live(self) -> None:
        seconds = self._workload.draw_seconds(self._rng)
        working = [asyncio.create_task(step) for step in self._draw_steps(seconds)]
        consumer = asyncio.create_task(self._bridge.consume())
        trouble = asyncio.create_task(self._workers.suffer())

        await asyncio.sleep(seconds)
        trouble.cancel()
        self._ledger.note("nothing goes wrong from here on")
        self._faults.stop()
        self._workers.heal()
        await asyncio.sleep(QUIET_SECONDS)

        for task in (*working, consumer):
            if task.done():
                task.result()
            elif task is not consumer:
                raise Violation(f"somebody still waits for an answer: {task.get_coro()}")

        check_end(self._server, self._ledger, self._bridge)

    def _draw_steps(self, seconds: float) -> list[Coroutine[Any, Any, None]]:
        """Draw what users and producers do in so many seconds."""
        rng = self._rng
        senders = self._users.senders
        steerers = self._users.steerers
        count = self._workload.draw_count(rng)
        ids = [f"m{n}" for n in range(count)]
        solo = [f"s{n}" for n in range(rng.choice([0, 2, 6]))]
        silent = [f"{SILENT}{n}" for n in range(rng.choice([0, 0, 1, 3]))]

        steps: list[Coroutine[Any, Any, None]] = []
        steps += [senders.start_packed(ids[n::3], seconds / 3) for n in range(min(3, count))]
        steps += [senders.start_packed([message_id], seconds / 3) for message_id in silent]
        steps += [senders.start_solo(message_id, seconds / 3) for message_id in (*solo, *silent[:1])]
        steps += [steerers.steer_for_long(ids[n::2], seconds) for n in range(2)]
        steps.append(steerers.steer_solo_for_long(solo, seconds))
        if rng.random() < 0.4:
            packs = self._workload.pack.packs + rng.randint(1, 3)
            steps.append(self._users.layout.repack(packs, rng.uniform(0, seconds)))

        if rng.random() < 0.6:
            bridged = [f"b{n}" for n in range(rng.choice([2, 6]))]
            steps.append(self._bridge.produce(bridged, seconds))

        return steps
