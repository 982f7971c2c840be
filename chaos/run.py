"""One run: starts and loads the system, carries out the plan, and checks the ledger."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.checks.checkers import LATE_SECONDS
from chaos.checks.inspection import Inspection, inspect
from chaos.faults import EMBEDDED, WORKERS, make_plan
from chaos.injection import Injector
from chaos.ledger import Ledger
from chaos.load.groups import BACK_AFTER_MAX, TIMEOUT_SECONDS, TOLERANCE_SECONDS
from chaos.load.records import Records, open_producer
from chaos.load.steering import Steering
from chaos.load.workload import Sizes, Starts
from chaos.system.deliveries import DeliveryCount
from chaos.system.system import SETTINGS, System, run_system
from starter.control import Control

WARM_UP_SECONDS = 40.0
LAG = "records that the bridge did not commit"
LAG_SECONDS = 60.0
"""Most seconds that the bridge may take to commit a further record after the last fault."""

TASKS_MAX = 1000
"""Most transfer tasks that a server without pinned queues keeps some time after the last fault."""

DRAIN_SECONDS = 600.0
"""Most seconds that a queue may take to drain: the server retries a delete up to three minutes apart, and one may wait
for another."""

SPARE_SECONDS = 5.0
FINISH_SECONDS = 90.0
"""Most seconds that starts, verbs and the Spark start may take to finish after the last fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """The options of the command line."""

    minutes: float
    seed: int
    command: str = ""
    """What is typed to do the same again."""
    system: str = EMBEDDED
    sizes: Sizes = field(default_factory=Sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run, before it becomes a report."""

    injector: Injector
    inspection: Inspection
    tasks: int
    """Transfer tasks that the server keeps at the end."""
    counts: dict[str, int]
    began_at: float


async def run_chaos(options: ChaosOptions, folder: Path, notify: Callable[[str], None]) -> Outcome:
    """Carry out one run in a folder."""
    ledger = Ledger(folder / "ledger.bin")
    notify(f"the {options.system} server, a broker and workers are started; all files are in {folder}")
    async with run_system(options.system, folder, ledger, options.minutes, options.sizes.spark) as system:
        notify("Spark prepares a manifest")
        await system.spark.prepare()
        async with open_producer(system.broker_address) as producer:
            records = Records(system.broker_address, producer, ledger, options.sizes, options.seed)
            return await _Run(options, system, ledger, records, notify).carry_out()


class _Run:
    def __init__(
        self, options: ChaosOptions, system: System, ledger: Ledger, records: Records, notify: Callable[[str], None]
    ) -> None:
        self._options = options
        self._system = system
        self._ledger = ledger
        self._records = records
        self._notify = notify
        self._plan = make_plan(options.seed, options.minutes, options.system)
        self._injector = Injector(system.parts, system.disk, notify)
        self._deliveries = DeliveryCount()
        self.lag = 0

    async def carry_out(self) -> Outcome:
        client = await self._system.connect()
        starts = Starts(client, SETTINGS, self._ledger)
        steering = Steering(client, SETTINGS, self._ledger, self._options.sizes, self._options.seed)

        for name in WORKERS:
            await self._system.parts[name].start()

        await starts.start_initial(self._options.sizes)
        await self._system.parts["bridge"].start()
        self._notify(f"all messages are started; {len(self._plan)} faults follow in {self._options.minutes:g} minutes")
        began_at = time.time()

        async with _background(self._injector.watch()), _background(self._deliveries.watch(self._system.metrics_url)):
            await self._do_faults(starts, steering)
            await self._wait_for_bridge()
            await self._records.note_committed()
            self._system.spark.note_receipts(self._ledger)
            await self._wait_until_quiet()
            tasks = await self._count_tasks()
            inspection = await inspect(self._ledger, self._injector.injected, Control(client, SETTINGS), self._notify)

        return Outcome(
            injector=self._injector,
            inspection=inspection,
            tasks=tasks,
            counts=self._count(starts, steering),
            began_at=began_at,
        )

    async def _do_faults(self, starts: Starts, steering: Steering) -> None:
        """Inject all faults during the load, then let the load finish."""
        stopping = asyncio.Event()
        load = (
            starts.run(stopping, self._options.sizes.load),
            self._records.run(stopping),
            steering.run(stopping),
            self._system.spark.run(self._ledger, self._notify),
        )
        tasks = [asyncio.create_task(work) for work in load]

        try:
            await asyncio.sleep(WARM_UP_SECONDS)
            await self._injector.run(self._plan)
            self._notify("all faults are over")
            stopping.set()
            await asyncio.wait(tasks, timeout=FINISH_SECONDS)
        finally:
            await _cancel(tasks)

        await self._system.spark.part.end()

    def _count(self, starts: Starts, steering: Steering) -> dict[str, int]:
        return {
            "workflow tasks that the server took too long to deliver": self._deliveries.total.given_up,
            "deliveries that the server lost": self._deliveries.total.lost,
            "verbs acknowledged": steering.acknowledged,
            "malformed signals": steering.malformed,
            LAG: self.lag,
            "records of unknown fate": self._records.unsure,
            "starts that were refused or given up": len(starts.refused),
            "parts that ended by themselves": len(self._injector.ended),
            "runs of the Spark start": self._system.spark.runs,
        }

    async def _wait_for_bridge(self) -> None:
        """Wait until the bridge has committed every record; gives up after LAG_SECONDS without progress."""
        minimum = await self._records.read_lag()
        moved_at = time.monotonic()
        while minimum and time.monotonic() - moved_at < LAG_SECONDS:
            await asyncio.sleep(1)
            if (lag := await self._records.read_lag()) < minimum:
                minimum = lag
                moved_at = time.monotonic()
        if minimum:
            self._notify(f"the bridge has not committed {minimum} records, and none within {LAG_SECONDS:.0f} s")

        self.lag = minimum

    async def _count_tasks(self) -> int:
        """Count the server's transfer tasks; if there are many, wait up to DRAIN_SECONDS for them to be done."""
        minimum = await asyncio.to_thread(self._system.count_tasks)
        give_up_at = time.monotonic() + DRAIN_SECONDS
        if minimum >= TASKS_MAX:
            self._notify(f"the server keeps {minimum:,} transfer tasks; waiting up to {DRAIN_SECONDS:.0f} s for them")
        while minimum >= TASKS_MAX and time.monotonic() < give_up_at:
            await asyncio.sleep(1)
            minimum = min(minimum, await asyncio.to_thread(self._system.count_tasks))
        return minimum

    async def _wait_until_quiet(self) -> None:
        """Wait until each message must have come back once."""
        seconds = BACK_AFTER_MAX + TOLERANCE_SECONDS + TIMEOUT_SECONDS + LATE_SECONDS + SPARE_SECONDS
        self._notify(f"nothing is done to it for {seconds:.0f} s more")
        await asyncio.sleep(seconds)


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await _cancel([task])


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the tasks that still run, and raise the first error of a task."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (failed := task.exception()) is not None:
            raise failed
