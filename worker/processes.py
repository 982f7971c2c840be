"""Worker processes: one per core, under a parent that starts them, keeps them alive and drains them together."""

import asyncio
import contextlib
import functools
import json
import logging
import pickle
import socket
import sys
import time
from collections import deque
from dataclasses import replace
from datetime import timedelta

from temporalio.client import Client

from activities.registry import Registry
from shared.errors import InvalidSetting
from shared.exit import FINE, INTERRUPTED, PARTLY, UNREACHABLE, WRONG
from shared.telemetry.sdk import check_ports, shift_port
from shared.temporal.backoff import add_jitter
from worker.health import ANSWER_MAX_AGE, Report, open_endpoint
from worker.main import (
    HAND_BACK,
    StopRequest,
    WorkerOptions,
    alongside,
    leave,
    prepare,
    run_process,
    take_signals,
    to_exit_code,
    try_until_answered,
)

logger = logging.getLogger(__name__)

DRAIN_MAX = timedelta(days=1)
DEATHS_MAX = 5
DEATHS_WINDOW = timedelta(minutes=1)
RESTART_BACKOFF = timedelta(milliseconds=500)  # after a child's first death; doubled by each further one in the window
UNREACHABLE_PAUSE = timedelta(seconds=10)


def serve(options: WorkerOptions) -> int:
    """Serve the lanes until SIGTERM or SIGINT, drain, and give the exit code, for `leave`; call it in the main thread.

    0: drained cleanly. 1: a process failed, kept dying, or had to be ended by force. 2: a setting, handler module or
    the server's set-up must be changed first. 3: no server answers at the start. What to do is written to standard
    error. A second signal ends everything, with code 130. A supervisor should kill half a minute after the drain time.
    """
    return to_exit_code(lambda: _serve(options))


def _serve(options: WorkerOptions) -> int:
    if options.processes < 1:
        raise InvalidSetting(f"processes: is {options.processes}; give at least 1")
    if not timedelta(0) <= options.drain <= DRAIN_MAX:
        raise InvalidSetting(
            f"--drain-seconds: is {options.drain.total_seconds():g}; give 0 to {DRAIN_MAX.total_seconds():.0f}"
        )
    if options.health_address is not None and not 0 <= options.health_address[1] <= 65535:
        raise InvalidSetting(f"health-port: is {options.health_address[1]}; give 0 to 65535")
    return run_process(options) if options.processes == 1 else _run_parent(options)


def _run_parent(options: WorkerOptions) -> int:
    runner = asyncio.Runner()
    children = [ChildProcess(number) for number in range(1, options.processes + 1)]

    def end_all(code: int, farewell: str) -> None:
        for child in children:
            child.kill()
        leave(code, farewell)

    overrun = functools.partial(end_all, PARTLY, "drain time is over and processes still run: leaving")
    # the children's own limit comes first; this one is for a child that can't end itself
    order = StopRequest(runner.get_loop(), options.drain + 2 * HAND_BACK, overrun)
    at_once = functools.partial(end_all, INTERRUPTED, "second signal: leaving at once")
    signals = take_signals(order.give, at_once)
    with contextlib.closing(order), signals, contextlib.closing(runner):
        return runner.run(_Parent(options, order, children).run())


class _Parent:
    """Keeps the children running until the order to stop, then waits for them to drain."""

    def __init__(self, options: WorkerOptions, order: StopRequest, children: "list[ChildProcess]") -> None:
        self._options = options
        self._order = order
        self._children = children
        self._obstacle = ""

    async def run(self) -> int:
        async with open_endpoint(self._options.health_address, self.report):
            check_ports(self._options.settings.telemetry_prometheus, len(self._children))
            # the temporal runtime does not survive a fork, so children are new interpreters that connect themselves
            if await self._prepare() is None:
                return FINE
            codes = await asyncio.gather(*(self._keep(child) for child in self._children))
        if WRONG in codes:
            return WRONG
        return PARTLY if any(codes) else FINE

    async def _prepare(self) -> tuple[Client, Registry] | None:
        """Check everything that may fail before a process starts; None after the order to stop."""

        async def check() -> tuple[Client, Registry] | None:
            return await self._order.unless_given(prepare(self._options.settings))

        def note(obstacle: str) -> None:
            self._obstacle = obstacle

        if not self._options.waits_for_server:
            return await check()

        prepared = await try_until_answered(check, self._order, note)
        note("")
        return prepared

    def report(self) -> Report:
        reports = [child.report() for child in self._children]
        reasons = [f"process {r['process']}: {r['reason']}" for r in reports if not r["ready"]]
        if self._obstacle:
            reasons.insert(0, self._obstacle)
        if self._order.is_given:
            reasons.insert(0, "draining")
        if reasons:
            return {"ready": False, "reason": reasons[0], "processes": reports}
        return {"ready": True, "processes": reports}

    async def _keep(self, child: "ChildProcess") -> int:
        options = replace(self._options, processes=1, health_address=None)
        while True:
            code = await child.run(options, self._order.event)
            if self._order.is_given:
                return code

            pause = child.next_pause(code, time.monotonic())
            fields = {"number": child.number, "code": code}

            if pause is None:
                logger.error("worker process keeps dying: giving up", extra={"action": "worker_gave_up", **fields})
                self._order.give()
                return WRONG if code == WRONG else PARTLY

            logger.warning("worker process died", extra={"action": "worker_died", "pause": pause, **fields})
            await self._order.unless_given(asyncio.sleep(pause))
            if self._order.is_given:
                return FINE


