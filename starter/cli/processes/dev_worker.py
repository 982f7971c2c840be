"""The worker of `dormice dev`: started anew when it dies and, if asked, when its handlers change; the server stays."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from shared.errors import Misconfigured
from shared.exit import FINE, WRONG
from shared.temporal.backoff import add_jitter
from starter.local.disk import check_room
from starter.local.supervised_process import last_line, start_supervised, stop_supervised
from starter.local.terminal import echo_err

if TYPE_CHECKING:
    from starter.local.embedded import EmbeddedServer
    from starter.local.handler_files import HandlerFiles
    from starter.local.kafka.broker import EmbeddedBroker

RESTART_SECONDS = 0.5
RESTART_SECONDS_MAX = 30.0
LEAVE_SECONDS = 30.0
"""Time limit for the worker to end: its drain time, and more to hand back what did not finish."""


class WorkerLog:
    """Where the worker and its handlers write: a file, or without a path this process's own streams."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            path.write_bytes(b"")

    @contextlib.contextmanager
    def open(self) -> Generator[int | None]:
        """Give the descriptor that a worker's output goes to, None for this process's own streams."""
        if self.path is None:
            yield None
        else:
            with self.path.open("ab") as output:
                yield output.fileno()

    def quote_end(self) -> None:
        """Print the last line that went into a file: why a worker has refused to begin."""
        if self.path is not None:
            echo_err(last_line(self.path.read_text("utf-8", "replace")))


class DevWorker:
    """One worker at a time for the length of an `async with` block, at whose end it drains."""

    def __init__(
        self,
        server: "EmbeddedServer",
        broker: "EmbeddedBroker | None",
        *,
        env: Mapping[str, str],
        options: Sequence[str],
        config: Path | None,
        log: WorkerLog,
        changes: "HandlerFiles | None",
    ) -> None:
        # -P: a folder named like our packages in the working folder must not be imported
        self._program = (sys.executable, "-P", "-m", "starter")
        self._config = () if config is None else ("--config", str(config))
        self._options = (*options, *self._config)
        self._env = env
        self._server = server
        self._broker = broker
        self._log = log
        self._changes = changes
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._process.returncode is None:
                rest = "the server" if self._broker is None else "the broker and the server"
                echo_err(f"draining the worker, then stopping {rest}; Ctrl-C leaves at once")
        finally:  # also if the terminal is gone
            await self._stop()

    async def keep(self) -> int:
        """Keep it running; gives its exit code when it has drained, or refused what a person must change first.

        Raises Misconfigured when the server or the broker ends. With `changes` a refusal waits for the next change.
        """
        deaths = 0
        began = time.monotonic()

        while True:
            code = await self._first_end()
            await self._stop()
            if code == WRONG:
                self._log.quote_end()

            if code == WRONG and self._changes is not None:
                echo_err("the worker starts anew when its handlers have changed")
                await self._wait_for_first(asyncio.create_task(self._find_change()))
            elif code in (FINE, WRONG):
                echo_err(f"the worker has ended with code {code}")
                return code
            elif code is not None:
                deaths = 1 if time.monotonic() - began > RESTART_SECONDS_MAX else deaths + 1
                longest = min(RESTART_SECONDS_MAX, RESTART_SECONDS * 2**deaths)
                pause = add_jitter(longest)
                rest = f"the server stays, and a new worker starts in {pause:.1f} s"
                echo_err(f"the worker has ended with code {code}; {rest}")
                await asyncio.sleep(pause)

            began = time.monotonic()
            await self._start()

    async def _start(self) -> None:
        with self._log.open() as output:
            self._process = await start_supervised([*self._program, "worker", *self._options], output, env=self._env)

    async def _stop(self) -> None:
        await stop_supervised(self._process, LEAVE_SECONDS)

    async def _first_end(self) -> int | None:
        """Wait until the worker ends, and give its exit code; None when there are new handlers for a new one."""
        ended = asyncio.create_task(self._process.wait())
        done = await self._wait_for_first(ended, asyncio.create_task(self._find_change()))
        return ended.result() if ended in done else None

    async def _wait_for_first(self, *tasks: "asyncio.Task[Any]") -> "set[asyncio.Task[Any]]":
        """Wait until a task is done, and cancel the others; raises Misconfigured if the server or broker ends first."""
        logs = {asyncio.create_task(self._server.wait()): ("server", self._server.options.log)}
        if self._broker is not None:
            logs[asyncio.create_task(self._broker.wait())] = ("broker", self._broker.options.log)

        try:
            done, _ = await asyncio.wait({*tasks, *logs}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, *logs):
                task.cancel()

        if finished := done.intersection(tasks):
            for task in finished:
                task.result()
            return finished

        name, log = logs[done.pop()]
        check_room(self._server.options.data)
        raise Misconfigured(f"the embedded {name} has ended by itself; read {log}")

    async def _find_change(self) -> None:
        """Wait until the handlers have changed and can be loaded; without `changes` for ever."""
        if self._changes is None:
            await asyncio.Event().wait()
            return
        while True:
            file = await self._changes.wait()
            if not (flaw := await self._check_handlers()):
                echo_err(f"{file} has changed: the worker starts anew")
                return
            rest = "; the worker goes on with the code that it has" if self._process.returncode is None else ""
            echo_err(f"{file} has changed: {flaw}{rest}")

    async def _check_handlers(self) -> str:
        """Load the handlers in a process of their own; gives what is wrong with them in a sentence."""
        pipe = asyncio.subprocess.PIPE
        nothing = asyncio.subprocess.DEVNULL
        command = (*self._program, "handlers", *self._config)

        checking = await asyncio.create_subprocess_exec(
            *command, stdin=nothing, stdout=nothing, stderr=pipe, env=self._env
        )
        try:
            _, said = await checking.communicate()
        finally:
            if checking.returncode is None:
                checking.kill()
                await checking.wait()

        return last_line(said.decode(errors="replace")).removeprefix("dormice: ") if checking.returncode else ""
