"""Repacking: a kind gets more packs while its messages run, are started and steered, and nothing is lost or doubled."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from temporalio.client import Client

from activities import Again, Context, Message, Pack, handler
from shared.errors import GiveUp, MessageNotFound, PackNotServed
from shared.messages.envelope import Envelope
from shared.messages.placement import pack_index, pack_workflow_id
from shared.settings import Settings
from starter.control import Control
from starter.starting.bulk import BulkStarter
from starter.starting.layouts import Layouts
from starter.starting.receipts import StartOutcome
from starter.steering.repack import repack
from starter.steering.selection import Selection
from tests.conftest import Serve, wait_until

MESSAGES = 300
PACK = Pack(packs=3, coalesce=timedelta(0))


@dataclass
class Kind:
    """A packed kind of the test's own whose messages come back every second; `versions` is what was called."""

    name: str
    client: Client
    settings: Settings
    versions: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def starter(self, pack: Pack = PACK) -> BulkStarter:
        """Make a starter that has yet to learn how the kind is packed."""
        return BulkStarter(self.client, self.settings, encodings={self.name: pack})

    async def start(self, starter: BulkStarter, *ids: str) -> list[StartOutcome]:
        """Start messages."""
        envelopes = ((None, Envelope(kind=self.name, id=i, lane="short", payload={"n": 1})) for i in ids)
        return [receipt.outcome async for receipt in starter.start_all(envelopes)]

    async def repack(self, packs: int) -> int:
        """Spread the kind."""
        return await repack(self.client, self.settings, self.name, packs)

    def find_gaps(self) -> dict[str, list[int]]:
        """Give messages whose versions were called out of order, twice, or not at all in between."""
        return {i: seen for i, seen in self.versions.items() if seen != list(range(len(seen)))}


@pytest.fixture
async def kind(client: Client, settings: Settings, serve: Serve, message_id: Callable[[], str]) -> AsyncIterator[Kind]:
    """A kind with 300 messages in three packs, at work."""
    kind = Kind(f"kind-{message_id()}", client, settings)

    @handler(kind.name, encoding=PACK)
    async def tick(message: Message, ctx: Context) -> Again:
        kind.versions[message.id].append(message.version)
        return Again(after=timedelta(seconds=1), tolerance=timedelta(0))

    async with serve(tick, lanes=("short",), sandbox=False):
        outcomes = await kind.start(kind.starter(), *(f"m{n}" for n in range(MESSAGES)))
        assert outcomes.count(StartOutcome.STARTED) == MESSAGES
        await wait_until(lambda: len(kind.versions) == MESSAGES, "all have been called")
        yield kind


async def test_messages_keep_their_rhythm_while_their_kind_gets_more_packs(kind: Kind) -> None:
    """Each goes on with its next version, in whichever pack it is; whoever comes next reads the new number."""
    assert await kind.repack(8) == 3
    layout = await Layouts(kind.client, kind.settings).find(kind.name)
    before = {i: len(seen) for i, seen in kind.versions.items()}
    await wait_until(lambda: all(len(kind.versions[i]) > n + 1 for i, n in before.items()), "all go on")

    assert kind.find_gaps() == {}
    assert await Control(kind.client, kind.settings).count(Selection(kind=kind.name)) == MESSAGES
    assert layout is not None
    assert layout.packs == 8


async def test_an_interrupted_repacking_is_given_again(kind: Kind) -> None:
    """Cut off in the middle it has lost nothing; the second time it waits for the rest."""
    interrupted = asyncio.create_task(kind.repack(6))
    await asyncio.sleep(0.02)  # some packs have been told by then, or none: any moment will do
    interrupted.cancel()
    await asyncio.gather(interrupted, return_exceptions=True)
    await kind.repack(6)
    before = {i: len(seen) for i, seen in kind.versions.items()}
    await wait_until(lambda: all(len(kind.versions[i]) > n for i, n in before.items()), "all go on")

    assert kind.find_gaps() == {}
    assert len(kind.versions) == MESSAGES


async def test_whoever_believes_the_old_number_reaches_every_message(kind: Kind) -> None:
    """A starter and a control that learned the layout before: nothing is started twice, all is found and steered."""
    starter = kind.starter()
    control = Control(kind.client, kind.settings)
    await kind.start(starter, "first")
    await control.show(kind.name, "first")
    await kind.repack(8)
    late = [f"late{n}" for n in range(20)]
    again = await kind.start(starter, *late, *(f"m{n}" for n in range(20)))

    assert (again.count(StartOutcome.STARTED), again.count(StartOutcome.ALREADY_RUNNING)) == (20, 20)
    for name in ("m1", "m2", "m3", "late1", "late2"):
        await control.pause(kind.name, name)
        assert (await control.show(kind.name, name)).listed.state == "paused"
    assert await kind.start(kind.starter(), *late) == [StartOutcome.ALREADY_RUNNING] * 20
    assert kind.find_gaps() == {}


async def test_the_messages_of_a_terminated_pack_are_no_longer_alive(kind: Kind) -> None:
    """They are counted at once without it, and shown as not found: what its history last knew of them is over."""
    control = Control(kind.client, kind.settings)
    kept = {name for name in kind.versions if pack_index(name, PACK.packs) != 1}
    lost = next(name for name in kind.versions if name not in kept)
    await kind.client.get_workflow_handle(pack_workflow_id(kind.name, 1)).terminate("by a person in the Web UI")

    assert await control.count(Selection(kind=kind.name)) == len(kept)
    with pytest.raises(MessageNotFound):
        await control.show(kind.name, lost)


async def test_what_cannot_be_done_is_refused_in_a_sentence(kind: Kind) -> None:
    """Fewer packs, and a kind that is not packed."""
    with pytest.raises(GiveUp, match=r"--packs: is 2, kind .* has 3; give a larger number"):
        await kind.repack(2)
    with pytest.raises(GiveUp, match="kind 'nobody' is not packed"):
        await repack(kind.client, kind.settings, "nobody", 5)


async def test_without_a_worker_it_says_so_within_seconds(
    client: Client, settings: Settings, message_id: Callable[[], str]
) -> None:
    """Only packs can send their messages on, and nobody runs them."""
    kind = Kind(f"kind-{message_id()}", client, settings)
    await kind.start(kind.starter(), "a", "b")

    with pytest.raises(PackNotServed, match="no worker of lane short serves kind"):
        await kind.repack(4)
