"""The tutorial of packs: many messages in one workflow, each as if it had one of its own."""

from collections import Counter
from datetime import timedelta

import pytest
from temporalio.client import Client

from activities import Again, Context, Done, Message, Pack, Reject, handler
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.control import Control
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import Serve, wait_until

PACK = Pack(packs=2, coalesce=timedelta(0))


@pytest.fixture
def starter(client: Client, settings: Settings, kind: str) -> BulkStarter:
    """Start messages as the kind's handler declares them."""
    return BulkStarter(client, settings, encodings={kind: PACK})


async def test_a_hundred_messages_share_two_workflows(
    serve: Serve, starter: BulkStarter, client: Client, kind: str
) -> None:
    """`encoding=Pack()` is all that a handler says; nothing in it changes, and each message is called by itself."""
    called = Counter[str]()

    @handler(kind, encoding=PACK)
    async def work(message: Message, ctx: Context) -> Again:
        called[message.id] += 1
        return Again(after=timedelta(hours=1))

    async with serve(work, lanes=("short",)):
        requests = ((None, Envelope(kind=kind, id=f"m{n}", lane="short")) for n in range(100))
        outcomes = Counter([receipt.outcome async for receipt in starter.start_all(requests)])
        await wait_until(lambda: len(called) == 100, "each has been called")

    handles = [client.get_workflow_handle(f"{kind}~{index}") for index in range(2)]
    held = [(await handle.describe()).workflow_type for handle in handles]

    assert outcomes == {StartOutcome.STARTED: 100}
    assert set(called.values()) == {1}
    assert held == ["pack", "pack"]


async def test_a_message_in_a_pack_is_steered_and_shown_like_any_other(
    serve: Serve, starter: BulkStarter, control: Control, kind: str
) -> None:
    """Whoever says its name need not know in which workflow it lives; its neighbours notice nothing."""
    called = Counter[str]()

    @handler(kind, encoding=PACK)
    async def work(message: Message, ctx: Context) -> Again | Done | Reject:
        called[message.id] += 1
        return Reject("it is bad") if message.payload == "bad" else Again(after=timedelta(hours=1))

    async with serve(work, lanes=("short",)):
        for name in ("ada", "bob"):
            await starter.start(Envelope(kind=kind, id=name, lane="short"), None)
        await wait_until(lambda: called == {"ada": 1, "bob": 1}, "both have been called")

        await control.revise(kind, "ada", "bad")
        await control.run_now(kind, "ada")

        async def is_parked() -> bool:
            return (await control.show(kind, "ada")).listed.state == "parked"

        await wait_until(is_parked, "the bad one is parked")
        neighbour = await control.show(kind, "bob")

    assert neighbour.listed.state == "active"
    assert called["bob"] == 1
