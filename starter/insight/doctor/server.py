"""The doctor's checks of the server: version, namespace, search attributes, features, limits and clock."""

import contextlib
import re
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import NamespaceState
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    GetClusterInfoRequest,
    GetClusterInfoResponse,
    GetSystemInfoRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from shared.errors import RetryLater
from shared.messages.timespan import format_seconds
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT, command_to_create, is_missing, read_attribute_types
from shared.temporal.search_attributes import REQUIRED
from starter.insight.doctor.checks import Check, Finding, Found, fine, unknown, warning, wrong
from starter.insight.doctor.deliveries import check_deliveries, fetch_deliveries
from starter.local.disk import read_addresses
from starter.local.terminal import plural
from starter.local.visibility_indexes import find_unneeded

TRIED_FROM = "1.30"
"""The oldest server that was tried successfully; 1.29 can't change a priority."""

FAIR_FROM = "1.32"
"""Before it, fairness may leave a task queue's readers stuck: Temporal's issue 10814, fixed in pull request 11048."""

RETENTION_MIN = timedelta(days=1)
SKEW_SECONDS_MAX = 2.0
"""Twice the shortest delay a message may have."""

SHARDS_MIN = 512
"""Temporal's own default; the embedded server has one shard, as its database could not handle more."""

EMBEDDED_STORE = "sqlite"
NOT_REPORTED = "not told"
INDEXLESS_STORES = ("elasticsearch", "opensearch")

PROBE_LASTS = timedelta(minutes=10)
"""A probe that could not be deleted begins after this time, without a worker, and ends after the same time again."""


OpenClient = Callable[[Settings], Awaitable[Client]]


