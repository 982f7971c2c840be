"""A pack that is queried while its batches run: what it decides then must be what a replay of its history decides."""

import asyncio
import contextlib
import gc
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowQueryRejectedError,
)
from temporalio.service import RPCError

from activities import Again, Context, Message, handler
from shared.errors import PackNotServed
from shared.lanes import task_queue
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import pack_workflow_id
from shared.settings import Settings
from shared.temporal.connect import describe_queue, is_transient
from starter.control import Control
from starter.starting import queries
from starter.starting.bulk import BulkStarter
from starter.starting.layouts import Layouts
from starter.starting.queries import is_polled
from starter.steering.packs import queries as pack_queries
from starter.steering.packs.packs import Packs
from starter.steering.selection import Selection
from tests.conftest import Serve, wait_until
from tests.replay.runs import follow_runs, has_begun
from tests.support.replayer import make_replayer
from workflows.pack_workflow import PackWorkflow
from workflows.packs.state import PackState

pytestmark = pytest.mark.timeout(120)  # a worker begins and ends in it, seconds of processor time

MESSAGES = 60
CYCLES = 6
PACK = Pack(packs=1, size=MESSAGES, coalesce=timedelta(0))
SECOND = timedelta(seconds=1)


async def ask_for_ever(pack: WorkflowHandle[Any, Any]) -> None:
    """Ask a pack how it is, again and again: the SDK's core ends a task early then, and begins another."""
    while True:
        with contextlib.suppress(RPCError):  # a busy server may lose a task on its way to a worker, for a minute
            await pack.query("overview")


async def steer_for_ever(pack: WorkflowHandle[Any, Any]) -> None:
    """Ask for messages at once, or for a moment that comes while batches run."""
    chance = random.Random(5)
    while True:
        await asyncio.sleep(chance.uniform(0.0, 0.1))
        names = [f"m{chance.randrange(MESSAGES)}" for _ in range(3)]
        soon = datetime.now(UTC) + timedelta(milliseconds=chance.randrange(-20, 60))
        try:
            await pack.signal("run_now", {"ids": names[:1]})
            await pack.signal("reschedule", {"ids": names[1:], "due_at": soon.isoformat()})
        except RPCError as exc:  # while a run ends the server takes none, on a busy machine beyond the client's retries
            if not is_transient(exc):
                raise


@pytest.mark.parametrize(
    "is_steered", [pytest.param(False, id="queried", marks=pytest.mark.long), pytest.param(True, id="steered too")]
)
async def test_a_pack_that_is_queried_all_the_time_can_be_replayed(
    client: Client, settings: Settings, serve: Serve, kind: str, *, is_steered: bool
) -> None:
    """Messages fall due singly while batches run; each run fits its history, so a killed worker stops no message."""
    calls: list[str] = []
    chance = random.Random(7)

    @handler(kind, encoding=PACK)
    async def slow(message: Message, ctx: Context) -> Again:
        calls.append(message.id)
        await asyncio.sleep(0.01)
        return Again(after=SECOND * chance.uniform(1.0, 2.0), tolerance=timedelta(0))

    begin = datetime.now(UTC) + SECOND
    pack = client.get_workflow_handle(pack_workflow_id(kind, 0))
    histories: dict[str, WorkflowHistory] = {}
    async with serve(slow, lanes=("short",), sandbox=False):  # a sandbox for every run is slow
        starter = BulkStarter(client, settings, encodings={kind: PACK})
        envelopes = [
            (n, Envelope(kind=kind, id=f"m{n}", lane="short", scheduled_at=begin + SECOND * n / MESSAGES, payload=n))
            for n in range(MESSAGES)
        ]
        receipts = [receipt async for receipt in starter.start_all(envelopes)]
        steering = [steer_for_ever(pack)] if is_steered else []
        following = follow_runs(pack, client, receipts[0].run_id, histories)
        works = (ask_for_ever(pack), ask_for_ever(pack), following, *steering)
        beside = [asyncio.create_task(work) for work in works]
        try:
            await wait_until(
                lambda: len(calls) >= MESSAGES * CYCLES or any(t.done() for t in beside), "enough cycles", 100
            )
            assert [task.exception() for task in beside if task.done()] == []
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        last = await pack.fetch_history()
        await pack.terminate("seen enough")

    assert len(histories) > 1
    replayer = make_replayer(workflows=[PackWorkflow])
    for history in filter(has_begun, (*histories.values(), last)):
        replayed = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        assert replayed.replay_failure is None


async def test_a_look_at_a_pack_that_sleeps_costs_no_memory(
    client: Client, settings: Settings, serve: Serve, kind: str
) -> None:
    """It keeps its entries as bytes, and a query leaves them so; a signal opens them until it sleeps again."""

    @handler(kind, encoding=PACK)
    async def never(message: Message, ctx: Context) -> Again:
        raise AssertionError

    def is_closed() -> bool:
        packs = [each for each in gc.get_objects() if isinstance(each, PackState) and each.config.kind == kind]
        return bool(packs) and not any(vars(pack.entries)["_open"] for pack in packs)

    async with serve(never, lanes=("short",), sandbox=False):
        starter = BulkStarter(client, settings, encodings={kind: PACK})
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        envelopes = [(n, Envelope(kind=kind, id=f"m{n}", lane="short", scheduled_at=tomorrow)) for n in range(MESSAGES)]
        assert len([receipt async for receipt in starter.start_all(envelopes)]) == MESSAGES
        await wait_until(is_closed, "the pack sleeps")
        pack = client.get_workflow_handle(pack_workflow_id(kind, 0))

        assert (await pack.query("page", {"limit": 100}))["count"] == MESSAGES
        assert (await pack.query("status", "m7"))["state"] == "active"
        assert is_closed()

        await pack.signal("pause", {"ids": ["m7"]})
        await wait_until(lambda: _has_state(pack, "m7", "paused"), "it has heard the signal")
        await wait_until(is_closed, "it sleeps again")


