"""Layouts: the pack layout of each kind, read from the server; the first start of a kind fixes it."""

import asyncio
import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from shared.errors import Misconfigured, PackNotServed
from shared.lanes import task_queue
from shared.messages.encoding import PACKS_MAX, Pack
from shared.messages.placement import (
    GROW,
    LAYOUT_MEMO,
    LAYOUT_WORKFLOW,
    MESSAGE_WORKFLOW,
    PACK_WORKFLOW,
    Layout,
    count_packs,
    layout_workflow_id,
    pack_of,
)
from shared.settings import Settings
from shared.temporal.connect import (
    CALL_TIMEOUT,
    describe_queue,
    is_missing,
    translate_rpc_error,
    translate_rpc_errors,
)
from starter.starting.calls import RetryingCaller
from starter.starting.queries import is_polled

STORE_SECONDS = 300.0
"""How long a kind may take to its next packs, because tasks of busy workers come after those that wait already."""

LOOK_SECONDS = 0.5
LOOKED_AFTER_SECONDS = 5.0
"""Seconds without progress after which it is asked whether there are workers at all."""

GROWTH_MIN = 1.125
ASKED_SECONDS = 2.0
"""By what factor the packs of a crowded kind grow at least, and how soon the same number may be asked for again."""

BELIEVED_SECONDS = 30.0
MISSING_SECONDS = 2.0
"""How long a process caches the layouts that it has read: they change rarely, but one that is missing, or has fewer
packs than were asked for, may change soon."""


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
        self._asked: dict[str, tuple[float, int]] = {}
        """By kind, when more packs were asked for (monotonic), and how many."""
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

    async def ensure(self, kind: str, lane: str, messages: int = 0) -> Layout | None:
        """Give the layout for starts of a kind, which the first fixes; more packs that are declared are asked for.

        A new kind gets packs for so many `messages`, if that is known: then it need not grow while it is filled.
        """
        declared = self._declared.get(kind)
        layout = await self.find_patiently(kind)
        if layout is None and declared is not None:
            await self._refuse_if_solo(kind)
            layout = Layout.of(kind, lane, declared)
            packs = max(layout.packs, count_packs(messages, layout.size))
            await self._fix(await self._with_present_packs(replace(layout, packs=packs)))
            layout = await self.find(kind)
        if layout is not None and declared is not None and declared.packs > layout.packs:
            await self._ask(kind, declared.packs)

        return layout

    def forget(self, kind: str) -> None:
        """Read the layout of a kind anew next time."""
        self._cache.pop(kind, None)

    async def ask_for_room(self, layout: Layout, crowding: float) -> None:
        """Ask for more packs, because one holds `crowding` times as much as it should.

        A pack that is split next holds twice as much as one that was split, so half of that is surely not too many.
        At least an eighth is asked for, and the same not again within ASKED_SECONDS.
        """
        present = await self.find(layout.kind) or layout
        wanted = min(math.ceil(present.packs * max(crowding / 2, GROWTH_MIN)), PACKS_MAX)
        asked_at, asked = self._asked.get(layout.kind, (-math.inf, 0))
        if wanted <= present.packs or (wanted <= asked and time.monotonic() < asked_at + ASKED_SECONDS):
            return

        self._asked[layout.kind] = (time.monotonic(), wanted)
        await self._ask(layout.kind, wanted)

    async def grow(self, layout: Layout, packs: int, notify: Callable[[int], None] | None = None) -> None:
        """Give the kind more packs; returns when it has them, raises PackNotServed when no worker moves messages.

        `notify` gets the number of packs after each step.
        """
        await self._ask(layout.kind, packs)
        last = layout.packs
        moved_at = time.monotonic()

        while last < packs:
            self.forget(layout.kind)
            stored = await self.find(layout.kind)
            if stored is not None and stored.packs > last:
                last = stored.packs
                moved_at = time.monotonic()
                if notify is not None:
                    notify(last)
            elif time.monotonic() - moved_at > LOOKED_AFTER_SECONDS:
                await self._check_progress(layout, last, moved_at)
            await asyncio.sleep(LOOK_SECONDS)

    async def _check_progress(self, layout: Layout, packs: int, moved_at: float) -> None:
        """Raise PackNotServed for a kind that no worker serves, or that has got no more packs for STORE_SECONDS."""
        with translate_rpc_errors():
            queue = await describe_queue(self._client, task_queue(self._settings.task_queue_prefix, layout.lane))

        if not is_polled(queue):
            raise PackNotServed(
                f"no worker of lane {layout.lane} serves kind {layout.kind!r}, and only packs can move their messages; "
                f"start one: dormice worker --lane {layout.lane}"
            )

        if time.monotonic() - moved_at > STORE_SECONDS:
            raise PackNotServed(
                f"kind {layout.kind!r} has {packs:,} packs, and no more for {STORE_SECONDS:.0f} s: a handler at work "
                "keeps its message in its pack; it goes on by itself, and repeating this waits for it"
            )

    async def _ask(self, kind: str, packs: int) -> None:
        handle = self._client.get_workflow_handle(layout_workflow_id(kind))
        with translate_rpc_errors():
            await handle.signal(GROW, {"packs": packs}, rpc_timeout=CALL_TIMEOUT)
        self.forget(kind)

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

        _, asked = self._asked.get(kind, (0.0, 0))
        is_settled = layout is not None and layout.packs >= asked
        believed = BELIEVED_SECONDS if is_settled else MISSING_SECONDS
        self._cache[kind] = (time.monotonic() + believed, layout)

    async def _refuse_if_solo(self, kind: str) -> None:
        query = f"WorkflowType = '{MESSAGE_WORKFLOW}' AND ExecutionStatus = 'Running' AND Kind = '{kind}'"
        with translate_rpc_errors():
            alive = (await self._client.count_workflows(query)).count
        if alive:
            flaw = f"kind {kind!r} has {alive:,} messages with a workflow each"
            remedy = "stop them before it is packed, or leave encoding=Pack(…) away from its handler"
            raise Misconfigured(f"{flaw}; {remedy}")

    async def _with_present_packs(self, layout: Layout) -> Layout:
        """Give at least as many packs as there are: somebody may have ended the workflow that kept their number."""
        query = f"WorkflowType = '{PACK_WORKFLOW}' AND ExecutionStatus = 'Running' AND Kind = '{layout.kind}'"
        packs = layout.packs
        with translate_rpc_errors():
            async for found in self._client.list_workflows(query):
                packs = max(packs, pack_of(found.id)[1] + 1)
        return replace(layout, packs=packs)

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
