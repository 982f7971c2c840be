"""A pack that has filled its run sleeps on in it, continues as new when it wakes, and stores its state compressed."""

import asyncio
import base64
import random
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle
from temporalio.common import TypedSearchAttributes

from activities import Again, Context, Message, handler
from activities.api.handler import Handler
from examples.ledger import Ledger, audit
from shared.lanes import task_queue
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.message import MessageState
from shared.messages.placement import PACK_WORKFLOW, PackSpread, pack_workflow_id
from shared.packs.entry import measure, to_entry, to_heading
from shared.settings import Settings
from shared.temporal.compression import ZLIB
from shared.temporal.search_attributes import pack_attributes_at_start
from starter.control import Control
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import Serve, wait_until
from tests.support.ledger_tail import Tail
from tests.support.processes import worker_process
from workflows.options import CONTINUE_AS_NEW_MIN, HISTORY_BYTES_MAX

MESSAGES = CONTINUE_AS_NEW_MIN + 5
"""So many cycles in one batch fill a run."""
PACK = Pack(packs=1, size=1000, coalesce=timedelta(0))
PAD = "x" * 100
BATCH = "ACTIVITY_TASK_COMPLETED"


def coming_back(kind: str) -> Handler:
    """A handler whose messages come back together, every two seconds."""

    @handler(kind, encoding=PACK)
    async def act(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(seconds=2), tolerance=timedelta(0))

    return act


