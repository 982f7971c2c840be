"""What is read from the history of a pack's run is what the pack itself passes on to its next run."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from activities import Again, Context, Done, Message, Reject, handler
from activities.api.handler import Handler
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import PACK_WORKFLOW
from shared.messages.signals import RunNow
from shared.settings import Settings
from starter.control import Control
from starter.starting.bulk import BulkStarter
from starter.steering.sender import SignalCounts
from starter.steering.stored.stored_pack import StoredPack, read_run
from tests.conftest import Serve
from tests.support.claims import check_claims
from tests.support.subjects import names
from workflows.packs.state import PackState

PACK = Pack(packs=3, size=200, coalesce=timedelta(0))
MESSAGES = 120
ROUNDS = 12


async def test_what_a_run_is_read_as_is_what_the_next_run_gets(
    client: Client, settings: Settings, serve: Serve, kind: str
) -> None:
    """Whatever batches a run had: messages with new payloads, and such that end, are parked or fail."""
    starter = BulkStarter(client, settings, encodings={kind: PACK})
    async with serve(working(kind), lanes=("short",)):
        await start(starter, kind, range(MESSAGES))
        await asyncio.sleep(ROUNDS / 2)  # a dozen runs of each pack; more only make the test stronger
        runs = await fetch_runs(client, kind)

    claims = [await compare(client, run) for run in runs]
    assert {"ids", "none"} <= {*claims}, "a run that has had a batch is never read as current"


async def test_a_run_with_signals_is_read_as_no_more_than_is_known(
    client: Client, settings: Settings, serve: Serve, kind: str, control: Control
) -> None:
    """New messages and signals come while batches run: what the history can't tell, it is not read to tell."""
    starter = BulkStarter(client, settings, encodings={kind: PACK})
    async with serve(working(kind), lanes=("short",)):
        await start(starter, kind, range(MESSAGES))
        for number in range(ROUNDS):
            first = MESSAGES + 10 * number
            await start(starter, kind, range(first, first + 10))
            if number > ROUNDS / 2:
                some = ((kind, f"m{n}") for n in range(number, MESSAGES, 40))
                await control.send_to_each(names(*some), RunNow(), SignalCounts())
            await asyncio.sleep(0.3)
        runs = await fetch_runs(client, kind)

    claims = [await compare(client, run) for run in runs]
    assert {"ids", "none"} <= {*claims}


def working(kind: str) -> Handler:
    """Make a handler whose messages come back within two seconds, and some of which end, are parked or fail."""

    @handler(kind, encoding=PACK)
    async def work(message: Message, ctx: Context) -> Again | Done | Reject:
        await asyncio.sleep(0.005)
        turn = (int(message.id[1:]) + 7 * message.version) % 60
        if turn == 1:
            return Done(result=message.version)
        if turn == 2:
            return Reject("no longer wanted")
        if turn == 3:
            raise ValueError("it fails")
        after = timedelta(seconds=0.2 + turn / 40)
        return Again(after=after, payload=message.version) if turn % 4 == 0 else Again(after=after)

    return work


async def start(starter: BulkStarter, kind: str, numbers: range) -> None:
    """Start messages that are due at once."""
    requests = [(None, Envelope(kind=kind, id=f"m{n}", lane="short")) for n in numbers]
    _ = [receipt async for receipt in starter.start_all(requests)]


async def fetch_runs(client: Client, kind: str) -> list[Sequence[HistoryEvent]]:
    """Fetch the histories of all runs of a kind's packs that have continued as new."""
    query = f"WorkflowType = '{PACK_WORKFLOW}' AND Kind = '{kind}' AND ExecutionStatus = 'ContinuedAsNew'"
    found: list[Sequence[HistoryEvent]] = []
    async for execution in client.list_workflows(query):
        handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
        found.append((await handle.fetch_history()).events)
    return found


async def compare(client: Client, events: Sequence[HistoryEvent]) -> str:
    """Compare what a run is read as, without its end, with what it has passed on; tell what was claimed."""
    *before, last = events
    assert last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
    passed_on = last.workflow_execution_continued_as_new_event_attributes.input.payloads
    (wire,) = await client.data_converter.decode(list(passed_on))
    after = StoredPack(state=PackState(wire))
    read = await read_run(before, client.data_converter)
    check_claims(read, after)
    return "current" if read.is_current else "ids" if read.knows_ids else "none"
