"""Layouts: the pack layout of each kind, read from the server; the first start of a kind fixes it."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import WorkflowExecutionStatus, WorkflowIdConflictPolicy, WorkflowIdReusePolicy
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, StartWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from shared.errors import Misconfigured, RetryLater, ServerNotReady
from shared.lanes import task_queue
from shared.messages.encoding import Pack
from shared.messages.placement import LAYOUT_MEMO, LAYOUT_WORKFLOW, MESSAGE_WORKFLOW, Layout, layout_workflow_id
from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import CALL_TIMEOUT, is_missing, translate_rpc_error

BELIEVED_SECONDS = 30.0
"""How long a process caches the layouts that it has read: kinds are packed and repacked rarely."""


class Layouts:
    """Knows which kinds are packed and how; reads each kind from the server again after BELIEVED_SECONDS.

    `declared` is what the handlers of this process declare. All methods raise RetryLater when the server does not
    answer.
    """

    def __init__(self, client: Client, settings: Settings, declared: Mapping[str, Pack] | None = None) -> None:
        self._client = client
        self._settings = settings
        self._declared = declared or {}
        self._patience = settings.patience.total_seconds()
        self.attempts = 1
        """Attempts of the last `find_patiently`."""
        self._read: dict[str, tuple[float, Layout | None]] = {}

    def known(self, kind: str) -> Layout | None:
        """Give the layout of a kind if it is cached, without a call to the server."""
        read_at, layout = self._read.get(kind, (-BELIEVED_SECONDS, None))
        return layout if time.monotonic() - read_at < BELIEVED_SECONDS else None

    def forget(self, kind: str) -> None:
        """Drop the cached layout of a kind."""
        self._read.pop(kind, None)

    async def find(self, kind: str, *, is_patient: bool = True) -> Layout | None:
        """Give the layout of a kind, None when each of its messages has a workflow of its own.

        If the server does not answer, the call is repeated for some seconds; unless `is_patient`, it is made once.
        """
        read_at, layout = self._read.get(kind, (-BELIEVED_SECONDS, None))
        if time.monotonic() - read_at >= BELIEVED_SECONDS:
            layout = await self._ask(kind, is_patient=is_patient)
            self._read[kind] = (time.monotonic(), layout)
        return layout

    async def find_patiently(self, kind: str) -> Layout | None:
        """Give the layout of a kind like `find`, with retries for as long as the setting `patience` allows.

        After such a search has failed, each further one makes a single attempt until the server answers again.
        """
        give_up_at = time.monotonic() + self._patience
        self.attempts, is_starting = 1, False
        while True:
            try:
                layout = await self.find(kind, is_patient=False)
            except (RetryLater, ServerNotReady) as exc:
                if isinstance(exc, ServerNotReady) and not is_starting:  # the server is starting: full patience again
                    give_up_at, is_starting = time.monotonic() + self._settings.patience.total_seconds(), True
                if time.monotonic() >= give_up_at:
                    self._patience = 0.0
                    raise
                self.attempts += 1
                await asyncio.sleep(backoff_seconds(self.attempts))
            else:
                self._patience = self._settings.patience.total_seconds()
                return layout

    async def settle(self, kind: str, lane: str) -> Layout | None:
        """Give the layout for starting messages of a kind; the first start of a packed kind fixes it.

        Raises Misconfigured when the handler's declaration contradicts the stored layout.
        """
        declared = self._declared.get(kind)
        layout = await self.find_patiently(kind)
        if layout is None and declared is not None:
            await self._refuse_if_solo(kind)
            await self._fix(Layout.of(kind, lane, declared))
            self.forget(kind)
            layout = await self.find(kind)
        if layout is not None and declared is not None and declared.packs not in (layout.packs, layout.first_packs):
            raise Misconfigured(
                f"kind {kind!r} lives in {layout.packs} packs, its handler says Pack(packs={declared.packs}); write "
                f"packs={layout.packs}, or move it with: dormice repack {kind} --packs {declared.packs}"
            )
        return layout

    async def grow(self, layout: Layout, packs: int) -> None:
        """Store a larger number of packs for the kind."""
        handle = self._client.get_workflow_handle(layout_workflow_id(layout.kind))
        try:
            await handle.signal("keep", replace(layout, packs=packs).dump())
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc
        self.forget(layout.kind)

    async def _ask(self, kind: str, *, is_patient: bool = True) -> Layout | None:
        request = DescribeWorkflowExecutionRequest(
            namespace=self._client.namespace, execution=WorkflowExecution(workflow_id=layout_workflow_id(kind))
        )
        try:
            described = await self._client.workflow_service.describe_workflow_execution(
                request, retry=is_patient, timeout=CALL_TIMEOUT
            )
        except RPCError as exc:
            if is_missing(exc):
                return None
            raise translate_rpc_error(exc) from exc
        kept = described.workflow_execution_info
        if kept.status != WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING:
            return None
        memo = await self._client.data_converter.decode([kept.memo.fields[LAYOUT_MEMO]])
        return Layout.load(kind, memo[0])

    async def _refuse_if_solo(self, kind: str) -> None:
        query = f"WorkflowType = '{MESSAGE_WORKFLOW}' AND ExecutionStatus = 'Running' AND Kind = '{kind}'"
        try:
            alive = (await self._client.count_workflows(query)).count
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc
        if alive:
            raise Misconfigured(
                f"kind {kind!r} has {alive:,} messages with a workflow each; stop them before it is packed, or leave "
                "encoding=Pack(…) away from its handler"
            )

    async def _fix(self, layout: Layout) -> None:
        """Start the workflow that stores the layout; if another process was first, its layout stays."""
        request = StartWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_id=layout_workflow_id(layout.kind),
            workflow_type=WorkflowType(name=LAYOUT_WORKFLOW),
            task_queue=TaskQueue(name=task_queue(self._settings.task_queue_prefix, layout.lane)),
            identity=self._client.identity,
            workflow_task_timeout=Duration(seconds=round(self._settings.workflow_task_timeout.total_seconds())),
            workflow_id_reuse_policy=WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
            workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,
        )
        memo = (await self._client.data_converter.encode([layout.dump()]))[0]
        request.memo.fields[LAYOUT_MEMO].CopyFrom(memo)
        try:
            await self._client.workflow_service.start_workflow_execution(request)
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc
