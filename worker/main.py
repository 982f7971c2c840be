"""One worker process: its options, and how it connects, serves, drains and exits."""

import asyncio
import contextlib
import functools
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

from temporalio.client import Client
from temporalio.runtime import MetricBuffer
from temporalio.worker import Worker

from activities.handlers.webhook.signature import read_signing_keys
from activities.registry import Registry, load_registry
from shared.errors import DormiceError, InvalidSetting, RetryLater, ServerNotReady, ServerUnreachable
from shared.exit import FINE, INTERRUPTED, PARTLY, code_of, find_stop_signals
from shared.lanes import LANES
from shared.settings import Settings
from shared.telemetry.sdk import Telemetry, start_telemetry
from shared.temporal.backoff import add_jitter
from shared.temporal.connect import check_server, connect
from worker.deployment import check_deployment
from worker.health import Readiness, Report, open_endpoint, watch_server
from worker.lanes.starting import begin_leaders, check_lanes, read_weights, weigh_tenants
from worker.process import (
    StuckRuns,
    begin_anew,
    count_processes,
    new_event_loop,
    raise_open_files,
    run_unstoppably,
    tune_memory,
)
from worker.run import WorkerPlan, run_workers

logger = logging.getLogger(__name__)

T = TypeVar("T")

START_TIMEOUT = timedelta(seconds=30)
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(seconds=30)
HEARTBEAT = timedelta(seconds=2)  # between two reports of a worker's slots, from which idle capacity is computed

# Time beside the drain before the process is ended by force: for packs to ask for their calls in flight, and after the
# drain to cancel handlers and hand their messages back. What blocks its process is lost with it, a failed attempt.
HAND_BACK = timedelta(seconds=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of `serve`; a process uses one core for workflow tasks.

    `health_address` None opens no endpoint. `waits_for_server` is for supervisors: it tries again where it would end.
    """

    settings: Settings
    lanes: tuple[str, ...]
    processes: int
    drain: timedelta
    health_address: tuple[str, int] | None
    waits_for_server: bool = False


def read_options(flags: SimpleNamespace, settings: Settings) -> WorkerOptions:
    """Make the options from parsed flags, without a number with as many processes as fit. Raises InvalidSetting."""
    try:
        drain = timedelta(seconds=flags.drain_seconds)
    except (ValueError, OverflowError) as exc:
        raise InvalidSetting(f"--drain-seconds: is {flags.drain_seconds}; write for example 30") from exc

    processes = count_processes() if flags.processes is None else flags.processes
    health_address = None if flags.health_port is None else (flags.health_host, flags.health_port)
    return WorkerOptions(
        settings=settings,
        lanes=tuple(dict.fromkeys(flags.lane or LANES)),
        processes=processes,
        drain=drain,
        health_address=health_address,
        waits_for_server=flags.wait_for_server,
    )


class StopRequest:
    """The order to stop, given by a signal, by the parent's end or by a lane that failed.

    Giving it twice changes nothing. It also works while a handler blocks the event loop: unless `close` is called
    within `limit` after the order, `overrun` is called in a thread of its own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: timedelta, overrun: Callable[[], None]) -> None:
        self.event = asyncio.Event()
        self._loop = loop
        self._overrun = threading.Timer(limit.total_seconds(), overrun)
        self._overrun.daemon = True

    @property
    def is_given(self) -> bool:
        """Whether the process is on its way out."""
        return self.event.is_set()

    def give(self) -> None:
        """Give the order; may be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the timer runs already, or the loop is closed: we are leaving
            self._overrun.start()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.event.set)

    async def follow_event(self) -> None:
        """Start the time limit also when only the event was set."""
        await self.event.wait()
        self.give()

    async def unless_given(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await `work`; when the order comes first, cancel it and give None."""
        return await unless_set(self.event, work)

    def close(self) -> None:
        """Cancel the time limit, because everything has ended."""
        self._overrun.cancel()


FollowParent = Callable[[Callable[[], Report], StopRequest], None]
"""Reports readiness to a parent process, and gives the order to stop when the parent does; runs in a thread."""


