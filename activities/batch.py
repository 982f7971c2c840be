"""The batch activity: runs the handlers of many messages of a pack at once and gives an outcome for each."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.service import RPCError

from activities.dispatch import Dispatch, stamp_end
from shared.json_value import encode_json
from shared.lanes import LANES
from shared.message import HandlerCall
from shared.temporal import to_raw

RUN_BATCH = "run_batch"
REPORT = "report"
"""Signal by which a batch tells its pack what is finished while other handlers of it are still at work."""

ANSWER_BYTES_MAX = 1_800_000
"""What all outcomes may take: the server takes 2 MB in one piece. A handler begins only while its largest fits."""

OUTCOME_ROOM = 700
"""What an outcome may take beside its payload: a reason of 300 characters and the numbers."""

REPORT_EVERY = timedelta(seconds=10)
BEAT_CHECK_SECONDS = 0.2
CALL_TIMEOUT = timedelta(seconds=5)


class BatchDispatch:
    """Runs batches; all batches of one process share its limit of handlers at work."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._room = asyncio.Semaphore(dispatch.settings.handlers_at_once)

    @activity.defn(name=RUN_BATCH)
    async def run_batch(self, wire: Any) -> Any:
        """Run the handlers of a batch and give their outcomes by position; None is handed back, it has not begun.

        As with a single message nothing that a handler does makes this fail. Where the lane has heartbeats, they carry
        the outcomes so far: a retry runs only the rest. Takes and gives plain JSON, see `workflows.pack_workflow`.
        """
        return await _Run(self._dispatch, self._room, wire).run()


class _Run:
    def __init__(self, dispatch: Dispatch, room: asyncio.Semaphore, wire: Any) -> None:
        self._dispatch = dispatch
        self._room = room
        self._kind: str = wire["kind"]
        self._lane: str = wire["lane"]
        self._number: int = wire["batch"]
        self._left_run: str = wire.get("left_run", "")
        self._begun_at: float = wire.get("begun_at", 0.0)  # the pack reads it back from its history
        self._rows: list[Any] = wire["rows"]
        self._outcomes: dict[int, Any] = {}
        self._reported: set[int] = set()
        self._left = ANSWER_BYTES_MAX
        self._tries_before = activity.info().attempt - 1
        self._begin_before = asyncio.get_running_loop().time() + LANES[self._lane].batch_start.total_seconds()

    async def run(self) -> Any:
        self._restore()
        calls = [asyncio.create_task(self._call(n)) for n in range(len(self._rows)) if n not in self._done]
        forgetting = asyncio.create_task(self._forget_left_run())
        beside: list[asyncio.Task[None]] = []
        if LANES[self._lane].heartbeat_timeout is not None:
            beside = [asyncio.create_task(self._beat()), asyncio.create_task(self._report())]
        try:
            await asyncio.gather(*calls)
        except asyncio.CancelledError:
            if not activity.is_worker_shutdown():
                raise
            await asyncio.gather(*calls, return_exceptions=True)  # each hands its message back
        finally:
            for task in (*calls, *beside):
                task.cancel()
            await asyncio.gather(forgetting, *beside, return_exceptions=True)
        return to_raw(
            {
                "outcomes": [None if n in self._reported else self._outcomes.get(n) for n in range(len(self._rows))],
                "index_after": self._dispatch.settings.index_after.total_seconds(),
                "begun_at": self._begun_at,
                "ended_at": stamp_end(),
            }
        )

    @property
    def _done(self) -> set[int]:
        return self._reported | self._outcomes.keys()

    async def _call(self, position: int) -> None:
        async with self._room:
            most = self._dispatch.settings.payload_max_bytes + OUTCOME_ROOM
            if self._left < most or asyncio.get_running_loop().time() > self._begin_before:
                return
            self._left -= most
            outcome = await self._dispatch.run(self._to_call(self._rows[position]), _no_beat)
        content = outcome.payload if outcome.is_payload_changed else outcome.result
        self._left += most - OUTCOME_ROOM - (0 if content is None else len(encode_json(content)))
        self._outcomes[position] = outcome.dump()

    def _to_call(self, row: Any) -> HandlerCall:
        message_id, version, attempt, payload, due_at, *rest = row
        return HandlerCall(
            self._kind, message_id, self._lane, version, attempt + self._tries_before, payload, due_at, *rest
        )

    def _restore(self) -> None:
        """Take over what the worker before had finished when it was lost."""
        for details in activity.info().heartbeat_details:
            self._outcomes = {int(n): wire for n, wire in details["outcomes"].items()}
            self._reported = set(details["reported"])

    async def _beat(self) -> None:
        timeout = LANES[self._lane].heartbeat_timeout or timedelta(0)
        told, beat_at, loop = -1, 0.0, asyncio.get_running_loop()
        while True:
            if len(self._done) != told or loop.time() - beat_at >= timeout.total_seconds() / 4:
                told, beat_at = len(self._done), loop.time()
                self._beat_once()
            await asyncio.sleep(BEAT_CHECK_SECONDS)

    def _beat_once(self) -> None:
        details = {
            "outcomes": {str(n): wire for n, wire in self._outcomes.items() if n not in self._reported},
            "reported": sorted(self._reported),
        }
        activity.heartbeat(to_raw(details))

    async def _report(self) -> None:
        """Tell the pack what is finished, so that messages that are quick don't wait for one that is slow."""
        info = activity.info()
        pack = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        while True:
            await asyncio.sleep(REPORT_EVERY.total_seconds())
            fresh = {n: wire for n, wire in self._outcomes.items() if n not in self._reported}
            if fresh:
                with contextlib.suppress(RPCError):  # then it is told next time, or at the end
                    news = {"batch": self._number, "outcomes": sorted(fresh.items()), "ended_at": stamp_end()}
                    await pack.signal(REPORT, to_raw(news), rpc_timeout=CALL_TIMEOUT)
                    self._reported |= fresh.keys()

    async def _forget_left_run(self) -> None:
        """Delete the run that the pack continued from: all it knew is in this one, and it would stay for a day."""
        if not self._left_run:
            return
        info = activity.info()
        client = activity.client()
        request = DeleteWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=info.workflow_id or "", run_id=self._left_run),
        )
        with contextlib.suppress(RPCError):  # the server's own retention deletes it too, later
            await client.workflow_service.delete_workflow_execution(request, timeout=CALL_TIMEOUT)


def _no_beat() -> None:
    """The batch itself sends heartbeats."""