async def start(client: Client, settings: Settings, kind: str, number: int = MESSAGES) -> WorkflowHandle[Any, Any]:
    """Start the messages of one pack; gives its workflow."""
    starter = BulkStarter(client, settings, encodings={kind: PACK})
    envelopes = [Envelope(kind=kind, id=f"m{n}", lane="short", payload=PAD) for n in range(number)]
    async for receipt in starter.start_all((None, e) for e in envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt
    return client.get_workflow_handle(pack_workflow_id(kind, 0))


async def find_runs(client: Client, pack: WorkflowHandle[Any, Any], minimum: int) -> list[str]:
    """Wait until a pack has had some runs; gives their ids, the newest last."""
    run_ids: list[str] = []

    async def has_runs() -> bool:
        if (run_id := (await pack.describe()).run_id) not in run_ids:
            run_ids.append(run_id)
        return len(run_ids) >= minimum

    await wait_until(has_runs, f"{minimum} runs of {pack.id}")
    return run_ids


async def count_events(client: Client, pack_id: str, run_id: str | None = None) -> Counter[str]:
    """Count the events of a run, of the newest one if none is named, by type."""
    events = (await client.get_workflow_handle(pack_id, run_id=run_id).fetch_history()).events
    return Counter(EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in events)


async def test_a_full_run_ends_when_the_pack_wakes(client: Client, settings: Settings, serve: Serve, kind: str) -> None:
    """Its last task begins with a timer and only continues as new: while the pack slept, there was one state."""
    async with serve(coming_back(kind)):
        pack = await start(client, settings, kind)
        _, second, *_ = await find_runs(client, pack, 3)
        events = (await client.get_workflow_handle(pack.id, run_id=second).fetch_history()).events
    kinds = [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in events]
    count = Counter(kinds)
    (payload,) = events[0].workflow_execution_started_event_attributes.input.payloads

    assert kinds[-5:] == [
        "TIMER_FIRED",
        "WORKFLOW_TASK_SCHEDULED",
        "WORKFLOW_TASK_STARTED",
        "WORKFLOW_TASK_COMPLETED",
        "WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
    ]
    assert (count[BATCH], count["TIMER_STARTED"], count["TIMER_FIRED"]) == (1, 1, 1)
    assert payload.metadata["encoding"] == ZLIB, "its state is stored compressed"


@pytest.mark.long
async def test_a_pack_has_as_many_cycles_in_a_run_as_the_setting_says(
    client: Client, settings: Settings, serve: Serve, kind: str
) -> None:
    """With two for each message, its run takes a third batch in; so it does when the next worker replays it."""
    async with serve(coming_back(kind), pack_cycles_per_run=2.0):
        pack = await start(client, settings, kind)
        await find_runs(client, pack, 2)

        async def has_had_two() -> bool:
            return (await count_events(client, pack.id))[BATCH] >= 2

        await wait_until(has_had_two, "two batches in a run")
    async with serve(coming_back(kind), pack_cycles_per_run=2.0):
        begun, later, *_ = await find_runs(client, pack, 3)
    replayed = await count_events(client, pack.id, begun)
    whole = await count_events(client, pack.id, later)

    assert (replayed["WORKFLOW_TASK_FAILED"], replayed["WORKFLOW_EXECUTION_CONTINUED_AS_NEW"]) == (0, 1)
    assert (whole[BATCH], whole["WORKFLOW_EXECUTION_CONTINUED_AS_NEW"]) == (3, 1)


@pytest.mark.long
async def test_first_runs_differ_so_that_packs_filled_together_do_not_go_on_anew_together(
    client: Client, settings: Settings, serve: Serve, kind: str
) -> None:
    """A pack's place in the spread says how much of a run its first one is; those after it are whole."""
    named = [f"{kind}-{n}" for n in range(100)]
    shares = {name: PackSpread.of(name, 0, 0).share for name in named}
    early = min(named, key=shares.__getitem__)
    late = max(named, key=shares.__getitem__)
    batches: dict[str, list[int]] = {}
    async with serve(coming_back(early), coming_back(late), pack_cycles_per_run=2.0):
        packs = [await start(client, settings, name) for name in (early, late)]
        runs = await asyncio.gather(*(find_runs(client, pack, 3) for pack in packs))
        for name, pack, (first, second, *_) in zip((early, late), packs, runs, strict=True):
            seen = [await count_events(client, pack.id, run_id) for run_id in (first, second)]
            batches[name] = [events[BATCH] for events in seen]

    assert batches == {early: [1, 3], late: [2, 3]}


async def test_signals_that_meet_the_end_of_a_full_run_count(
    client: Client, settings: Settings, serve: Serve, control: Control, kind: str
) -> None:
    """While a pack continues as new every two seconds, each of a stream of signals takes effect, and none twice."""
    async with serve(coming_back(kind)):
        pack = await start(client, settings, kind)
        revisions = 0
        until = time.monotonic() + 8
        while time.monotonic() < until:
            revisions += 1
            await control.revise(kind, "m3", {"revision": revisions})
        await find_runs(client, pack, 2)
        status = await pack.query("status", "m3", result_type=dict[str, Any])
        overview: dict[str, Any] = await pack.query("overview")

    assert status["revision"] == revisions
    assert overview["asleep"] + overview["running"] == MESSAGES


async def test_a_pack_whose_state_is_a_long_history_by_itself_still_runs_its_messages(
    client: Client, settings: Settings, serve: Serve, kind: str
) -> None:
    """It would else continue as new at once in each of its runs, for ever, and call nobody."""
    called: list[str] = []

    @handler(kind, encoding=PACK)
    async def act(message: Message, ctx: Context) -> Again:
        called.append(message.id)
        return Again(after=timedelta(days=1))

    chance = random.Random(7)
    payloads = [base64.b85encode(chance.randbytes(3200)).decode() for _ in range(330)]
    now = time.time()
    states = [MessageState(kind, f"m{n}", "short", now + 3600 * n, now, payload=p) for n, p in enumerate(payloads)]
    entries = [to_entry(state, "short") for state in states]
    heading = to_heading(kind, "short", index=0, packs=1, size=1000, coalesce=0.0)

    async with serve(act, lanes=("short",)):
        pack = await client.start_workflow(
            PACK_WORKFLOW,
            heading | {"entries": entries, "bytes": sum(map(measure, entries))},
            id=pack_workflow_id(kind, 0),
            task_queue=task_queue(settings.task_queue_prefix, "short"),
            search_attributes=TypedSearchAttributes(pack_attributes_at_start(kind, "short")),
        )
        await wait_until(lambda: bool(called), "its due message runs")
        history = await client.get_workflow_handle(pack.id, run_id=pack.result_run_id).fetch_history()

    assert history.events[0].ByteSize() > HISTORY_BYTES_MAX
    assert called == ["m0"]


KILLS = 4
PACKS = 20
CYCLES = 8


@pytest.mark.long
@pytest.mark.timeout(240)  # its messages need CYCLES seconds, and each kill costs the server a task's timeout
async def test_kills_while_packs_continue_at_their_wakes_lose_nothing(
    server: EmbeddedServer, client: Client, settings: Settings, ledger: Ledger
) -> None:
    """Every pack continues as new each second while its workers are killed: all versions run, in order, none early."""
    expected = await _start_many(client, settings)
    done = Tail(ledger, "done")
    chance = random.Random(3)
    for _ in range(KILLS):
        async with worker_process(server, settings) as worker:
            before = Tail(ledger, "again")
            begun = before.count()
            await wait_until(lambda before=before, begun=begun: before.count() > begun, "the worker works")
            await asyncio.sleep(chance.uniform(0.0, 1.5))  # the moment of the kill is what is drawn here
            worker.kill()
    async with worker_process(server, settings):
        await wait_until(lambda: done.count() >= len(expected), "all are done", seconds=150)
    proof = audit(ledger.entries, expected=expected, now=time.time(), grace=0)
    last = {e.id: e.version for e in ledger.entries if e.what == "done"}

    assert (proof.messages, proof.lost, proof.early, proof.gaps) == (len(expected), 0, 0, 0)
    assert last == dict.fromkeys(expected, CYCLES - 1)


async def _start_many(client: Client, settings: Settings) -> Mapping[str, float]:
    """Start messages of many packs, each enough to fill a run in one batch; gives when each is due first."""
    pack = Pack(packs=PACKS, coalesce=timedelta(0))
    starter = BulkStarter(client, settings, encodings={"ledger": pack})
    now = time.time()
    payload = {"delay": 1, "cycles": CYCLES}

    envelopes = [
        Envelope(kind="ledger", id=f"{settings.task_queue_prefix}-{n}", lane="short", payload=payload)
        for n in range(PACKS * MESSAGES)
    ]
    async for receipt in starter.start_all((None, e) for e in envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt

    return {e.id: now for e in envelopes}