def run_process(options: WorkerOptions, follow_parent: FollowParent | None = None) -> int:
    """Serve the lanes in this process until the order to stop, then drain; return the exit code.

    The first signal to end drains. A second one ends the process from within, with code 130; under a parent it changes
    nothing, because the parent decides. If a workflow is stuck, the process drains all others too; then a parent starts
    another process, and without a parent this one starts again, unless a signal has come. Raises Misconfigured or
    RetryLater when it can't start.
    """
    runner = asyncio.Runner(loop_factory=new_event_loop)
    is_wanted = follow_parent is None

    def end() -> None:
        nonlocal is_wanted
        is_wanted = False
        order.give()

    def begin_anew_if_stuck() -> None:
        if stuck.is_found and is_wanted:
            begin_anew()

    def overrun() -> None:
        begin_anew_if_stuck()
        leave(PARTLY, "drain time is over and handlers still run: leaving")

    order = StopRequest(runner.get_loop(), options.drain + HAND_BACK, overrun)
    stuck = StuckRuns(order.give)
    at_once = functools.partial(leave, INTERRUPTED, "second signal: leaving at once")
    second = at_once if follow_parent is None else end
    signals = take_signals(end, second)
    started = start_telemetry(options.settings, "dormice-worker")
    with contextlib.closing(order), contextlib.closing(runner), stuck, started as telemetry:
        running = _take_signals_and_run(signals, _run(options, order, telemetry, follow_parent))
        code = run_unstoppably(runner.get_loop(), running)
    begin_anew_if_stuck()
    return PARTLY if stuck.is_found else code


async def _take_signals_and_run(signals: AbstractContextManager[None], run: Coroutine[Any, Any, int]) -> int:
    with signals:  # inside the loop, because a loop that starts takes the wake-up descriptor for itself
        return await run


async def _run(
    options: WorkerOptions, order: StopRequest, telemetry: Telemetry, follow_parent: FollowParent | None
) -> int:
    readiness = Readiness(lambda: order.is_given)
    if follow_parent is not None:
        threading.Thread(target=follow_parent, args=(readiness.report, order), daemon=True).start()

    async def begin_and_serve() -> None:
        await _begin_and_serve(options, order, telemetry, readiness)

    def note(obstacle: str) -> None:
        readiness.obstacle = obstacle

    async with open_endpoint(options.health_address, readiness.report):
        if options.waits_for_server:
            await try_until_answered(begin_and_serve, order, note)
        else:
            await begin_and_serve()

    return FINE


async def _begin_and_serve(
    options: WorkerOptions, order: StopRequest, telemetry: Telemetry, readiness: Readiness
) -> None:
    prepared = await order.unless_given(prepare(options.settings, telemetry.core))
    if prepared is None:
        return

    client, registry = prepared
    await order.unless_given(weigh_tenants(client, options.settings, options.lanes))
    await order.unless_given(begin_leaders(client, options.settings, options.lanes))
    plan = WorkerPlan(
        settings=options.settings, registry=registry, lanes=options.lanes, drain=options.drain, telemetry=telemetry
    )
    await serve_lanes(client, plan, order, readiness)


async def try_until_answered(
    work: Callable[[], Coroutine[Any, Any, T]], order: StopRequest, note: Callable[[str], None]
) -> T | None:
    """Do `work`, again while the server is away or not set up, until it is done; None after the order to stop.

    The pause doubles from one second to half a minute, with jitter. `note` is told why it waits.
    """
    longest = FIRST_PAUSE

    while not order.is_given:
        try:
            return await work()
        except (RetryLater, ServerNotReady) as exc:
            note(f"waits for the server: {exc}")
            pause = add_jitter(longest.total_seconds())
            fields = {"action": "server_awaited", "reason": str(exc), "pause": round(pause, 1)}
            logger.warning("no server yet: trying again", extra=fields)

        await order.unless_given(asyncio.sleep(pause))
        longest = min(2 * longest, LONGEST_PAUSE)

    return None


