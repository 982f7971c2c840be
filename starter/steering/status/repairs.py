"""Repairs: a workflow that stands still begins again from its last good task, without the signal that did the harm."""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType, WorkflowIdConflictPolicy
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionSignaledEventAttributes
from temporalio.api.workflowservice.v1 import (
    ResetWorkflowExecutionRequest,
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.client import Client

from shared.temporal.connect import CALL_TIMEOUT
from starter.steering.status.failing_workflows import FailingWorkflow, list_since_last_good, to_standstill

TRIED_MOST = 20
"""Most signals among which the harmful one is looked for, because each is tried for some seconds."""

WATCH_SECONDS = 15.0
"""How long a workflow that began again may take to its first task; without a worker nobody can tell."""
LOOK_SECONDS = 0.3

Signals = Sequence[WorkflowExecutionSignaledEventAttributes]


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair came to; signals are named, oldest first."""

    run_id: str
    kept: list[str]
    left_out: list[str]
    is_failing: bool = False
    """Its task fails again."""


async def list_signals_since(client: Client, failing: FailingWorkflow) -> list[str]:
    """Name the signals that have come since the last good task, oldest first."""
    return _name(_pick_signals(await list_since_last_good(client, failing)))


async def repair(client: Client, failing: FailingWorkflow, *, without_signals: bool = False) -> Repaired:
    """Begin a workflow again from its last good task, after which handlers are called once more. Raises RPCError.

    All signals that came since are sent again, in order. If its task then fails again, each of them is left out in turn
    until the task succeeds: that one is lost, the others are not. `without_signals` leaves out all of them.
    """
    attempt = _Attempt(client, failing)
    if without_signals:
        await attempt.begin(lambda _: False)
        return Repaired(attempt.run_id, [], _name(attempt.signals))

    await attempt.begin()
    if not attempt.signals or await attempt.is_sound() is not False:
        return Repaired(attempt.run_id, _name(attempt.signals), [])

    # one that comes meanwhile is the last of them
    for left_out in range(min(len(attempt.signals), TRIED_MOST)):
        await attempt.begin(lambda number, left_out=left_out: number != left_out)
        is_sound = await attempt.is_sound()
        if is_sound:
            names = _name(attempt.signals)
            return Repaired(attempt.run_id, names[:left_out] + names[left_out + 1 :], [names[left_out]])
        if is_sound is None:
            break

    await attempt.begin(lambda _: True)
    return Repaired(attempt.run_id, _name(attempt.signals), [], is_failing=True)


class _Attempt:
    """A workflow that begins again and again; `signals` came since its last good task, `run_id` is its last run."""

    def __init__(self, client: Client, failing: FailingWorkflow) -> None:
        self._client = client
        self._failing = failing
        self.run_id = failing.run_id
        self.signals: Signals = []
        self._sent = 0  # signals that were sent to the last run from here

    async def begin(self, is_kept: Callable[[int], bool] | None = None) -> None:
        """Let the last run end and another begin from the last good task, with the signals that are kept, by number.

        By default the server itself keeps all. Others are sent from here: if that is cut off, those that were not sent
        are only in the history of the run that has ended.
        """
        before = replace(self._failing, run_id=self.run_id)
        first = (await list_since_last_good(self._client, before))[0]
        if first.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            self.run_id = await _start_anew(self._client, before, first)
            is_kept = is_kept or (lambda _: True)
        else:
            self.run_id = await _reset(self._client, before, first, is_keeping=is_kept is None)

        # only now: while a task is tried, the server keeps what comes beside the history
        came = _pick_signals(await list_since_last_good(self._client, before))
        self.signals = [*self.signals, *came[self._sent :]]
        kept = [signal for number, signal in enumerate(self.signals) if is_kept is None or is_kept(number)]
        self._sent = len(kept)
        for signal in kept if is_kept else ():
            await self._send_again(signal)

    async def _send_again(self, signal: WorkflowExecutionSignaledEventAttributes) -> None:
        request = SignalWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=self._failing.workflow_id, run_id=self.run_id),
            signal_name=signal.signal_name,
            input=signal.input,
            header=signal.header,
            identity=self._client.identity,
            request_id=str(uuid.uuid4()),
        )
        await self._client.workflow_service.signal_workflow_execution(request, timeout=CALL_TIMEOUT)

    async def is_sound(self) -> bool | None:
        """Return whether the run gets on, or None when no worker has told within WATCH_SECONDS."""
        handle = self._client.get_workflow_handle(self._failing.workflow_id, run_id=self.run_id)
        give_up_at = time.monotonic() + WATCH_SECONDS
        while time.monotonic() < give_up_at:
            described = await handle.describe(rpc_timeout=CALL_TIMEOUT)
            if not described.raw_description.HasField("pending_workflow_task"):
                return True
            if await to_standstill(self._client, described) is not None:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return None


def _pick_signals(events: Sequence[HistoryEvent]) -> Signals:
    return [
        event.workflow_execution_signaled_event_attributes
        for event in events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    ]


def _name(signals: Signals) -> list[str]:
    return [signal.signal_name for signal in signals]


async def _reset(client: Client, before: FailingWorkflow, good: HistoryEvent, *, is_keeping: bool) -> str:
    """Let a run begin where another had done its last good task, with all signals since or none; returns its id."""
    left_out = [] if is_keeping else [ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL]
    request = ResetWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=before.workflow_id, run_id=before.run_id),
        reason=f"dormice repair: {before.reason}"[:500],
        workflow_task_finish_event_id=good.event_id,
        request_id=str(uuid.uuid4()),
        reset_reapply_exclude_types=left_out,
        identity=client.identity,
    )
    return (await client.workflow_service.reset_workflow_execution(request, timeout=CALL_TIMEOUT)).run_id


async def _start_anew(client: Client, before: FailingWorkflow, first: HistoryEvent) -> str:
    """Start a workflow that has done no task yet in place of its run: a reset would keep what came before that task."""
    given = first.workflow_execution_started_event_attributes
    request = StartWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_id=before.workflow_id,
        workflow_type=given.workflow_type,
        task_queue=given.task_queue,
        input=given.input,
        workflow_task_timeout=given.workflow_task_timeout,
        memo=given.memo,
        search_attributes=given.search_attributes,
        header=given.header,
        priority=given.priority,
        identity=client.identity,
        request_id=str(uuid.uuid4()),
        workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING,
    )
    return (await client.workflow_service.start_workflow_execution(request, timeout=CALL_TIMEOUT)).run_id
