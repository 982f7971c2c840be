"""A worker process under measurement: runs bare or dormice workers for a while and prints what it did as JSON lines."""

import asyncio
import contextlib
import json
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import uvloop
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import GrpcCompression
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from activities import Again, Context, Message, handler
from activities.registry import Registry
from bench.bare_loop import BareActivity, BareLoop
from bench.bare_pack import BareBatch, BarePack, spread_factor
from shared.lanes import task_queue
from shared.settings import Settings
from shared.telemetry.sdk import start_telemetry
from shared.temporal.converter import DATA_CONVERTER
from worker.lanes.profiles import PROFILES
from worker.main import HEARTBEAT
from worker.process import tune_memory
from worker.run import WorkerPlan, run_workers

KIND = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to measure. `slots`, `cache` and the like replace the short lane's own numbers where given."""

    what: str  # "bare", "dormice", "bare-pack", or "pack", whose kind is the prefix unless there are `kinds`
    prefix: str
    kinds: tuple[str, ...] = ()
    seconds: float
    windows: int = 1  # so many times `seconds`, a line of JSON each
    warmup: float = 5.0
    io_seconds: float = 0.005
    work_seconds: float = 0.0  # processor time that each call needs
    spread: float = 0.0  # delays differ from the payload's by up to this share of it
    tolerance: float = 0.0
    slots: int = PROFILES["short"].workflow_slots
    cache: int = PROFILES["short"].cached_workflows
    cached_bytes: int = Settings().cached_bytes
    pollers: int = PROFILES["short"].workflow_pollers
    cycles_per_run: int = 5
    pack_cycles_per_run: float = 0.25
    index_after: float = 60.0
    sandbox: bool = False
    gzip: bool = False
    is_uvloop: bool = True
    telemetry: str = ""  # HOST:PORT for Prometheus
    receiver: str = ""  # URL for OTLP
    versions: str = ""  # file in which several processes note versions together, two bytes of zero for each message

    def write(self) -> str:
        """Give the order as JSON."""
        return json.dumps(asdict(self))


@dataclass(slots=True)
class Measured:
    """What was seen: cycles in the window, processor seconds spent in it, memory at its end, calls made twice.

    `repeated` and `left_out` count versions since the beginning, `late_p50` and `late_p99` are seconds of lateness;
    these four are known for dormice's handlers only.
    """

    cycles: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    repeated: int = 0
    left_out: int = 0
    late_p50: float = 0.0
    late_p99: float = 0.0

    @property
    def rate(self) -> float:
        """Cycles a second."""
        return self.cycles / self.seconds if self.seconds else 0.0

    @property
    def cpu_ms(self) -> float:
        """Processor milliseconds of the worker per cycle."""
        return 1000 * self.cpu_seconds / self.cycles if self.cycles else 0.0


class Counter:
    """Counts handler calls, how late they were, and versions of messages that ran twice or not at all."""

    def __init__(self, versions: str = "") -> None:
        self.calls = 0
        self.repeated = self.left_out = 0
        self._late = array("d")
        # the version that each message should run next, by its number; 0 before its first
        self._next = map_versions(versions) if versions else array("H")

    def note(self) -> None:
        """Count a call."""
        self.calls += 1

    def note_lateness(self, late: timedelta) -> None:
        """Count a call that began so late."""
        self.calls += 1
        self._late.append(late.total_seconds())

    def note_version(self, message_id: str, version: int) -> None:
        """Compare a version with the one before; ids end with the message's number, so a message costs two bytes."""
        number = number_of(message_id)
        if isinstance(self._next, array) and (missing := number + 1 - len(self._next)) > 0:
            self._next.frombytes(bytes(missing * self._next.itemsize))
        expected = self._next[number]
        self.repeated += version < expected
        self.left_out += 0 < expected < version
        self._next[number] = version + 1

    def take_lateness(self) -> list[float]:
        """Give the lateness of all calls since the last time, in order of size."""
        ordered = sorted(self._late)
        self._late = array("d")
        return ordered


def number_of(message_id: str) -> int:
    """Give the number with which an id ends."""
    return int(message_id.rpartition("-")[2])


