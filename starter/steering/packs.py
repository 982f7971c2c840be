"""Pack client: signals for some messages of a pack, and queries that only the pack can answer."""

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from temporalio.api.enums.v1 import PendingWorkflowTaskState
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowQueryRejectedError
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError

from shared.errors import PackNotServed, RetryLater, StandsStill
from shared.lanes import prefix_of
from shared.messages.message import ENDS
from shared.messages.placement import Layout, pack_of, pack_workflow_id
from shared.messages.signals import SIGNAL_NAMES, Signal, write_steering
from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import CALL_TIMEOUT, describe_queue, is_missing, translate_rpc_error, translate_rpc_errors
from starter.starting.layouts import Layouts
from starter.starting.queries import NO_ANSWER, HistoryRoom, QueryRoom, is_polled
from starter.steering.selection import Selection
from starter.steering.status.failing_workflows import to_standstill
from starter.steering.status.listing import ListedMessage, from_pack
from starter.steering.stored.memo_counts import MemoCounts, MessageCount, read_memo_counts
from starter.steering.stored.read_ahead import read_ahead
from starter.steering.stored.stored_pack import StoredPack, read_stored

PATIENCE_SECONDS = 20.0
"""How long a pack with workers may make no progress before PackNotServed is raised."""
TURN_SECONDS = 300.0
"""The same while a worker has the pack's task, or works on the tasks queued before it."""

PAGE_SIZE = 1000
ASKED_AT_ONCE = 16
ASKED_MAX = 200
ASK_SECONDS = 10.0
"""Up to so many packs are asked for exact counts if that takes no longer; more are counted by their memos."""
READ_AT_ONCE = 32
"""Packs that are read side by side, most of them without a worker."""

KNOWN: Sequence[dict[str, Any]] = ({}, *({"state": state} for state in ENDS))
"""Requests for all that a pack knows: those that are alive, and those that finished a while ago."""

Pack = tuple[Layout, int]
Found = TypeVar("Found")
PassOver = Callable[[str], None]
"""Gets a sentence for each pack that can't be read, and lets the others be read."""


class PackBusy(PackNotServed):
    """A pack did not answer although workers serve it; it may answer later."""


class HistoryFull(RetryLater):
    """A pack does not answer, and its history has no room for another signal: nothing was sent."""


