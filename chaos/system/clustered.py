"""The parts of a cluster: Temporal's server on PostgreSQL, and PostgreSQL itself."""

import asyncio
import contextlib
import time

import psutil

from chaos.system.processes import Part, find_children
from cluster.cluster import Cluster
from cluster.program import Program

SHARDS = 16
GONE_SECONDS = 30.0


class ClusterServerPart(Part):
    """Temporal's four services in one process."""

    def __init__(self, cluster: Cluster, program: Program) -> None:
        super().__init__("server")
        self._cluster = cluster
        self._program = program

    @property
    def members(self) -> list[psutil.Process]:
        """The server's process."""
        found = self._cluster.process
        return [] if found is None else [found]

    async def start(self) -> None:
        """Start the server, and PostgreSQL if it does not run, and wait until the server answers."""
        # in a thread with a loop of its own, because `up` blocks while the programs start
        await asyncio.to_thread(asyncio.run, self._cluster.up(self._program, SHARDS))

    async def end(self) -> None:
        """End both and delete the cluster."""
        await asyncio.to_thread(self._cluster.down, is_deleting=True)

    async def note_death(self) -> None:
        """Wait until the process is gone."""
        await _wait_until_gone(self)


class PostgresPart(Part):
    """The postmaster and all its processes."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("postgres")
        self._postgres = cluster.postgres

    @property
    def members(self) -> list[psutil.Process]:
        """The postmaster's processes, itself first."""
        found = self._postgres.process_id
        with contextlib.suppress(psutil.NoSuchProcess):
            if found is not None and psutil.Process(found).status() != psutil.STATUS_ZOMBIE:
                return [psutil.Process(found), *find_children(found)]
        return []

    async def start(self) -> None:
        """Start PostgreSQL unless it runs."""
        if not self.is_alive:
            await asyncio.to_thread(self._postgres.start)

    async def end(self) -> None:
        """End PostgreSQL in its mode "fast", which closes all connections."""
        await asyncio.to_thread(self._postgres.stop, "fast")

    async def note_death(self) -> None:
        """Wait until all its processes are gone."""
        await _wait_until_gone(self)


async def _wait_until_gone(part: Part) -> None:
    give_up_at = time.monotonic() + GONE_SECONDS
    while part.is_alive and time.monotonic() < give_up_at:  # noqa: ASYNC110 — there is no event for its end
        await asyncio.sleep(0.02)
