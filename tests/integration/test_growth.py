"""Growth: a packed kind gets more packs by itself as messages come, and nothing is refused, lost or doubled."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from temporalio.client import Client

from activities import Again, Context, Message, Pack, handler
from activities.api.handler import Handler
from shared.messages.envelope import Envelope
from shared.messages.placement import layout_workflow_id
from shared.packs.entry import CHUNK_BYTES_MAX
from shared.settings import Settings
from starter.control import Control
from starter.starting import chunks
from starter.starting.bulk import BulkStarter
from starter.starting.layouts import Layouts
from starter.starting.receipts import StartOutcome
from starter.steering.selection import Selection
from tests.conftest import Serve, wait_until

HOUR = timedelta(hours=1)


def make_sleeper(kind: str, pack: Pack) -> Handler:
    """Make a handler whose messages come back in an hour."""

    @handler(kind, encoding=pack)
    async def work(message: Message, ctx: Context) -> Again:
        return Again(after=HOUR)

    return work


async def test_a_kind_that_becomes_larger_gets_more_packs_by_itself(
    client: Client, settings: Settings, serve: Serve, message_id: Callable[[], str]
) -> None:
    """600 messages come to a kind of one pack for 30: all are taken, each is called once, and all are found."""
    kind = f"kind-{message_id()}"
    pack = Pack(packs=1, size=30, coalesce=timedelta(0))
    called = Counter[str]()

    @handler(kind, encoding=pack)
    async def work(message: Message, ctx: Context) -> Again:
        called[message.id] += 1
        return Again(after=HOUR, tolerance=timedelta(0))

    async with serve(work, lanes=("short",), sandbox=False):
        starter = BulkStarter(client, settings, encodings={kind: pack})
        for part in range(6):
            ids = [f"m{part}-{n}" for n in range(100)]
            envelopes = ((None, Envelope(kind=kind, id=i, lane="short")) for i in ids)
            outcomes = Counter([receipt.outcome async for receipt in starter.start_all(envelopes)])
            assert outcomes == {StartOutcome.STARTED: 100}

        control = Control(client, settings)
        await wait_until(lambda: len(called) == 600, "all have been called")

        async def has_grown() -> bool:
            again = {receipt.outcome async for receipt in starter.start_all((None, e) for e in _known(kind))}
            assert again == {StartOutcome.ALREADY_RUNNING}
            layout = await Layouts(client, settings).find(kind)
            return layout is not None and layout.packs > 16

        async def are_found() -> bool:  # not those that are on their way from one pack to another
            return await control.count(Selection(kind=kind)) == 600

        await wait_until(has_grown, "the kind has enough packs")
        await wait_until(are_found, "all are found")

    assert set(called.values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("chunk_bytes", [CHUNK_BYTES_MAX, 1_000_000])
async def test_a_full_pack_takes_the_rest_once_its_kind_has_grown(  # noqa: PLR0917 — fixtures and the row of a table
    client: Client,
    settings: Settings,
    serve: Serve,
    message_id: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    chunk_bytes: int,
) -> None:
    """2 MB that can't be compressed come to one pack, which stores 400 KB: the sender waits until there are more.

    So it does where the chunk that begins the pack is too large for it.
    """
    monkeypatch.setattr(chunks, "CHUNK_BYTES_MAX", chunk_bytes)
    kind = f"kind-{message_id()}"
    pack = Pack(packs=1)
    work = make_sleeper(kind, pack)

    draw = random.Random(7)
    large = (
        (None, Envelope(kind=kind, id=f"m{n}", lane="short", payload={"noise": draw.randbytes(1500).hex()}))
        for n in range(700)
    )
    async with serve(work, lanes=("short",), sandbox=False):
        starter = BulkStarter(client, settings, encodings={kind: pack})
        outcomes = Counter([receipt.outcome async for receipt in starter.start_all(large)])
        control = Control(client, settings)

        async def are_counted() -> bool:
            return await control.count(Selection(kind=kind)) == 700

        await wait_until(are_counted, "none is on its way to another pack any more", 60)

    assert outcomes == {StartOutcome.STARTED: 700}


async def test_who_ends_the_keeper_of_the_number_of_packs_loses_no_pack(
    client: Client, settings: Settings, serve: Serve, message_id: Callable[[], str]
) -> None:
    """A person terminates it by mistake: the next start finds the packs that there are, and starts nothing twice."""
    kind = f"kind-{message_id()}"
    pack = Pack(packs=1)
    work = make_sleeper(kind, pack)

    async with serve(work, lanes=("short",), sandbox=False):
        starter = BulkStarter(client, settings, encodings={kind: pack})
        async for _ in starter.start_all((None, e) for e in _known(kind)):
            pass
        layouts = Layouts(client, settings)
        layout = await layouts.find(kind)
        assert layout is not None
        await layouts.grow(layout, 6)
        await client.get_workflow_handle(layout_workflow_id(kind)).terminate("by a person in the Web UI")

        later = BulkStarter(client, settings, encodings={kind: pack})
        again = [receipt.outcome async for receipt in later.start_all((None, e) for e in _known(kind))]

    assert set(again) == {StartOutcome.ALREADY_RUNNING}


def _known(kind: str) -> list[Envelope]:
    return [Envelope(kind=kind, id=f"m{part}-{n}", lane="short") for part in range(3) for n in range(100)]