class ChildProcess:
    """One worker process and its successors, each an interpreter of its own on the other end of a socket.

    The socket carries the options one way and readiness the other; closing our half of it is the order to drain,
    which therefore also comes when this process is killed.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._process: asyncio.subprocess.Process | None = None
        self._deaths: deque[float] = deque()
        self._report: Report = {}
        self._reported_at = 0.0

    async def run(self, options: WorkerOptions, stopping: asyncio.Event) -> int:
        """Run one process to its end and give its exit code, negative for a signal."""
        self._note({"ready": False, "reason": "starting"})
        try:
            process, ours = await self._spawn()
        except OSError as exc:
            fields = {"action": "process_not_started", "number": self.number, "reason": str(exc)}
            logger.error("worker process can't be started", extra=fields)  # noqa: TRY400 — the reason says it all
            return PARTLY

        self._process = process
        fields = {"action": "process_started", "number": self.number, "pid": process.pid}
        logger.info("worker process started", extra=fields)
        reader, writer = await asyncio.open_connection(sock=ours)
        metrics_address = shift_port(options.settings.telemetry_prometheus, self.number - 1)
        settings = replace(options.settings, telemetry_prometheus=metrics_address)
        writer.write(pickle.dumps(replace(options, settings=settings)))

        try:
            async with alongside(_order_drain(writer, stopping)):
                with contextlib.suppress(ConnectionError):  # how a killed child's socket may end
                    async for line in reader:
                        if line.endswith(b"\n"):  # the last line of a killed child may be half a line
                            self._note(json.loads(line))
            return await process.wait()
        finally:
            self._note({"ready": False, "reason": "ended"})
            writer.close()

    async def _spawn(self) -> tuple[asyncio.subprocess.Process, socket.socket]:
        path = [str(entry) for entry in sys.path]  # handlers and packages are found where this process found them
        ours, theirs = socket.socketpair()

        entry = f"from worker.__main__ import run_child; run_child({theirs.fileno()})"
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {entry}"),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                process_group=0,  # a terminal's Ctrl-C reaches the parent alone, which decides the order of leaving
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()

        return process, ours

    def kill(self) -> None:
        """End the process at once, if there is one."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def report(self) -> Report:
        """Return the last report of the process, or why there is none."""
        pid = None if self._process is None else self._process.pid
        report = self._report or {"ready": False, "reason": "starting"}
        if report["ready"] and time.monotonic() - self._reported_at > ANSWER_MAX_AGE.total_seconds():
            report = {"ready": False, "reason": "it has not reported for a while"}
        return {"process": self.number, "pid": pid, **report}

    def next_pause(self, code: int, now: float) -> float | None:
        """Return the seconds to wait before the next start; None: too many deaths, or a person must act first."""
        if code == WRONG:
            return None
        if code == UNREACHABLE:
            return add_jitter(UNREACHABLE_PAUSE.total_seconds())

        self._deaths.append(now)
        while now - self._deaths[0] > DEATHS_WINDOW.total_seconds():
            self._deaths.popleft()

        if len(self._deaths) >= DEATHS_MAX:
            return None

        backoff = RESTART_BACKOFF.total_seconds() * 2.0 ** (len(self._deaths) - 1)
        return add_jitter(backoff)

    def _note(self, report: Report) -> None:
        self._report = report
        self._reported_at = time.monotonic()


async def _order_drain(writer: asyncio.StreamWriter, stopping: asyncio.Event) -> None:
    await stopping.wait()
    with contextlib.suppress(OSError):  # the child may be gone already
        writer.write_eof()