class Server:
    """Looks at the server; `client` is set once the server has answered.

    `data` is the folder in which an embedded server may keep its messages, `now` this machine's clock, `metrics` the
    address of the server's own metrics.
    """

    def __init__(
        self,
        open_client: OpenClient,
        settings: Settings,
        data: Path,
        now: Callable[[], float] = time.time,
        metrics: str = "",
    ) -> None:
        self.client: Client
        self._open_client = open_client
        self.settings = settings
        self._data = data
        self._database = data / "temporal.db"
        self._metrics = metrics
        self.now = now
        self._version = ""
        self._cluster: GetClusterInfoResponse
        self._namespace: DescribeNamespaceResponse

    def checks(self) -> list[Check]:
        """Give the checks, in order."""
        known = ("server", "namespace")
        return [
            Check("server", self._check_server),
            Check("namespace", self._check_namespace, ("server",)),
            Check("retention", self._check_retention, known),
            Check("search attributes", self._check_attributes, known),
            Check("worker heartbeats", self._check_heartbeats, known),
            Check("fairness", self._check_fairness, known),
            Check("visibility", self._check_visibility, known),
            Check("limits", self._check_limits, known),
            Check("clock", self._check_clock, known),
            Check("deliveries", self._check_deliveries, ("server",)),
        ]

    async def _check_server(self) -> Finding:
        self.client = await self._open_client(self.settings)
        service = self.client.workflow_service
        system = await service.get_system_info(GetSystemInfoRequest(), timeout=CALL_TIMEOUT)

        try:
            self._cluster = await service.get_cluster_info(GetClusterInfoRequest(), timeout=CALL_TIMEOUT)
        except RPCError as exc:
            if exc.status is not RPCStatusCode.PERMISSION_DENIED:
                raise
            # an authorizer may show the cluster only to users with rights beyond a namespace
            self._cluster = GetClusterInfoResponse(persistence_store=NOT_REPORTED, visibility_store=NOT_REPORTED)

        self._version = system.server_version
        return check_version(self._version, self.client.service_client.config.target_host)

    async def _check_namespace(self) -> Finding:
        request = DescribeNamespaceRequest(namespace=self.client.namespace)
        self._namespace = await self.client.workflow_service.describe_namespace(request, timeout=CALL_TIMEOUT)
        name = self.client.namespace
        state = self._namespace.namespace_info.state
        if state != NamespaceState.NAMESPACE_STATE_REGISTERED:
            word = NamespaceState.Name(state).removeprefix("NAMESPACE_STATE_").lower()
            remedy = "set TEMPORAL_NAMESPACE to one that is in use"
            return wrong(f"{name!r} is {word}: it takes no new messages", remedy)
        return fine(name)

    async def _check_retention(self) -> Finding:
        retention = self._namespace.config.workflow_execution_retention_ttl.ToTimedelta()
        seen = f"a finished message is known for {format_seconds(retention.total_seconds())}"
        if retention < RETENTION_MIN:
            remedy = self._with_namespace("temporal operator namespace update") + " --retention 72h"
            return warning(f"{seen}: what is sent again later starts it anew", remedy)
        return fine(seen)

    async def _check_attributes(self) -> Found:
        found = await read_attribute_types(self.client)
        findings: list[Finding] = []

        if missing := [name for name in REQUIRED if name not in found]:
            seen = f"{', '.join(missing)} missing in namespace {self.client.namespace!r}: nothing can be started"
            findings.append(wrong(seen, self._with_namespace(command_to_create(missing))))

        for name, kind in REQUIRED.items():
            if found.get(name, kind) != kind:
                remove = self._with_namespace(f"temporal operator search-attribute remove --name {name}")
                create = self._with_namespace(command_to_create([name]))
                seen = f"{name} is of type {found[name]}, and has to be {kind}: nothing can be started"
                findings.append(wrong(seen, f"use another namespace, or: {remove} and {create}"))

        return findings or fine(", ".join(REQUIRED))

    def _with_namespace(self, command: str) -> str:
        return f"{command} --namespace {self.client.namespace}"

    async def _check_heartbeats(self) -> Finding:
        if self._namespace.namespace_info.capabilities.worker_heartbeats:
            return fine("workers tell the server of their slots")
        effect = "'dormice idle' wakes nothing, 'dormice forecast' knows no capacity"
        remedy = "set frontend.WorkerHeartbeatsEnabled to true in the server's dynamic configuration, or upgrade it"
        return warning(f"the server takes no heartbeats of workers: {effect}", remedy)

    async def _check_fairness(self) -> Finding:
        return check_fairness(self._version, is_on=self._has_database() or None)

    async def _check_visibility(self) -> Finding:
        store = self._cluster.visibility_store
        if store.startswith(INDEXLESS_STORES):
            return fine(f"{store}: has no indexes to drop")

        if store != EMBEDDED_STORE:
            page = "docs/architecture.md, Slim visibility, tells which are needed"
            remedy = f"list the indexes of its table executions_visibility; {page}"
            return unknown(f"{store}: only the database itself can tell whether it is slimmed", remedy)

        if not self._has_database():
            remedy = "run this where the server's folder is, or name that with --data"
            return unknown(f"this server does not keep its messages in {self._database.parent}", remedy)

        aliases = self._namespace.config.custom_search_attribute_aliases
        with self._open_database() as database:
            unneeded = find_unneeded(database, {name: column for column, name in aliases.items()})

        if not unneeded:
            return fine("slimmed")

        mark = self._database.with_name("slimmed")
        seen = f"indexes that nobody reads are written at each start and end of a message: {len(unneeded)} of them"
        return warning(seen, f"stop the server, delete {mark} if it is there, and start it with 'dormice dev'")

    async def _check_limits(self) -> Found:
        shards = check_shards(self._cluster.persistence_store, self._cluster.history_shard_count)
        largest = self._namespace.namespace_info.limits.blob_size_limit_error
        allowed = self.settings.payload_max_bytes
        if not largest or allowed * 2 <= largest:
            return shards
        seen = f"payload_max_bytes is {allowed:,}, and the server refuses what is beyond {largest:,}, state included"
        return [shards, warning(seen, f"set DORMICE_PAYLOAD_MAX_BYTES to {largest // 2} at most")]

    async def _check_clock(self) -> Finding:
        skew, within = await measure_skew(self.client, self.settings.task_queue_prefix, self.now)
        if abs(skew) - within <= SKEW_SECONDS_MAX:
            return fine(f"at most {format_seconds(abs(skew) + within)} from the server's")
        word = "ahead of" if skew > 0 else "behind"
        seen = f"this machine is {format_seconds(abs(skew))} {word} the server: messages run as much too early or late"
        return warning(seen, "synchronize the clocks of both (NTP)")

    async def _check_deliveries(self) -> Finding:
        if self._metrics:
            return check_deliveries(await fetch_deliveries(self._metrics))

        found = read_addresses(self.client.service_client.config.target_host, self._data)
        with contextlib.suppress(RetryLater):  # of another server that was here before
            if address := found.get("metrics"):
                return check_deliveries(await fetch_deliveries(address))
        remedy = "name its metrics with --server-metrics, for example http://temporal:9090/metrics"
        return unknown("the server tells of lost deliveries only in its own metrics", remedy)

    def _has_database(self) -> bool:
        """Return whether the `data` folder is that of this server."""
        if self._cluster.visibility_store != EMBEDDED_STORE or not self._database.exists():
            return False
        try:
            with self._open_database() as database:
                rows = database.execute("SELECT data FROM cluster_metadata_info").fetchall()
        except sqlite3.Error:
            return False
        return any(self._cluster.cluster_id.encode() in data for (data,) in rows)

    def _open_database(self) -> "closing[sqlite3.Connection]":
        return closing(sqlite3.connect(f"{self._database.absolute().as_uri()}?mode=ro", uri=True))