async def prepare(settings: Settings, metrics: MetricBuffer | None = None) -> tuple[Client, Registry]:
    """Load the handlers, connect and check the server: everything that may fail, before anything polls."""
    registry = load_registry(settings)
    read_weights(settings)
    check_lanes(settings)
    read_signing_keys(settings)
    check_deployment(settings)

    try:
        async with asyncio.timeout(START_TIMEOUT.total_seconds()):
            client = await connect(settings, heartbeat=HEARTBEAT, metrics=metrics)
            await check_server(client)
    except TimeoutError as exc:
        raise ServerUnreachable(
            f"the server did not answer within {START_TIMEOUT.seconds} s; check TEMPORAL_ADDRESS and try again"
        ) from exc

    tune_memory()
    raise_open_files(settings.handlers_at_once)
    return client, registry


async def serve_lanes(client: Client, plan: WorkerPlan, order: StopRequest, readiness: Readiness) -> None:
    """Run workers until the order to stop, watching the server; raises the DormiceError that explains a failure."""
    watching = watch_server(client, readiness, plan.telemetry)
    async with alongside(watching, order.follow_event(), plan.telemetry.pass_core_on()):
        await run_explained(client, plan, order.event, readiness.take_workers)


async def run_explained(
    client: Client,
    plan: WorkerPlan,
    stopping: asyncio.Event,
    announce: Callable[[Sequence[Worker]], None] = lambda _: None,
) -> None:
    """Run workers, see `run_workers`; raises the DormiceError that explains a failure."""
    try:
        await run_workers(client, plan, stopping, announce)
    except RuntimeError as exc:
        await check_server(client)
        if has_met_no_server(exc):
            raise ServerUnreachable("the server went away while the workers began; start them again") from exc
        raise


def has_met_no_server(error: RuntimeError) -> bool:
    """Return whether a worker failed because no server answered at its start, where the SDK's core tries only once."""
    return bool(re.search(r"Worker validation failed.*code: (Unavailable|DeadlineExceeded)", str(error), re.DOTALL))


async def unless_set(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Await `work`; when the event comes first, cancel it and give None."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.wait({working, waiting})


@contextlib.asynccontextmanager
async def alongside(*work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run `work` in the background for the length of a `with` block; its errors are raised at the end."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.contextmanager
def take_signals(first: Callable[[], None], second: Callable[[], None]) -> Generator[None]:
    """Call `first` at the first signal that asks to end and `second` at each later one, in a thread of its own.

    A later SIGHUP is ignored, because a terminal that closes may send two, and some supervisors send one after SIGTERM.
    The kernel may give a signal to any thread, such as one of the Temporal runtime, and then nothing wakes a main
    thread that waits or is blocked by a handler. The wake-up descriptor is written to whichever thread got the signal.
    """
    taken = find_stop_signals()
    reading, writing = socket.socketpair()
    writing.setblocking(False)

    def listen() -> None:
        call = first
        while number := reading.recv(1):
            if number[0] in taken and (call is first or number[0] != signal.SIGHUP):
                call()
                call = second

    before = {number: signal.signal(number, lambda _number, _frame: None) for number in taken}
    woken_before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            restored = signal.SIG_DFL if handler is None else handler
            signal.signal(number, restored)
        writing.close()
        listening.join()
        reading.close()


def to_exit_code(run: Callable[[], int]) -> int:
    """Run and return the exit code; an error that a person can act on becomes one sentence on standard error."""
    try:
        return run()
    except DormiceError as exc:
        sys.stderr.write(f"dormice: {exc}\n")
        return code_of(exc)
    except Exception:
        # what remains is a defect: its traceback is logged, and the exit code tells whoever supervises this process
        logger.exception("worker failed", extra={"action": "worker_failed"})
        return PARTLY


def leave(code: int, farewell: str = "") -> NoReturn:
    """Log a last line, flush and end this process without the interpreter's own exit.

    The Temporal runtime does not always survive that exit: https://github.com/temporalio/sdk-python/issues/300
    """
    # in a thread, because the main one may hold a log handler's lock, and the pipe may have no reader any more
    flushing = threading.Thread(target=_flush, args=(code, farewell), daemon=True)
    flushing.start()
    flushing.join(1.0)
    os._exit(code)


def _flush(code: int, farewell: str) -> None:
    if farewell:
        logger.warning(farewell, extra={"action": "worker_left", "code": code})
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