async def _has_state(pack: WorkflowHandle[Any, Any], message_id: str, state: str) -> bool:
    return (await pack.query("status", message_id))["state"] == state


class MeetsTheEnd(Interceptor):
    """Lets the first question to each pack meet the end of a run: the server answers so about once in 1,500 times."""

    def __init__(self) -> None:
        self.met: set[str] = set()

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 — the SDK's own word
        """Stand between the client and the server."""
        met = self.met

        class Meeting(OutboundInterceptor):
            async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002 — likewise
                if input.id not in met:
                    met.add(input.id)
                    raise WorkflowQueryRejectedError(WorkflowExecutionStatus.CONTINUED_AS_NEW)
                return await super().query_workflow(input)

        return Meeting(next)


async def test_a_count_misses_no_pack_that_is_just_continuing_as_new(
    client: Client, settings: Settings, serve: Serve, kind: str
) -> None:
    """A question that meets the end of a run is asked again: the messages are in the next one."""

    @handler(kind, encoding=PACK)
    async def never(message: Message, ctx: Context) -> Again:
        raise AssertionError

    pack = Pack(packs=4, size=100)
    ends = MeetsTheEnd()
    options: dict[str, Any] = {**client.config(), "interceptors": [ends]}
    meeting = Client(**options)
    async with serve(never, lanes=("short",)):
        starter = BulkStarter(client, settings, encodings={kind: pack})
        later = datetime.now(UTC) + 3600 * SECOND
        envelopes = [(n, Envelope(kind=kind, id=f"m{n}", lane="short", scheduled_at=later)) for n in range(MESSAGES)]
        assert len([receipt async for receipt in starter.start_all(envelopes)]) == MESSAGES
        assert await Control(meeting, settings).count(Selection(kind=kind)) == MESSAGES

    assert len(ends.met) == pack.packs


async def test_a_pack_answers_while_its_handlers_are_at_work(
    settings: Settings, client: Client, serve: Serve, kind: str
) -> None:
    """A call that lasts costs nobody the answer."""
    at_work = asyncio.Event()
    is_over = asyncio.Event()

    @handler(kind, encoding=PACK, timeout=timedelta(seconds=30))
    async def be_slow(message: Message, ctx: Context) -> Again:
        at_work.set()
        await is_over.wait()
        return Again(after=timedelta(hours=1))

    async with serve(be_slow, lanes=("short",)):
        starter = BulkStarter(client, settings, encodings={kind: PACK})
        await starter.start(Envelope(kind=kind, id="m0", lane="short"), None)
        await at_work.wait()

        found = Control(client, settings).list(Selection(kind=kind))
        assert [listed.id async for listed in found] == ["m0"]
        assert (await client.get_workflow_handle(pack_workflow_id(kind, 0)).query("overview"))["running"] == 1
        is_over.set()


async def test_a_receipt_that_was_forgotten_is_given_up_in_a_sentence(
    settings: Settings, client: Client, kind: str, serve: Serve
) -> None:
    """A pack keeps few receipts, so that many signals at once push out those of others; their senders are told."""

    @handler(kind, encoding=PACK)
    async def rest(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(hours=1))

    async with serve(rest, lanes=("short",)):
        await BulkStarter(client, settings, encodings={kind: PACK}).start(
            Envelope(kind=kind, id="m0", lane="short"), None
        )
        layout = await Layouts(client, settings).find(kind)
        assert layout is not None
        asking = Packs(client, replace(settings, patience=2 * SECOND))
        with pytest.raises(
            PackNotServed, match=rf"pack {kind}~0 on lane short has it, but did not tell within 0:00:02"
        ):
            await asking.queries.ask(layout, 0, "receipt", "a token that no signal had")


@pytest.mark.long
async def test_a_pack_that_does_not_move_is_given_up_in_a_sentence(
    settings: Settings, client: Client, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody polls its lane and answers nothing, so that its task is lost over and over: that is no progress."""
    monkeypatch.setattr(pack_queries, "PATIENCE_SECONDS", 6.0)
    monkeypatch.setattr(queries, "QUERY_TIMEOUT", SECOND)
    queue = task_queue(settings.task_queue_prefix, "short")
    request = PollWorkflowTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), identity=client.identity
    )

    async def poll_for_ever() -> None:
        while True:
            with contextlib.suppress(RPCError):
                await client.workflow_service.poll_workflow_task_queue(request, timeout=timedelta(seconds=10))

    polling = asyncio.create_task(poll_for_ever())
    receipt = asyncio.create_task(
        BulkStarter(client, settings, encodings={kind: PACK}).start(Envelope(kind=kind, id="m0", lane="short"), None)
    )
    try:
        await wait_until(lambda: _is_begun(client, pack_workflow_id(kind, 0), queue), "the pack and its lane are there")
        layout = await Layouts(client, settings).find(kind)
        assert layout is not None
        with pytest.raises(PackNotServed, match=rf"pack {kind}~0 on lane short does not answer"):
            await Packs(client, settings).queries.ask(layout, 0, "overview")
    finally:
        polling.cancel()
        receipt.cancel()


async def _is_begun(client: Client, name: str, queue: str) -> bool:
    is_served = is_polled(await describe_queue(client, queue))
    return is_served and (await client.count_workflows(f"WorkflowId = '{name}'")).count > 0
