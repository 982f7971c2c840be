"""A worker process under measurement: runs bare or dormice workers for a while and prints what it did as JSON."""

import asyncio
import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import psutil
from temporalio.client import Client
from temporalio.service import GrpcCompression
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from activities import Again, Context, Message, handler
from activities.registry import Registry
from bench.bare_loop import BareActivity, BareLoop
from shared.lanes import task_queue
from shared.settings import Settings
from worker.profiles import PROFILES
from worker.run import WorkerPlan, run_workers

KIND = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to measure. `slots`, `cache` and the like replace the short lane's own numbers where given."""

    what: str  # "bare" or "dormice"
    prefix: str
    seconds: float
    warmup: float = 5.0
    io_seconds: float = 0.005
    slots: int = PROFILES["short"].workflow_slots
    cache: int = PROFILES["short"].cached_workflows
    pollers: int = PROFILES["short"].workflow_pollers
    cycles_per_run: int = 5
    index_after: float = 60.0
    sandbox: bool = False
    gzip: bool = False


@dataclass(slots=True)
class Measured:
    """What was seen: cycles in the window, processor seconds spent in it, memory at its end, calls made twice."""

    cycles: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    repeated: int = 0

    @property
    def rate(self) -> float:
        """Cycles a second."""
        return self.cycles / self.seconds if self.seconds else 0.0

    @property
    def cpu_ms(self) -> float:
        """Processor milliseconds of the worker per cycle."""
        return 1000 * self.cpu_seconds / self.cycles if self.cycles else 0.0


class Counter:
    """Counts handler calls, and those that ran a version of a message a second time."""

    def __init__(self) -> None:
        self.calls = 0
        self.repeated = 0
        self._seen: dict[str, int] = {}

    def note(self) -> None:
        """Count a call."""
        self.calls += 1

    def note_version(self, message_id: str, version: int) -> None:
        """Count a call, and whether it repeats one."""
        self.calls += 1
        self.repeated += self._seen.get(message_id, -1) >= version
        self._seen[message_id] = version


async def measure(order: Order) -> Measured:
    """Run the worker and measure a window after the warm-up."""
    counter, stopping = Counter(), asyncio.Event()
    running = asyncio.create_task(_serve(order, counter, stopping))
    await asyncio.sleep(order.warmup)
    calls, cpu, began = counter.calls, _cpu(), time.monotonic()
    await asyncio.wait([running], timeout=order.seconds)
    measured = Measured(
        cycles=counter.calls - calls,
        seconds=time.monotonic() - began,
        cpu_seconds=_cpu() - cpu,
        rss_bytes=psutil.Process().memory_info().rss,
        repeated=counter.repeated,
    )
    stopping.set()
    await running
    return measured


async def _serve(order: Order, counter: Counter, stopping: asyncio.Event) -> None:
    compression = GrpcCompression.GZIP if order.gzip else GrpcCompression.NONE
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], grpc_compression=compression)
    if order.what == "bare":
        worker = Worker(
            client,
            task_queue=task_queue(order.prefix, "short"),
            workflows=[BareLoop],
            activities=[BareActivity(counter.note, order.io_seconds).process],
            workflow_runner=SandboxedWorkflowRunner() if order.sandbox else UnsandboxedWorkflowRunner(),
            max_cached_workflows=order.cache,
            max_concurrent_workflow_tasks=order.slots,
            max_concurrent_local_activities=order.slots + 1,
            max_concurrent_workflow_task_polls=order.pollers,
            no_remote_activities=True,
        )
        async with worker:
            await stopping.wait()
        return

    @handler(KIND)
    async def bench(message: Message, ctx: Context) -> Again:  # noqa: ARG001 — the shape of every handler
        await asyncio.sleep(order.io_seconds)
        counter.note_version(message.id, message.version)
        return Again(after=timedelta(seconds=message.payload["delay"]), tolerance=timedelta(0))

    short = replace(
        PROFILES["short"], workflow_slots=order.slots, cached_workflows=order.cache, workflow_pollers=order.pollers
    )
    plan = WorkerPlan(
        settings=Settings(
            task_queue_prefix=order.prefix,
            cycles_per_run=order.cycles_per_run,
            index_after=timedelta(seconds=order.index_after),
            sandbox=order.sandbox,
        ),
        registry=Registry([("bench", bench)]),
        lanes=("short",),
        drain=timedelta(seconds=5),
        profiles={"short": short},
    )
    await run_workers(client, plan, stopping)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(argument: str) -> None:
    """Measure as the JSON argument orders and print the result."""
    order = Order(**json.loads(argument))
    measured = asyncio.run(measure(order))
    result: dict[str, Any] = asdict(measured)
    print(json.dumps(result), flush=True)
    os._exit(0)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300


if __name__ == "__main__":
    main(sys.argv[1])
