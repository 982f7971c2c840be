"""Idle capacity: with nothing to do, workers run what is due first ahead of its time, and drop that for due work."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import CountWorkflowExecutionsRequest
from temporalio.client import Client
from temporalio.common import TypedSearchAttributes
from temporalio.service import RPCError

from examples.ledger import Entry, Ledger
from shared.lanes import task_queue
from shared.messages.message import MessageState
from shared.messages.placement import PACK_WORKFLOW, pack_index, pack_workflow_id
from shared.packs.entry import measure, to_entry, to_heading
from shared.settings import Settings
from shared.temporal.search_attributes import pack_attributes_at_start
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.steering.keepers import IdleControl
from tests.conftest import wait_until
from tests.support.asleep import start_asleep
from tests.support.processes import worker_process

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(240)]  # seconds where the machine is free

HOUR = 3600.0
KIND = "ledger"
PATIENCE = 200.0


class Sleepers:
    """Messages asleep on the task queue of a test; each may be pulled forward from some moment on."""

    def __init__(self, client: Client, settings: Settings, prefix: str) -> None:
        self.client = client
        self.queue = task_queue(settings.task_queue_prefix, "short")
        self.prefix = prefix
        self.now = time.time()
        self.due: dict[str, float] = {}

    def state(self, number: int, due_in: float, earliest_in: float = -1.0, **payload: Any) -> MessageState:
        """Make the state of one that is due in some seconds."""
        name = f"{self.prefix}-{number}"
        now = self.now
        self.due[name] = now + due_in
        payload = {"delay": 10 * HOUR} | payload
        return MessageState(KIND, name, "short", now + due_in, now + earliest_in, payload=payload)

    async def start(self, states: Iterable[MessageState]) -> None:
        """Start messages with workflows of their own."""
        rest = iter(states)
        while group := list(itertools.islice(rest, 50)):
            await asyncio.gather(*(start_asleep(self.client, self.queue, state, self.now) for state in group))

    async def start_packs(self, states: Sequence[MessageState], packs: int) -> None:
        """Start packs that hold messages."""
        entries: list[list[Any]] = [[] for _ in range(packs)]
        for state in states:
            entries[pack_index(state.id, packs)].append(to_entry(state, "short"))

        kind = f"packed-{self.prefix}"
        for index, held in enumerate(entries):
            heading = to_heading(KIND, "short", index=index, packs=packs, size=1000, coalesce=60.0)
            await self.client.start_workflow(
                PACK_WORKFLOW,
                heading | {"entries": held, "bytes": sum(map(measure, held))},
                id=pack_workflow_id(kind, index),
                task_queue=self.queue,
                search_attributes=TypedSearchAttributes(pack_attributes_at_start(KIND, "short")),
            )


@pytest.fixture
def sleepers(client: Client, settings: Settings, message_id: Callable[[], str]) -> Sleepers:
    """Nobody yet."""
    return Sleepers(client, settings, message_id())


@pytest.fixture
async def idle(client: Client, settings: Settings) -> AsyncGenerator[IdleControl]:
    """What steers the idle capacity of the test's task queues; switched off at the end, for other tests' sake."""
    idle = IdleControl(client, settings)
    yield idle
    await idle.switch("short", is_on=False)


@contextlib.asynccontextmanager
async def working(server: EmbeddedServer, settings: Settings) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a worker process for the short lane."""
    async with worker_process(server, settings, "--lane", "short") as process:
        yield process


def begun(ledger: Ledger) -> list[Entry]:
    """Give the handler calls so far, in their order."""
    return [entry for entry in ledger.entries if entry.what == "began"]


def correlate_ranks(values: Sequence[float]) -> float:
    """Say how near a sequence is to ascending order: 1 when it is (Spearman's coefficient)."""
    ranks = {value: rank for rank, value in enumerate(sorted(values))}
    distance = sum((place - ranks[value]) ** 2 for place, value in enumerate(values))
    return 1 - 6 * distance / (len(values) * (len(values) ** 2 - 1))


