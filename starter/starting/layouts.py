"""Layouts: the pack layout of each kind, read from the server; the first start of a kind fixes it."""

import asyncio
import functools
import time
from collections.abc import Mapping
from dataclasses import replace

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from shared.errors import Misconfigured, PackNotServed
from shared.lanes import task_queue
from shared.messages.encoding import Pack
from shared.messages.placement import LAYOUT_MEMO, LAYOUT_WORKFLOW, MESSAGE_WORKFLOW, Layout, layout_workflow_id
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT, is_missing, translate_rpc_error, translate_rpc_errors
from starter.starting.calls import RetryingCaller

STORE_SECONDS, LOOK_SECONDS = 300.0, 0.5
"""How long a worker may take to store a layout, because its task comes after those that wait already, and how often
that is looked at."""

BELIEVED_SECONDS, MISSING_SECONDS = 30.0, 2.0
"""How long a process caches the layouts that it has read: they change rarely, but a missing one may come soon."""


class Layouts:
    """Knows which kinds are packed and how, and what handlers have `declared`; raises RetryLater without a server."""

    def __init__(self, client: Client, settings: Settings, declared: Mapping[str, Pack] | None = None) -> None:
        self._client = client
        self._settings = settings
        self._declared = declared or {}
        self._caller = RetryingCaller(settings.patience)
        self._is_away = False
        self.attempts = 1
        """Attempts of the last reading by `find_patiently`."""
        self._cache: dict[str, tuple[float, Layout | None]] = {}
        """By kind: until when to believe it (monotonic), and the layout."""

    def known(self, kind: str) -> Layout | None:
        """Give the layout of a kind if it is cached, without a call to the server."""
        return None if self._is_unknown(kind) else self._cache[kind][1]

    async def find(self, kind: str) -> Layout | None:
        """Give the layout of a kind, None when its messages have workflows of their own; retried for some seconds."""
        if self._is_unknown(kind):
            with translate_rpc_errors():
                await self._read(kind, is_patient=True)
        return self._cache[kind][1]

    async def find_patiently(self, kind: str) -> Layout | None:
        """Give the layout like `find`, retried for as long as the setting `patience` allows, once after that failed."""
        if self._is_unknown(kind):
            reading = functools.partial(self._read, kind, is_patient=False)
            failure, self.attempts = await self._caller.call(reading, is_patient=not self._is_away)
            self._is_away = failure is not None
            if failure is not None:
                raise translate_rpc_error(failure) from failure
        return self._cache[kind][1]

    async def ensure(self, kind: str, lane: str) -> Layout | None:
        """Give the layout for starts of a kind, which the first fixes; raises Misconfigured if more are declared."""
        declared = self._declared.get(kind)
        layout = await self.find_patiently(kind)
        if layout is None and declared is not None:
            await self._refuse_if_solo(kind)
            await self._fix(Layout.of(kind, lane, declared))
            layout = await self.find(kind)
        if layout is not None and declared is not None and declared.packs > layout.packs:
            raise Misconfigured(
                f"kind {kind!r} lives in {layout.packs} packs, its handler says Pack(packs={declared.packs}); move it "
                f"with: dormice repack {kind} --packs {declared.packs}, or write packs={layout.packs}"
            )
        return layout

    def forget(self, kind: str) -> None:
        """Read the layout of a kind anew next time."""
        self._cache.pop(kind, None)

    async def grow(self, layout: Layout, packs: int) -> None:
        """Store a larger number of packs for the kind; returns when it is, raises PackNotServed when no worker does."""
        handle = self._client.get_workflow_handle(layout_workflow_id(layout.kind))
        with translate_rpc_errors():
            await handle.signal("keep", replace(layout, packs=packs).dump())
        self.forget(layout.kind)
        try:
            async with asyncio.timeout(STORE_SECONDS):
                while (stored := await self.find(layout.kind)) is None or stored.packs < packs:
                    self.forget(layout.kind)
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError as exc:
            raise PackNotServed(
                f"no worker of lane {layout.lane} has stored within {STORE_SECONDS:.0f} s that kind {layout.kind!r} "
                f"has {packs} packs now; repeat this once one is less busy"
            ) from exc

    def _is_unknown(self, kind: str) -> bool:
        return kind not in self._cache or time.monotonic() >= self._cache[kind][0]

    async def _read(self, kind: str, *, is_patient: bool) -> None:
        """Read a kind's layout into the cache; unless `is_patient`, without the SDK's own retries."""
        described_workflow = WorkflowExecution(workflow_id=layout_workflow_id(kind))
        request = DescribeWorkflowExecutionRequest(namespace=self._client.namespace, execution=described_workflow)
        describe = self._client.workflow_service.describe_workflow_execution
        layout: Layout | None = None
        try:
            described = await describe(request, retry=is_patient, timeout=CALL_TIMEOUT)
        except RPCError as exc:
            if not is_missing(exc):
                raise
        else:
            kept = described.workflow_execution_info
            if kept.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING:
                (memo,) = await self._client.data_converter.decode([kept.memo.fields[LAYOUT_MEMO]])
                layout = Layout.load(kind, memo)
        believed = MISSING_SECONDS if layout is None else BELIEVED_SECONDS
        self._cache[kind] = (time.monotonic() + believed, layout)

    async def _refuse_if_solo(self, kind: str) -> None:
        query = f"WorkflowType = '{MESSAGE_WORKFLOW}' AND ExecutionStatus = 'Running' AND Kind = '{kind}'"
        with translate_rpc_errors():
            alive = (await self._client.count_workflows(query)).count
        if alive:
            flaw = f"kind {kind!r} has {alive:,} messages with a workflow each"
            remedy = "stop them before it is packed, or leave encoding=Pack(…) away from its handler"
            raise Misconfigured(f"{flaw}; {remedy}")

    async def _fix(self, layout: Layout) -> None:
        """Start the workflow that stores the layout; if another process was first, its layout stays."""
        with translate_rpc_errors():
            await self._client.start_workflow(
                LAYOUT_WORKFLOW,
                id=layout_workflow_id(layout.kind),
                task_queue=task_queue(self._settings.task_queue_prefix, layout.lane),
                task_timeout=self._settings.workflow_task_timeout,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                memo={LAYOUT_MEMO: layout.dump()},
            )
        self.forget(layout.kind)
