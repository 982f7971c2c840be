"""One cluster in a folder: starts and stops it, and reads its state; messages survive a stop."""

import asyncio
import contextlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import psutil
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from cluster.postgres import Postgres, make_tables, slim_tables
from cluster.program import VERSION, Program
from cluster.server import choose_ports, end_process, is_alive, start_server, write_configuration
from shared.errors import InvalidSetting, Misconfigured
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT, client_options
from shared.temporal.search_attributes import REQUIRED
from starter.local.embedded import is_healthy
from starter.local.kafka.jars import find_cache
from starter.local.supervised_process import is_answered, last_line, lock_folder, wait_until_ready
from starter.local.visibility_indexes import read_columns

NAMESPACE = "default"
START_SECONDS = 90.0
SETTLE_SECONDS = 30.0
SHARDS = 16  # enough to work in parallel on a machine with a few cores
REFRESH_SECONDS = 3.0  # services refresh namespaces every two seconds (system.namespaceCacheRefreshInterval)

# PostgreSQL's defaults are for very small machines; none of these settings makes it less durable
POSTGRES_SETTINGS = ("max_connections=200", "shared_buffers=512MB", "max_wal_size=4GB")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What commands need to know of a cluster; stored in its folder."""

    version: str = VERSION
    shards: int
    ports: dict[str, int] = field(default_factory=choose_ports)
    process_id: int = 0
    process_began: float = 0.0  # start time of the server's process, to detect another process with the same id
    is_ready: bool = False  # whether namespace, search attributes and indexes are set up


class Cluster:
    """PostgreSQL and Temporal's server with their files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self._path = folder / "cluster.json"

    @property
    def state(self) -> State | None:
        """The stored state of the cluster; None before its first start."""
        try:
            return State(**json.loads(self._path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError) as exc:
            raise InvalidSetting(
                f"--data: {self._path} can't be read ({exc}); delete the folder, or choose another"
            ) from exc

    @property
    def address(self) -> str:
        """The address for clients, whether the cluster runs or not."""
        return f"127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """The port of the address, on loopback."""
        return self._known.ports["frontend-rpc"]

    @property
    def metrics_url(self) -> str:
        """The address of the server's own metrics, as Prometheus reads them."""
        return f"http://127.0.0.1:{self._known.ports['metrics']}/metrics"

    @property
    def postgres(self) -> Postgres:
        """The PostgreSQL that stores the cluster's messages."""
        return Postgres(self.folder / "postgres", self._known.ports["postgres"], POSTGRES_SETTINGS)

    @property
    def process(self) -> psutil.Process | None:
        """The server's process; None while it does not run."""
        state = self.state
        if state is None or not state.process_id:
            return None
        try:
            found = psutil.Process(state.process_id)
        except psutil.NoSuchProcess:
            return None
        return found if abs(found.create_time() - state.process_began) < 1.0 and is_alive(found) else None

    async def up(self, program: Program, shards: int | None = None) -> None:
        """Start the cluster, creating it first if needed; parts that run already are left alone.

        Raises InvalidSetting when it has another number of shards, and Misconfigured when a part does not start.
        """
        with self._held():
            state = self.state or State(shards=shards or SHARDS)
            if shards not in (None, state.shards):
                raise InvalidSetting(
                    f"--shards: this cluster has {state.shards} history shards for good, not {shards}; "
                    f"leave it out, or begin anew with 'down --delete'"
                )

            self._keep(state)
            if self.postgres.process_id is None:
                if self.process is None and any(map(is_answered, state.ports.values())):
                    state = replace(state, ports=choose_ports())
                    self._keep(state)
                self.postgres.start()

            make_tables(self.postgres, program)
            if self.process is None:
                process = start_server(program, write_configuration(self.folder, state.ports, state.shards), self.log)
                self._keep(replace(state, process_id=process.pid, process_began=process.create_time()))

            await self._set_up()

    def down(self, *, is_deleting: bool = False) -> None:
        """End what runs, by its process id; a stopped cluster is no error. Messages stay unless `is_deleting`."""
        if self.state is None:
            return
        with self._held():
            if (process := self.process) is not None:
                end_process(process)
            mode = "immediate" if is_deleting else "fast"
            self.postgres.stop(mode)
        if is_deleting:
            shutil.rmtree(self.folder)

    async def connect(self) -> Client:
        """Connect to the cluster."""
        return await Client.connect(self.address, **client_options(Settings()))

    @property
    def _known(self) -> State:
        state = self.state
        if state is None:
            raise Misconfigured(f"there is no cluster in {self.folder}; './run cluster up' makes one")
        return state

    def _keep(self, state: State) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(state), indent=2) + "\n")
        fresh.replace(self._path)

    @contextlib.contextmanager
    def _held(self) -> Generator[None]:
        """Lock the folder while it is changed, and make it accessible for PostgreSQL's own user."""
        with contextlib.suppress(FileNotFoundError):
            found = self.folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise InvalidSetting(f"--data: {self.folder} is not a folder of yours; choose another")
        with lock_folder(self.folder):
            self.folder.chmod(0o755)
            yield

    async def _set_up(self) -> None:
        """Wait until the server answers, then set up namespace, search attributes and indexes."""
        if not await wait_until_ready(
            self.port, lambda: is_healthy(self.address), lambda: self.process is not None, START_SECONDS
        ):
            said = last_line(self.log.read_text(errors="replace"))
            raise Misconfigured(f"the server did not start; read {self.log}: {said}")

        if not self._known.is_ready:
            client = await self.connect()
            await _make_namespace(client)
            slim_tables(self.postgres, await _make_attributes(client))
            await asyncio.sleep(REFRESH_SECONDS)
            self._keep(replace(self._known, is_ready=True))


def find_folder() -> Path:
    """Give the default folder of a cluster, in the user's cache."""
    if os.geteuid() == 0:  # PostgreSQL then runs as another user, who has no access to root's home
        return Path(tempfile.gettempdir(), "dormice-cluster")
    return find_cache().parent / "cluster"


async def _make_namespace(client: Client) -> None:
    request = RegisterNamespaceRequest(namespace=NAMESPACE)
    request.workflow_execution_retention_period.FromTimedelta(timedelta(days=1))
    try:
        await client.workflow_service.register_namespace(request, timeout=CALL_TIMEOUT)
    except RPCError as exc:
        if exc.status is not RPCStatusCode.ALREADY_EXISTS:
            raise


async def _make_attributes(client: Client) -> dict[str, str]:
    """Create the search attributes and give the column of each; retries, as a new namespace is not known at once."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        try:
            columns = await read_columns(client)
            types = {
                name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}")
                for name, kind in REQUIRED.items()
                if name not in columns
            }
            if not types:
                return columns
            request = AddSearchAttributesRequest(namespace=NAMESPACE, search_attributes=types)
            await client.operator_service.add_search_attributes(request, timeout=CALL_TIMEOUT)
        except RPCError as exc:
            if time.monotonic() > deadline:
                raise Misconfigured(f"the search attributes could not be made: {exc.message}") from exc

        await asyncio.sleep(0.5)