@pytest.mark.long
async def test_idle_workers_run_what_is_due_first_and_nothing_before_its_earliest_moment(
    server: EmbeddedServer, settings: Settings, ledger: Ledger, sleepers: Sleepers, idle: IdleControl
) -> None:
    """Five hundred messages due in hours: in the order of their due times, each once, and early by what is counted."""
    chance = random.Random(3)
    await sleepers.start(sleepers.state(n, HOUR * (1 + 10 * chance.random())) for n in range(500))
    await sleepers.start(sleepers.state(n, HOUR, earliest_in=HOUR / 2) for n in range(500, 520))
    await idle.switch("short", is_on=True)
    async with working(server, settings):
        await wait_until(lambda: len(begun(ledger)) >= 500, "all that may have run", PATIENCE)
        status = await wait_until(lambda: _has_counted(idle, 500), "it has counted them", PATIENCE)

    calls = begun(ledger)
    assert {call.id for call in calls} == {f"{sleepers.prefix}-{n}" for n in range(500)}
    assert {call.version for call in calls} == {0}
    assert correlate_ranks([sleepers.due[call.id] for call in calls]) >= 0.95
    assert HOUR < status.pulled.mean_early_seconds < 11 * HOUR


async def _has_counted(idle: IdleControl, count: int) -> Any:
    """Give the status once it reports `count`, less what two seconds of a lost worker may have cost."""
    status = await idle.status("short")
    assert status.pulled.messages <= count
    return status if status.pulled.messages >= 0.8 * count else None


async def _has_nobody_left(idle: IdleControl) -> Any:
    status = await idle.status("short")
    return status if status.doing == "nobody to wake" and status.pulled.messages else None


@pytest.mark.long
async def test_packs_are_pulled_in_due_order_within_the_reach(
    server: EmbeddedServer, settings: Settings, ledger: Ledger, sleepers: Sleepers, idle: IdleControl
) -> None:
    """Of 20,000 messages in 100 packs none runs while another is left that is due two reaches and a half before."""
    chance = random.Random(5)
    reach = 1800.0
    states = [sleepers.state(n, HOUR * (1 + 2 * chance.random())) for n in range(20_000)]
    await sleepers.start_packs(states, 100)
    await idle.limit("short", {"reach_seconds": reach, "pack_messages": 100})
    await idle.switch("short", is_on=True)
    async with working(server, settings):
        await wait_until(lambda: len(begun(ledger)) >= 20_000, "all have run", PATIENCE)

    calls = begun(ledger)
    assert len(calls) == len({call.id for call in calls}) == 20_000
    dues = [sleepers.due[call.id] for call in calls]
    earliest_left = list(itertools.accumulate(reversed(dues), min))[::-1]
    worst = max(due - left for due, left in zip(dues, earliest_left, strict=True))
    assert worst <= 2.5 * reach  # one reach is under way while the next is pulled, and a busy machine delays a batch


@pytest.mark.long
async def test_due_work_comes_first(
    server: EmbeddedServer, settings: Settings, ledger: Ledger, sleepers: Sleepers, idle: IdleControl
) -> None:
    """As soon as messages fall due, what runs next is those, but for what was under way."""
    await sleepers.start(sleepers.state(n, HOUR + n, work=0.5) for n in range(600))
    await idle.switch("short", is_on=True)
    async with working(server, settings):
        await wait_until(lambda: len(begun(ledger)) >= 100, "some have been pulled", PATIENCE)
        arrived = len(begun(ledger))
        await sleepers.start(sleepers.state(n, -1.0, work=0.2) for n in range(1000, 1200))
        await wait_until(
            lambda: sum(_is_due(call, sleepers) for call in begun(ledger)) >= 200, "the due ones ran", PATIENCE
        )

    calls = begun(ledger)[arrived:]
    first = next(place for place, call in enumerate(calls) if _is_due(call, sleepers))
    following = calls[first : first + 200]
    assert sum(_is_due(call, sleepers) for call in following) >= 150


