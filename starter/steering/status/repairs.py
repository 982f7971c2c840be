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
from temporalio.service import RPCError

from shared.errors import RetryLater
from shared.temporal.connect import CALL_TIMEOUT
from starter.steering.status.failing_workflows import (
    FailingWorkflow,
    list_since_last_good,
    read_backwards,
    to_standstill,
)

TRIED_MAX = 20
"""Most signals among which the harmful one is looked for, because each is tried for some seconds."""

WATCH_SECONDS = 15.0
"""How long a workflow that began again may take to its first task; without a worker nobody can tell."""
LOOK_SECONDS = 0.3
NO_KEY = "this process lacks key"  # what a worker says that can't decrypt: no signal's fault

Signals = Sequence[WorkflowExecutionSignaledEventAttributes]


class SignalsLeft(RetryLater):
    """A workflow has begun again, and some of its signals could not be sent to it."""


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What a repair came to; signals are named, oldest first."""

    run_id: str
    kept: list[str]
    left_out: list[str]
    is_failing: bool = False
    """Its task fails again."""


async def list_signals_since(client: Client, failing: FailingWorkflow) -> list[str]:
    """Name the signals that have come since the last good task, oldest first."""
    return _name(_pick_signals(await list_since_last_good(client, failing)))


async def repair(client: Client, failing: FailingWorkflow, *, without_signals: bool = False) -> RepairResult:
    """Begin a workflow again from its last good task, after which handlers are called once more. Raises RPCError.

    All signals that came since are sent again, in order. If its task then fails again, each of them is left out in turn
    until the task succeeds: that one is lost, the others are not. `without_signals` leaves out all of them. Raises
    SignalsLeft when signals could not be sent again.
    """
    attempt = _Attempt(client, failing, (await list_since_last_good(client, failing))[0])
    if without_signals:
        await attempt.begin(lambda _: False)
        return RepairResult(attempt.run_id, [], _name(attempt.signals))

    await attempt.begin()
    if not attempt.signals or await attempt.is_sound() is not False:
        return RepairResult(attempt.run_id, _name(attempt.signals), [])

    # one that comes meanwhile is the last of them
    for left_out in range(min(len(attempt.signals), TRIED_MAX)):
        await attempt.begin(lambda number, left_out=left_out: number != left_out)
        is_sound = await attempt.is_sound()
        if is_sound:
            names = _name(attempt.signals)
            return RepairResult(attempt.run_id, names[:left_out] + names[left_out + 1 :], [names[left_out]])
        if is_sound is None:
            break

    await attempt.begin(lambda _: True)
    is_failing = await attempt.is_sound() is False
    return RepairResult(attempt.run_id, _name(attempt.signals), [], is_failing=is_failing)


class _Attempt:
    """A workflow that begins again and again from one event, `good`, of the run that failed.

    `signals` are those since then, `run_id` is the last run.
    """

    def __init__(self, client: Client, failing: FailingWorkflow, good: HistoryEvent) -> None:
        self._client = client
        self._failing = failing
        self._good = good
        self.run_id = failing.run_id
        self.signals: Signals = []
        self._sent = set[str]()  # request ids of what was sent from here

    async def begin(self, is_kept: Callable[[int], bool] | None = None) -> None:
        """Let the last run end and another begin, with the signals that are kept, by number.

        By default the server itself keeps all. Others are sent from here: if that is cut off, those that were not sent
        are only in the history of the run that has ended.
        """
        before = replace(self._failing, run_id=self.run_id)
        is_new = self._good.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
        if is_new:
            self.run_id = await _start_anew(self._client, self._failing, self._good)
        else:
            self.run_id = await _reset(self._client, self._failing, self._good, is_keeping=is_kept is None)

        # only now: while a task is tried, the server keeps what comes beside the history
        came = _pick_signals(await _list_after(self._client, before, self._good.event_id))
        self.signals = [*self.signals, *(signal for signal in came if signal.request_id not in self._sent)]
        if is_kept is None and not is_new:
            self._sent = {signal.request_id for signal in self.signals}  # the server gives them their own again
            return

        kept = [signal for number, signal in enumerate(self.signals) if is_kept is None or is_kept(number)]
        self._sent = set[str]()
        for number, signal in enumerate(kept):
            try:
                await self._send_again(signal)
            except RPCError as exc:
                left = ", ".join(_name(kept[number:]))
                where = f"they are in the history of run {before.run_id} of {before.workflow_id}"
                raise SignalsLeft(f"{len(kept) - number} signals were not sent again ({left}); {where}") from exc

    async def _send_again(self, signal: WorkflowExecutionSignaledEventAttributes) -> None:
        request_id = str(uuid.uuid4())
        self._sent.add(request_id)
        request = SignalWorkflowExecutionRequest(
            namespace=self._client.namespace,
            # without a run, because it may have continued as new meanwhile
            workflow_execution=WorkflowExecution(workflow_id=self._failing.workflow_id),
            signal_name=signal.signal_name,
            input=signal.input,
            header=signal.header,
            identity=self._client.identity,
            request_id=request_id,
        )
        await self._client.workflow_service.signal_workflow_execution(request, retry=True, timeout=CALL_TIMEOUT)

    async def is_sound(self) -> bool | None:
        """Return whether the run gets on; None when no worker has told in time, or only one that lacks a key."""
        handle = self._client.get_workflow_handle(self._failing.workflow_id, run_id=self.run_id)
        give_up_at = time.monotonic() + WATCH_SECONDS
        while time.monotonic() < give_up_at:
            described = await handle.describe(rpc_timeout=CALL_TIMEOUT)
            if not described.raw_description.HasField("pending_workflow_task"):
                return True
            found = await to_standstill(self._client, described)
            if found is not None:
                return None if NO_KEY in found.reason else False
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


async def _list_after(client: Client, run: FailingWorkflow, event_id: int) -> list[HistoryEvent]:
    """List the events of a run after one, oldest first."""
    events: list[HistoryEvent] = []
    async for event in read_backwards(client, run.workflow_id, run.run_id):
        if event.event_id <= event_id:
            break
        events.append(event)
    return events[::-1]


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
    return (await client.workflow_service.reset_workflow_execution(request, retry=True, timeout=CALL_TIMEOUT)).run_id


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
    return (await client.workflow_service.start_workflow_execution(request, retry=True, timeout=CALL_TIMEOUT)).run_id
