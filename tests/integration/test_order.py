"""Order: who goes first when more is due than can be done, with all of it waiting before the workers begin."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client

from activities import Context, Done, Message, handler
from activities.api.handler import Handler
from shared.messages.envelope import Envelope
from shared.messages.placement import workflow_id
from shared.settings import Settings
from starter.control import Control
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import Serve, serving, wait_until
from worker.lanes.starting import weigh_tenants

pytestmark = pytest.mark.timeout(150)  # hundreds of messages with a workflow each, started and run

MANY = 300
FEW = 10
SLOTS = 100
SETTLE = timedelta(seconds=6)
"""The server hands a backlog that is younger than five seconds out as it comes."""


@dataclass
class Crowd:
    """Messages of one kind; `order` is the ids in the order in which the handler was called.

    A call ends when `is_open` is set, as it is from the beginning.
    """

    kind: str
    client: Client
    settings: Settings
    order: list[str] = field(default_factory=list[str])
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Hold nobody."""
        self.is_open.set()

    @property
    def handler(self) -> Handler:
        """What notes the order."""

        @handler(self.kind)
        async def note(message: Message, ctx: Context) -> Done:
            self.order.append(message.id)
            await self.is_open.wait()
            return Done()

        return note

    async def start(self, *envelopes: Envelope) -> None:
        """Start messages."""
        receipts = BulkStarter(self.client, self.settings).start_all((None, envelope) for envelope in envelopes)
        assert [r async for r in receipts if r.outcome is not StartOutcome.STARTED] == []

    def make(self, name: str, count: int, lane: str = "short", **fields: object) -> Iterator[Envelope]:
        """Make messages with one letter for a name."""
        due = datetime.now(UTC)
        for n in range(count):
            yield Envelope.model_validate(
                {"kind": self.kind, "id": f"{name}{n}", "lane": lane, "scheduled_at": due, **fields}
            )

    def places(self, name: str) -> list[int]:
        """Give the places of the messages with that letter, of all that were called."""
        return [place for place, message_id in enumerate(self.order) if message_id.startswith(name)]

    async def is_scheduled(self, name: str) -> bool:
        """Its activity waits at the server, or is at work."""
        handle = self.client.get_workflow_handle(workflow_id(self.kind, name))
        return bool((await handle.describe()).raw_description.pending_activities)

    async def wait_for(self, count: int) -> None:
        """Wait until `count` messages have been called."""
        await wait_until(lambda: len(self.order) >= count, f"{count} have been called", seconds=90)


@pytest.fixture
async def crowd(client: Client, settings: Settings, kind: str) -> AsyncIterator[Crowd]:
    """Give one without messages yet; nobody of it is called twice."""
    crowd = Crowd(kind, client, settings)
    yield crowd
    assert len(set(crowd.order)) == len(crowd.order)


@pytest.mark.parametrize("lane", ["short", pytest.param("medium", marks=pytest.mark.long)])
async def test_the_higher_priority_goes_first_on_a_busy_lane(crowd: Crowd, serve: Serve, lane: str) -> None:
    """Messages of priority 1 that came last overtake those of priority 5 that came first, but for some in flight."""
    await crowd.start(*crowd.make("e", MANY, lane, priority=5), *crowd.make("a", FEW, lane, priority=1))
    await asyncio.sleep(SETTLE.total_seconds())
    async with serve(crowd.handler, lanes=(lane,), sandbox=False):
        await crowd.wait_for(MANY + FEW)

    assert max(crowd.places("a")) < MANY // 3


@pytest.mark.long
async def test_activities_that_wait_for_a_slot_are_overtaken_too(crowd: Crowd) -> None:
    """A message of priority 1 begins with the first slot that is free, though others have been waiting for it."""
    crowd.is_open.clear()
    async with serving(crowd.client, crowd.settings, crowd.handler, lanes=("long",), calls=SLOTS):
        await crowd.start(*crowd.make("e", 250, "long", priority=5))
        await crowd.wait_for(SLOTS)
        await wait_until(lambda: crowd.is_scheduled("e249"), "more wait than there are slots")
        await crowd.start(*crowd.make("a", 1, "long", priority=1))
        await wait_until(lambda: crowd.is_scheduled("a0"), "it waits too")
        crowd.is_open.set()
        await crowd.wait_for(251)

    assert SLOTS <= crowd.places("a")[0] < 240


@pytest.mark.long
async def test_a_waiting_message_that_is_reprioritized_overtakes_the_others(
    crowd: Crowd, control: Control, serve: Serve
) -> None:
    """Its task lies in the server's queue already, behind all others."""
    await crowd.start(*crowd.make("e", MANY, priority=5), *crowd.make("a", 1, priority=5))
    await control.reprioritize(crowd.kind, "a0", 1)
    await asyncio.sleep(SETTLE.total_seconds())
    async with serve(crowd.handler, lanes=("short",), sandbox=False):
        await crowd.wait_for(MANY + 1)

    assert crowd.places("a")[0] < MANY // 3


@pytest.mark.long
async def test_a_noisy_tenant_does_not_hold_up_a_quiet_one(crowd: Crowd, serve: Serve) -> None:
    """The only message of a tenant, behind hundreds of another's that came before it, is among the first."""
    await crowd.start(*crowd.make("n", MANY * 2, tenant="noisy"), *crowd.make("q", 1, tenant="quiet"))
    await asyncio.sleep(SETTLE.total_seconds())
    async with serve(crowd.handler, lanes=("short",), sandbox=False):
        await crowd.wait_for(MANY * 2 + 1)

    assert crowd.places("q")[0] < MANY * 2 // 3


@pytest.mark.long
async def test_tenants_share_a_busy_lane_by_their_weights(crowd: Crowd, serve: Serve) -> None:
    """Who weighs nine times as much gets most of the first half; nobody gets nothing."""
    heavy = uuid.uuid4().hex
    light = uuid.uuid4().hex
    settings = Settings(task_queue_prefix=crowd.settings.task_queue_prefix, tenant_weights=(f"{heavy}=9",))
    await weigh_tenants(crowd.client, settings, ["short"])
    await crowd.start(*crowd.make("l", MANY, tenant=light), *crowd.make("h", MANY, tenant=heavy))
    await asyncio.sleep(SETTLE.total_seconds())
    async with serve(crowd.handler, lanes=("short",), sandbox=False):
        await crowd.wait_for(MANY * 2)

    in_first_half = sum(place < MANY for place in crowd.places("h"))
    assert MANY * 0.65 < in_first_half < MANY