def _is_due(call: Entry, sleepers: Sleepers) -> bool:
    return sleepers.due[call.id] <= sleepers.now


@pytest.mark.long
async def test_ten_messages_are_not_spun(
    server: EmbeddedServer, settings: Settings, ledger: Ledger, sleepers: Sleepers, idle: IdleControl
) -> None:
    """Each has an earliest moment of its own anew once it has run; however idle the lane is, it sleeps until then."""
    await sleepers.start(sleepers.state(n, HOUR + n) for n in range(10))
    await idle.switch("short", is_on=True)
    async with working(server, settings):
        await wait_until(lambda: len(begun(ledger)) >= 10, "all have run", PATIENCE)
        await wait_until(lambda: _has_nobody_left(idle), "it finds nobody more", PATIENCE)
        await asyncio.sleep(8)  # several looks into the index

    assert sorted((call.id, call.version) for call in begun(ledger)) == [
        (f"{sleepers.prefix}-{n}", 0) for n in range(10)
    ]


@pytest.mark.long
async def test_another_worker_takes_over(
    server: EmbeddedServer, settings: Settings, ledger: Ledger, sleepers: Sleepers, idle: IdleControl
) -> None:
    """The worker that pulls is killed: it goes on elsewhere, and no version is pulled twice."""
    await sleepers.start(sleepers.state(n, HOUR + n, work=0.3) for n in range(300))
    await idle.switch("short", is_on=True)

    async with working(server, settings) as first:
        await wait_until(lambda: len(begun(ledger)) >= 50, "some have been pulled", PATIENCE)
        first.kill()
        await first.wait()

    async with working(server, settings):
        await wait_until(lambda: len({call.id for call in begun(ledger)}) == 300, "the others are pulled too", PATIENCE)
        ended = [entry for entry in ledger.entries if entry.what == "again"]

    assert len({(entry.id, entry.version) for entry in ended}) >= len({entry.id for entry in ended})
    assert {entry.version for entry in ended} == {0}


@pytest.mark.long
async def test_while_the_index_cannot_be_asked_nobody_is_harmed(
    settings: Settings, ledger: Ledger, tmp_path: Path, message_id: Callable[[], str]
) -> None:
    """Others overload the visibility store with queries: the leader reports that it waits, and goes on once it can."""
    options = EmbeddedOptions(
        data=tmp_path, port=find_free_port(), ui_port=None, extra_config=("frontend.namespaceRPS.visibility=4",)
    )
    async with run_embedded(options) as server:
        client = await server.connect()
        idle = IdleControl(client, settings)
        sleepers = Sleepers(client, settings, message_id())
        await sleepers.start(sleepers.state(n, HOUR + n) for n in range(100))
        floods = [asyncio.create_task(_ask_for_ever(client)) for _ in range(20)]
        await idle.switch("short", is_on=True)
        async with working(server, settings):
            await wait_until(lambda: _is_doing(idle, "waiting for the server"), "it waits", PATIENCE)
            for flood in floods:
                flood.cancel()
            await asyncio.gather(*floods, return_exceptions=True)
            await wait_until(lambda: len(begun(ledger)) >= 100, "all have been pulled", PATIENCE)

    assert sorted((call.id, call.version) for call in begun(ledger)) == sorted(
        (f"{sleepers.prefix}-{n}", 0) for n in range(100)
    )


async def _ask_for_ever(client: Client) -> None:
    while True:
        with contextlib.suppress(RPCError):
            await client.workflow_service.count_workflow_executions(
                CountWorkflowExecutionsRequest(namespace=client.namespace), retry=False
            )
        await asyncio.sleep(0.01)


async def _is_doing(idle: IdleControl, what: str) -> bool:
    return (await idle.status("short")).doing == what