class Packs:
    """Queries and signals packs; raises PackNotServed within seconds if no worker does, StandsStill if a task fails."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._room = QueryRoom(ASKED_AT_ONCE)
        self._history = HistoryRoom(client, settings)
        self.layouts = Layouts(client, settings)

    async def steer(self, layout: Layout, index: int, ids: list[str], signal: Signal) -> list[str]:
        """Send a signal for messages of a pack; returns the ids not alive in it. At PackNotServed the server has it.

        Raises HistoryFull, and sends nothing, when the pack does not answer and its history has no room.
        """
        if obstacle := await self._history.find_obstacle(layout, index):
            raise HistoryFull(obstacle)

        token = uuid.uuid4().hex
        handle = self._client.get_workflow_handle(pack_workflow_id(layout.kind, index))

        try:
            wire = write_steering(ids, signal, token)
            await handle.signal(SIGNAL_NAMES[type(signal)], wire, rpc_timeout=CALL_TIMEOUT)
        except RPCError as exc:
            if is_missing(exc):
                return list(ids)
            raise translate_rpc_error(exc) from exc

        return await self._find_missing(layout, index, token, ids)

    async def _find_missing(self, layout: Layout, index: int, token: str, ids: list[str]) -> list[str]:
        receipt = await self.query(layout, index, "receipt", token)
        missing: list[str] = [ids[position] for position in receipt["missing"]]
        for other, positions in receipt["moved"].items():
            missing += await self._find_missing(layout, int(other), token, [ids[position] for position in positions])
        return missing

    async def status(self, layout: Layout, index: int, message_id: str) -> dict[str, Any] | None:
        """Query the status and the last decisions of a message; None when the pack does not know it."""
        answer = await self.query(layout, index, "known", message_id)
        if (other := answer["moved_to"]) is None:
            return answer["status"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (found := await self.status(layout, other, message_id)) is None:
                if (await self.query(layout, index, "overview"))["strays"] == 0:
                    return await self.status(layout, other, message_id)
                await asyncio.sleep(backoff_seconds(1))

        return found

    async def iterate(self, selection: Selection, pass_over: PassOver | None = None) -> AsyncIterator[ListedMessage]:
        """List the packed messages of a selection, pack by pack, see `read_each`."""
        requests = [selection.to_page_request()]
        async for _, messages in self.read_each(self.find_packs(selection), requests, pass_over):
            for message in messages:
                yield message

    async def iterate_known(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        """Give (id, state) of each message of a packed kind, alive or remembered as finished, see `read_each`."""
        async for _, known in self._read_ahead(self.find_packs(Selection(kind=kind)), self._list_known):
            for each in known:
                yield each

    async def read_each(
        self, packs: AsyncIterator[Pack], requests: Sequence[dict[str, Any]], pass_over: PassOver | None = None
    ) -> AsyncIterator[tuple[Pack, list[ListedMessage]]]:
        """Read packs side by side, and give the messages that any of the requests (to the query `page`) selects.

        A pack is read without its worker where the server has stored all of it. Busy ones come last, and are asked for
        as long as any of them answers. Raises PackNotServed for one that only a worker can tell of when none serves it,
        or when none of the busy ones answers any more; `pass_over` gets the sentence in place of that, and the pack is
        left out.
        """

        async def read(pack: Pack, is_patient: bool) -> list[ListedMessage]:  # noqa: FBT001 — called by one function
            try:
                messages = await self._list(pack, requests, is_patient=is_patient)
            except (PackNotServed, StandsStill) as exc:
                if pass_over is None or isinstance(exc, PackBusy):
                    raise
                pass_over(str(exc))
                return []
            return [from_pack(pack[0].kind, message) for message in messages]

        async for pack, messages in self._read_ahead(packs, read, pass_over):
            yield pack, messages

    async def _read_ahead(
        self,
        packs: AsyncIterator[Pack],
        read: Callable[[Pack, bool], Awaitable[list[Found]]],
        pass_over: PassOver | None = None,
    ) -> AsyncIterator[tuple[Pack, list[Found]]]:
        left = packs
        is_patient = False

        async def try_to_read(pack: Pack) -> list[Found] | PackBusy:
            try:
                return await read(pack, is_patient)
            except PackBusy as exc:
                return exc

        while True:
            busy = dict[Pack, PackBusy]()
            answered = 0
            async with contextlib.aclosing(read_ahead(left, try_to_read, READ_AT_ONCE)) as reading:
                async for pack, found in reading:
                    if isinstance(found, PackBusy):
                        busy[pack] = found
                    else:
                        answered += 1
                        yield pack, found
            if not busy:
                return
            if is_patient and not answered:
                _give_up(list(busy.values()), pass_over)
                return
            left = iterate_packs(busy)
            is_patient = True

    async def _list(self, pack: Pack, requests: Sequence[dict[str, Any]], *, is_patient: bool) -> list[dict[str, Any]]:
        stored = await self._read_stored(pack)
        if stored.is_current:
            return [message for request in requests for message in stored.list(request)]
        pages = [self._read_pages(*pack, request, is_patient=is_patient) for request in requests]
        return [message for page in pages async for message in page]

    async def _list_known(self, pack: Pack, is_patient: bool) -> list[tuple[str, str]]:  # noqa: FBT001 — as above
        stored = await self._read_stored(pack)
        if stored.knows_ids:
            return stored.list_known()
        pages = [self._read_pages(*pack, request, is_patient=is_patient) for request in KNOWN]
        return [(message["id"], message["state"]) for page in pages async for message in page]

    async def _read_stored(self, pack: Pack) -> StoredPack:
        with translate_rpc_errors():
            return await read_stored(self._client, pack_workflow_id(pack[0].kind, pack[1]))

    async def read_page(self, pack: Pack, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Give what a request to the query `page` selects, without a worker where the server has stored all of it.

        Raises PackNotServed at once where no worker has polled for minutes, as far as the server remembers.
        """
        stored = await self._read_stored(pack)
        if stored.is_current:
            return stored.page(request)

        layout, index = pack
        await self._look(layout, self._client.get_workflow_handle(pack_workflow_id(layout.kind, index)))
        return (await self.query(*pack, "page", request))["messages"]

    async def list_ids(self, layout: Layout, index: int, state: str) -> set[str]:
        """Give the ids of the messages of a pack that are in a state."""
        return {message["id"] async for message in self._read_pages(layout, index, {"state": state})}

    async def _read_pages(
        self, layout: Layout, index: int, request: dict[str, Any], *, is_patient: bool = True
    ) -> AsyncIterator[dict[str, Any]]:
        after = ""
        while True:
            wanted = request | {"after": after, "limit": PAGE_SIZE}
            page = await self.query(layout, index, "page", wanted, is_patient=is_patient)
            for message in page["messages"]:
                yield message
            if len(page["messages"]) < PAGE_SIZE:
                return
            after = page["messages"][-1]["id"]

    async def count(self, selection: Selection) -> int:
        """Count the packed messages of a selection, by a query to every pack that may hold some."""

        async def count(pack: Pack) -> int:
            return (await self.query(*pack, "page", selection.to_page_request() | {"limit": 0}))["count"]

        return sum(await asyncio.gather(*[count(pack) async for pack in self.find_packs(selection)]))

    async def estimate(self, selection: Selection) -> MessageCount:
        """Count like `count` where few packs are to be asked and answer soon, else about, by the packs' memos.

        Finished messages are always asked for, because no memo counts them.
        """
        if selection.state in ENDS:
            return MessageCount(await self.count(selection))
        if await self.count_packs(selection) <= ASKED_MAX:
            with contextlib.suppress(PackNotServed, StandsStill, TimeoutError):
                async with asyncio.timeout(ASK_SECONDS):
                    return MessageCount(await self.count(selection))
        return (await self.read_memos(selection)).count(selection)

    async def count_packs(self, selection: Selection) -> int:
        """Count the packs that may hold messages of a selection, in the index."""
        with translate_rpc_errors():
            return (await self._client.count_workflows(selection.to_pack_query(), rpc_timeout=CALL_TIMEOUT)).count

    async def read_memos(self, selection: Selection) -> MemoCounts:
        """Read the counts of the packs that may hold messages of a selection; no worker is needed."""
        return await read_memo_counts(self._client, selection, time.time())

    async def find_packs(self, selection: Selection) -> AsyncIterator[Pack]:
        """Give the packs that may hold messages of a selection; for one kind also those not in the index yet."""
        known = 0
        # the index can exclude packs: it knows which have parked messages, and when each is due next
        is_narrowed = selection.state == "parked" or selection.due_before is not None
        if selection.kind and not is_narrowed and (layout := await self.layouts.find(selection.kind)):
            known = layout.packs
            for index in range(known):
                yield layout, index

        with translate_rpc_errors():
            async for execution in self._client.list_workflows(selection.to_pack_query(), page_size=500):
                kind, index = pack_of(execution.id)
                layout = await self.layouts.find(kind)
                if layout is not None and index >= known:
                    yield layout, index

    async def query(
        self, layout: Layout, index: int, question: str, *argument: Any, is_patient: bool = True
    ) -> dict[str, Any]:
        """Query, with at most one argument, until the pack answers, for as long as it makes progress, as in a batch.

        Unless `is_patient`, PackBusy is raised when it does not answer the first time.
        """
        name = pack_workflow_id(layout.kind, index)
        handle = self._client.get_workflow_handle(name)
        where = f"pack {name} on lane {layout.lane}"
        untold_since = math.inf
        moved_at = time.monotonic()
        mark = None
        attempts = 0
        while True:
            has_answered, answer = await self._ask(handle, question, *argument)
            if answer is not None:
                return answer

            # what the pack was asked about has yet to reach it, or it has forgotten it
            untold_since = min(untold_since, time.monotonic()) if has_answered else math.inf
            if time.monotonic() - untold_since >= self._settings.patience.total_seconds():
                raise PackBusy(f"{where} has it, but did not tell within {self._settings.patience} what became of it")

            before = mark
            mark, is_in_turn = await self._look(layout, handle)
            if mark is not None and mark != before:
                moved_at = time.monotonic()
            if not is_patient or time.monotonic() - moved_at >= (TURN_SECONDS if is_in_turn else PATIENCE_SECONDS):
                raise PackBusy(f"{where} does not answer; its workers are busy, or stuck")
            attempts += 1
            await asyncio.sleep(backoff_seconds(attempts))

    async def _ask(
        self, handle: WorkflowHandle[Any, Any], question: str, *argument: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        """Query once; give whether the pack has answered, and what: None for a receipt that it does not have."""
        try:
            return True, await self._room.query(handle, question, *argument, reject=QueryRejectCondition.NOT_OPEN)
        except RPCError as exc:
            if is_missing(exc):
                return True, _NOTHING
        except WorkflowQueryRejectedError as exc:
            if exc.status != WorkflowExecutionStatus.CONTINUED_AS_NEW:  # then its next run is about to begin
                return True, _NOTHING  # ended from outside: its messages are no longer alive
        except NO_ANSWER:
            pass

        return False, None

    async def _look(self, layout: Layout, handle: WorkflowHandle[Any, Any]) -> tuple[tuple[str, int, int] | None, bool]:
        """Read a mark of a pack's progress, and whether it is in turn; raises PackNotServed or StandsStill.

        The mark (run id, history length, attempt) changes with any progress; it is None while the server does not
        answer. In turn: a worker has the pack's task or works on those before it, and this is the task's first attempt.
        """
        try:
            described = await handle.describe(rpc_timeout=CALL_TIMEOUT)
            queue = await describe_queue(self._client, described.task_queue, report_stats=True)
            failing = await to_standstill(self._client, described)
            self._history.note_size(described)
        except RPCError:
            return None, False  # the caller's patience decides

        if not is_polled(queue):
            prefix = prefix_of(described.task_queue)
            raise PackNotServed(
                f"no worker of lane {layout.lane} serves pack {described.id}, and only the pack knows its messages; "
                f"start one (with worker versioning, of the current version): dormice worker --lane {layout.lane}"
                + ("" if prefix == self._settings.task_queue_prefix else f" --set task_queue_prefix={prefix}")
            )

        if failing is not None:
            raise StandsStill(failing.describe())

        task = described.raw_description.pending_workflow_task
        is_begun = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
        is_in_turn = task.attempt <= 1 and (is_begun or queue.stats.tasks_dispatch_rate > 0)
        return (described.run_id, described.history_length, task.attempt), is_in_turn


def _give_up(busy: Sequence[PackBusy], pass_over: PassOver | None) -> None:
    if pass_over is None:
        raise busy[0]
    for exc in busy:
        pass_over(str(exc))


async def iterate_packs(packs: Iterable[Pack]) -> AsyncIterator[Pack]:
    """Give packs that are known already."""
    for pack in packs:
        yield pack


_NOTHING: dict[str, Any] = {"status": None, "moved_to": None, "messages": [], "missing": [], "moved": {}, "lanes": {}}
_NOTHING.update(dict.fromkeys(("count", "packs", "strays", "staying"), 0))
"""What a pack that does not exist, or has ended, would answer to any query."""