def check_version(version: str, where: str) -> Finding:
    """Report whether a server of this version was tried."""
    seen = f"Temporal {version or 'of no version'} at {where}"
    if _is_before(version, TRIED_FROM):
        seen += f": before {TRIED_FROM}, priorities can't be changed and idle capacity is not told"
        return warning(seen, "upgrade it")
    return fine(seen)


def check_fairness(version: str, *, is_on: bool | None) -> Finding:
    """Report whether tenants take turns, and whether that may stop a task queue; `is_on` is None if it is unknown."""
    if _is_before(version, FAIR_FROM):
        seen = f"before {FAIR_FROM}, fairness may leave a task queue's readers stuck, and its tasks waiting"
        unless = "" if is_on else ", unless matching.enableFairness is false in its dynamic configuration"
        return warning(seen, f"upgrade the server (Temporal's issue 10814){unless}")
    if is_on:
        return fine("'dormice dev' switches it on")
    remedy = "if you use tenants, see that matching.enableFairness is true in its dynamic configuration"
    return unknown("the server does not tell whether tenants take turns", remedy)


def _is_before(version: str, oldest: str) -> bool:
    """Return whether a server's version is older than the first good one; an unknown version is not."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and [*map(int, found.groups())] < [*map(int, oldest.split("."))]


def check_shards(store: str, shards: int) -> Finding:
    """Report whether a server has enough shards for many messages; their number can never be changed."""
    if store == EMBEDDED_STORE:
        return fine(f"{store}, for one machine")
    if not shards:
        return unknown("the server does not tell how many history shards it has")
    seen = f"{store}, {plural(shards, 'history shard')}"
    if shards < SHARDS_MIN:
        remedy = "before there are many messages, make a new cluster with numHistoryShards of 4096"
        return warning(f"{seen}, fixed for good: millions of messages need {SHARDS_MIN} or more", remedy)

    return fine(seen)


async def measure_skew(client: Client, prefix: str, now: Callable[[], float]) -> tuple[float, float]:
    """Return how many seconds our clock is ahead of the server's, and the possible error in both directions.

    Starts a workflow that no worker ever sees, and deletes it. Raises RPCError.
    """
    name = f"{prefix}~doctor~{uuid.uuid4().hex}"
    queue = f"{prefix}~doctor"
    limits: dict[str, Any] = {"start_delay": PROBE_LASTS, "execution_timeout": PROBE_LASTS, "rpc_timeout": CALL_TIMEOUT}

    try:
        before = now()
        handle = await client.start_workflow("DoctorProbe", id=name, task_queue=queue, **limits)
        after = now()
        started = (await handle.describe(rpc_timeout=CALL_TIMEOUT)).start_time
    finally:
        await _delete(client, name)

    return (before + after) / 2 - started.timestamp(), (after - before) / 2


async def _delete(client: Client, name: str) -> None:
    """Delete a workflow, running or not; it is no error if it was never started."""
    doomed = WorkflowExecution(workflow_id=name)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=doomed)
    try:
        await client.workflow_service.delete_workflow_execution(request, timeout=CALL_TIMEOUT)
    except RPCError as exc:
        if not is_missing(exc):
            raise