@contextlib.contextmanager
def versions_file(count: int) -> Generator[str]:
    """Give the path of a file for `versions` of so many messages, for the length of a `with` block."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(2 * count)
        yield file.name


def map_versions(path: str) -> "memoryview[int]":
    """Share the versions in a file with the other processes that have it open."""
    with Path(path).open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("H")


async def measure(order: Order) -> AsyncIterator[Measured]:
    """Run the worker and measure its windows after the warm-up; SIGTERM ends it early, with the window it has begun."""
    counter = Counter(order.versions)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    running = asyncio.create_task(_serve(order, counter, stopping))
    await asyncio.wait([running], timeout=order.warmup)
    for _ in range(order.windows):
        if not running.done():
            yield await _watch(running, order.seconds, counter)

    stopping.set()
    await running


async def _watch(running: asyncio.Task[None], seconds: float, counter: Counter) -> Measured:
    counter.take_lateness()
    calls = counter.calls
    cpu = _cpu()
    began = time.monotonic()
    await asyncio.wait([running], timeout=seconds)
    ended = time.monotonic()
    late = counter.take_lateness()

    late_p50 = late[len(late) // 2] if late else 0.0
    late_p99 = late[int(len(late) * 0.99)] if late else 0.0
    return Measured(
        cycles=counter.calls - calls,
        seconds=ended - began,
        cpu_seconds=_cpu() - cpu,
        rss_bytes=psutil.Process().memory_info().rss,
        repeated=counter.repeated,
        left_out=counter.left_out,
        late_p50=late_p50,
        late_p99=late_p99,
    )


async def _serve(order: Order, counter: Counter, stopping: asyncio.Event) -> None:
    compression = GrpcCompression.GZIP if order.gzip else GrpcCompression.NONE
    is_bare = order.what.startswith("bare")

    settings = Settings(telemetry_prometheus=order.telemetry, telemetry_otlp=order.receiver)
    with start_telemetry(settings, "bench") as telemetry:
        data_converter = DataConverter.default if is_bare else DATA_CONVERTER
        client = await Client.connect(
            os.environ["TEMPORAL_ADDRESS"],
            runtime=Runtime(telemetry=TelemetryConfig(metrics=telemetry.core), worker_heartbeat_interval=HEARTBEAT),
            grpc_compression=compression,
            data_converter=data_converter,
        )
        if is_bare:
            async with _build_bare(client, order, counter):
                await stopping.wait()
            return

        tune_memory()
        passing_on = asyncio.create_task(telemetry.pass_core_on())
        await run_workers(client, replace(_plan(order, counter), telemetry=telemetry), stopping)
        passing_on.cancel()


def _build_bare(client: Client, order: Order, counter: Counter) -> Worker:
    async def handle(_: str, payload: Any) -> float:
        await asyncio.sleep(order.io_seconds)
        counter.note()
        return payload["delay"] * spread_factor(order.spread)

    is_pack = order.what == "bare-pack"
    workflow = BarePack if is_pack else BareLoop
    work = BareBatch(handle).process if is_pack else BareActivity(counter.note, order.io_seconds).process
    return build_bare_worker(
        client,
        task_queue(order.prefix, "short"),
        workflow,
        work,
        cache=order.cache,
        slots=order.slots,
        pollers=order.pollers,
        sandbox=order.sandbox,
    )


def build_bare_worker(
    client: Client,
    queue: str,
    workflow: type,
    work: Callable[..., Any],
    *,
    cache: int,
    slots: int,
    pollers: int,
    sandbox: bool = False,
) -> Worker:
    """Build a worker for one of the yardsticks, a workflow and its activity, with a slot for each activity at once."""
    workflow_runner = SandboxedWorkflowRunner() if sandbox else UnsandboxedWorkflowRunner()
    return Worker(
        client,
        task_queue=queue,
        workflows=[workflow],
        activities=[work],
        workflow_runner=workflow_runner,
        max_cached_workflows=cache,
        max_concurrent_workflow_tasks=slots,
        max_concurrent_activities=PROFILES["short"].activity_slots,
        max_concurrent_workflow_task_polls=pollers,
    )


def _plan(order: Order, counter: Counter) -> WorkerPlan:
    async def bench(message: Message, ctx: Context) -> Again:
        await asyncio.sleep(order.io_seconds)
        compute(order.work_seconds)
        counter.note_lateness(ctx.lateness)
        counter.note_version(message.id, message.version)
        delay = message.payload["delay"] * spread_factor(order.spread)
        return Again(after=timedelta(seconds=delay), tolerance=timedelta(seconds=order.tolerance))

    kinds = order.kinds or (order.prefix if order.what == "pack" else KIND,)
    short = replace(
        PROFILES["short"], workflow_slots=order.slots, cached_workflows=order.cache, workflow_pollers=order.pollers
    )
    return WorkerPlan(
        settings=Settings(
            task_queue_prefix=order.prefix,
            cycles_per_run=order.cycles_per_run,
            pack_cycles_per_run=order.pack_cycles_per_run,
            index_after=timedelta(seconds=order.index_after),
            cached_bytes=order.cached_bytes,
            sandbox=order.sandbox,
        ),
        registry=Registry([("bench", handler(kind)(bench)) for kind in kinds]),
        lanes=("short",),
        drain=timedelta(seconds=5),
        profiles={"short": short},
    )


def compute(seconds: float) -> None:
    """Use processor time on this thread."""
    until = time.thread_time() + seconds
    while seconds and time.thread_time() < until:
        pass


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _print_windows(order: Order) -> None:
    async for measured in measure(order):
        print(json.dumps(asdict(measured)), flush=True)


def main(argument: str) -> None:
    """Measure as the JSON argument orders and print the results."""
    order = Order(**json.loads(argument))
    loop_factory = uvloop.new_event_loop if order.is_uvloop else None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_print_windows(order))
    os._exit(0)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300


if __name__ == "__main__":
    main(sys.argv[1])
