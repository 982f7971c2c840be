"""Neighbours in a pack: what one message does is nobody else's trouble, and a pack says no in a sentence."""

import asyncio
import dataclasses
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from activities import Again, Context, Message, handler
from shared.errors import Misconfigured, PackNotServed, RetryLater
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import pack_index, pack_workflow_id
from shared.messages.signals import Pause, Revise
from shared.settings import Settings
from starter.control import Control
from starter.starting import queries
from starter.starting.bulk import BulkStarter
from starter.starting.layouts import Layouts
from starter.starting.receipts import Receipt, StartOutcome
from starter.steering.sender import SignalCounts, group_names
from tests.conftest import Serve, wait_until
from tests.support.subjects import names

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

WINDOW = timedelta(seconds=1)
TIMEOUT = timedelta(seconds=2)
SLACK = timedelta(seconds=8)  # what a busy machine adds; a message that waits for a neighbour's lane would need 35 s
NONSENSE: list[dict[str, Any]] = [
    {},
    {"ids": "m0"},
    {"ids": [1], "payload": 1},
    {"ids": ["m0"], "mood": 1},
    {"ids": ["m0"], "payload": "\ud800"},
]
FAR = datetime.now(UTC) + timedelta(days=1)


async def start_all(
    client: Client, settings: Settings, kind: str, pack: Pack | None, payloads: dict[str, Any], **fields: Any
) -> dict[str, Receipt[str]]:
    """Start messages of a kind, packed or not; gives their receipts by id."""
    starter = BulkStarter(client, settings, encodings={} if pack is None else {kind: pack})
    envelopes = [(i, Envelope(kind=kind, id=i, lane="short", payload=p, **fields)) for i, p in payloads.items()]
    return {receipt.tag: receipt async for receipt in starter.start_all(envelopes)}


def get_pack(client: Client, kind: str, index: int = 0) -> WorkflowHandle[Any, Any]:
    """Give the workflow of a pack."""
    return client.get_workflow_handle(pack_workflow_id(kind, index))


async def has(control: Control, kind: str, message_id: str, **expected: Any) -> bool:
    """Tell whether a message's status, or what it ended with, shows the expected values."""
    view = await control.show(kind, message_id)
    found = view.status or view.ended or {}
    return all(found[name] == value for name, value in expected.items())


async def test_neighbours_of_misbehaving_messages_keep_their_rhythm(
    client: Client, settings: Settings, serve: Serve, control: Control, kind: str
) -> None:
    """Of 200 one hangs, one raises, one grows, one is paused and one stopped: 195 skip no version, come never early,
    and late by no more than the window and a neighbour's timeout.
    """
    pack = Pack(packs=1, size=200, coalesce=timedelta(minutes=5))
    calls: defaultdict[str, list[tuple[int, datetime, datetime]]] = defaultdict(list)

    @handler(kind, max_attempts=3, timeout=TIMEOUT, backoff=timedelta(milliseconds=100), encoding=pack)
    async def behave(message: Message, ctx: Context) -> Again:
        calls[message.id].append((message.version, ctx.due_at, datetime.now(UTC)))
        if message.id == "hangs":
            await asyncio.Event().wait()
        if message.id == "raises":
            raise RuntimeError("on purpose")
        payload = "x" * 3000 if message.id == "grows" else message.payload
        return Again(after=timedelta(seconds=1), tolerance=WINDOW, payload=payload)

    quiet = [f"m{n}" for n in range(195)]
    names = ["hangs", "raises", "grows", "paused", "stopped", *quiet]
    async with serve(behave, lanes=("short",)):
        await start_all(client, settings, kind, pack, dict.fromkeys(names))
        await control.pause(kind, "paused")
        await control.stop(kind, "stopped")
        await wait_until(lambda: all(len(calls[name]) >= 5 for name in (*quiet, "grows")), "five cycles of each")
        for name, state in (("hangs", "parked"), ("raises", "parked"), ("paused", "paused"), ("stopped", "stopped")):
            await wait_until(lambda: has(control, kind, name, state=state), f"{name} is {state}")  # noqa: B023 — awaited here
        assert await has(control, kind, "grows", payload="x" * 3000)
        assert "no outcome within 2 s" in (await control.show(kind, "hangs")).listed.parked_reason

    assert [name for name in quiet if not is_steady(calls[name])] == []
    assert (len(calls["hangs"]), len(calls["raises"])) == (3, 3)


def is_steady(calls: Iterable[tuple[int, datetime, datetime]]) -> bool:
    """Tell whether a message was called for every version, never early, and not late beyond reason."""
    versions = sorted({version for version, _, _ in calls})
    return versions == list(range(len(versions))) and all(
        timedelta(0) <= called_at - due_at <= WINDOW + TIMEOUT + SLACK for _, due_at, called_at in calls
    )


@pytest.mark.long
async def test_a_thousand_signals_at_one_busy_pack_are_all_applied_in_order(
    client: Client, settings: Settings, serve: Serve, control: Control, kind: str
) -> None:
    """Through control and straight from the SDK, during batches and around continue-as-new, while somebody asks."""
    pack = Pack(packs=1, size=50, coalesce=timedelta(0))

    @handler(kind, encoding=pack)
    async def busy(message: Message, ctx: Context) -> Again:
        await asyncio.sleep(0.05)
        return Again(after=timedelta(seconds=1), tolerance=timedelta(0))

    names = [f"m{n}" for n in range(25)]  # this number of cycles is enough for another run
    async with serve(busy, lanes=("short",), sandbox=False):  # a sandbox for every run is slow
        receipts = await start_all(client, settings, kind, pack, dict.fromkeys(names))
        asking = asyncio.create_task(_ask_for_ever(get_pack(client, kind)))
        try:
            await asyncio.gather(*(_revise(client, control, kind, name, 100) for name in names[:10]))
            for name in names[:10]:
                # an older offset would have been ignored, so 100 revisions and the last payload prove the order
                await wait_until(lambda: has(control, kind, name, revision=100, payload=99), name)  # noqa: B023 — awaited here
            assert (await get_pack(client, kind).describe()).run_id != receipts["m0"].run_id
            assert not asking.done()
        finally:
            asking.cancel()
        overview = await get_pack(client, kind).query("overview", result_type=dict[str, Any])

    assert overview["asleep"] + overview["running"] == len(names)


async def _revise(client: Client, control: Control, kind: str, name: str, times: int) -> None:
    for offset in range(times):
        signal = Revise(offset, source="topic/0", offset=offset)
        if offset % 10 == 0:  # each waits for the pack's own answer
            await control.send(kind, name, signal)
        else:
            await get_pack(client, kind).signal("revise", {"ids": [name], **dataclasses.asdict(signal)})


async def _ask_for_ever(pack: WorkflowHandle[Any, Any]) -> None:
    while True:
        try:
            await pack.query("overview")
        except RPCError as exc:
            if exc.status is not RPCStatusCode.RESOURCE_EXHAUSTED:  # too many ask already, on a slow machine
                raise
        await asyncio.sleep(0.02)


async def test_a_signal_that_makes_no_sense_stops_no_pack(
    client: Client, settings: Settings, serve: Serve, control: Control, kind: str
) -> None:
    """Whatever somebody types into a form: the pack answers, and the next signal counts."""
    pack = Pack(packs=1, size=50)

    @handler(kind, encoding=pack)
    async def idle(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(hours=1))

    async with serve(idle, lanes=("short",)):
        await start_all(client, settings, kind, pack, {"m0": 0})
        for wire in NONSENSE:
            await get_pack(client, kind).signal("revise", wire)
        await control.revise(kind, "m0", 2)

        assert await has(control, kind, "m0", payload=2, revision=1)


async def test_a_kind_with_messages_of_their_own_workflows_is_not_packed(
    client: Client, settings: Settings, kind: str
) -> None:
    """They would be there twice: the start is refused, and says what to do."""
    await start_all(client, settings, kind, None, {"solo": None}, scheduled_at=FAR)
    await wait_until(lambda: _count(client, kind), "the message is indexed")
    with pytest.raises(Misconfigured) as refused:
        await start_all(client, settings, kind, Pack(), {"packed": None})

    assert str(refused.value) == (
        f"kind {kind!r} has 1 messages with a workflow each; stop them before it is packed, or leave encoding=Pack(…) "
        "away from its handler"
    )
    await client.get_workflow_handle(f"{kind}:solo").terminate()


async def _count(client: Client, kind: str) -> int:
    return (await client.count_workflows(f"Kind = '{kind}' AND ExecutionStatus = 'Running'")).count


async def test_a_handler_that_declares_more_packs_gets_them(
    client: Client, settings: Settings, serve: Serve, kind: str
) -> None:
    """The number is kept with the kind: fewer in the code mean nothing, for more the kind grows."""

    @handler(kind, encoding=Pack(packs=2))
    async def idle(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(hours=1))

    async def has_three() -> bool:
        layout = await Layouts(client, settings).find(kind)
        return layout is not None and layout.packs == 3

    await start_all(client, settings, kind, Pack(packs=2), {"a": None})
    async with serve(idle, lanes=("short",)):
        fewer = await start_all(client, settings, kind, Pack(packs=1, size=5), {"b": None})
        more = await start_all(client, settings, kind, Pack(packs=3), {"a": None, "c": None})
        await wait_until(has_three, "the kind has three packs")

    assert fewer["b"].outcome is StartOutcome.STARTED
    assert more["a"].outcome is StartOutcome.ALREADY_RUNNING
    assert more["c"].outcome is StartOutcome.STARTED


async def test_a_pack_that_no_worker_serves_says_so_and_keeps_what_it_is_told(
    client: Client, settings: Settings, serve: Serve, control: Control, kind: str
) -> None:
    """Showing ends within seconds with a sentence; a signal waits for the worker that comes."""
    pack = Pack(packs=1)
    await start_all(client, settings, kind, pack, {"a": None}, scheduled_at=FAR)
    sentence = f"no worker of lane short serves pack {kind}~0, and only the pack knows its messages"
    async with asyncio.timeout(20):
        with pytest.raises(PackNotServed, match=sentence):
            await control.show(kind, "a")
        with pytest.raises(PackNotServed, match=sentence):
            await control.pause(kind, "a")

    async with serve(lanes=("short",)):
        await wait_until(lambda: has(control, kind, "a", state="paused"), "the signal is applied")


@pytest.mark.long
async def test_repeated_starts_do_not_fill_the_history_of_a_pack_without_a_worker(
    client: Client, settings: Settings, serve: Serve, *, control: Control, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server ends a workflow whose history is too large, and its messages with it: whoever repeats stops before that.

    Programs that begin anew stop too, and signals. Once a worker is back, the next repetition gets its answers.
    """
    monkeypatch.setattr(queries, "ROOM_BYTES", room := 400_000)
    layouts = {kind: Pack(packs=1, size=200)}
    starters = [BulkStarter(client, settings, encodings=layouts) for _ in range(4)]
    fields: dict[str, Any] = {"kind": kind, "lane": "short", "scheduled_at": FAR}
    # chance can't be compressed, beyond the letters that it is written in
    envelopes = [Envelope(id=f"m{n}", payload=secrets.token_urlsafe(1500), **fields) for n in range(150)]

    async def repeat(starter: BulkStarter) -> Counter[tuple[StartOutcome, bool]]:
        receipts = [receipt async for receipt in starter.start_all((e.id, e) for e in envelopes)]
        return Counter((receipt.outcome, "nothing is added until it does" in receipt.reason) for receipt in receipts)

    async def are_known() -> bool:
        return await repeat(starters[0]) == {(StartOutcome.ALREADY_RUNNING, False): len(envelopes)}

    said = [await repeat(starter) for starter in [*starters, starters[0]]]  # of more than 0.2 MB each
    with pytest.raises(RetryLater, match="nothing is added until it does"):
        await control.pause(kind, "m0")
    impatient = Control(client, dataclasses.replace(settings, patience=timedelta(0)))
    named = names((kind, "m0"), (kind, "m1"), (f"{kind}-other", "nobody"))
    await impatient.send_to_each(named, Pause(), counts := SignalCounts())
    assert (counts.sent, counts.unsent, counts.missing) == (0, 2, 1), "it ends no bulk"
    described = await get_pack(client, kind).describe()
    assert said[2:] == [{(StartOutcome.FAILED, True): len(envelopes)}] * 3
    assert described.status is WorkflowExecutionStatus.RUNNING
    assert described.raw_description.workflow_execution_info.history_size_bytes < 2 * room

    async with serve(lanes=("short",)):
        await wait_until(are_known, "the pack answers")


async def test_names_are_grouped_by_the_pack_they_live_in(client: Client, settings: Settings, kind: str) -> None:
    """Each pack is reached once, with all its names; a message with a workflow of its own goes by itself."""
    packed = [f"m{n}" for n in range(30)]
    await start_all(client, settings, kind, Pack(packs=3), dict.fromkeys(packed), scheduled_at=FAR)
    named = [(kind, name) for name in packed]

    stream = names(*named[:9], ("alone", "a"), *named[9:], ("alone", "b"))
    groups = [group async for group in group_names(stream, Layouts(client, settings))]

    assert [group.ids for group in groups if group.layout is None] == [["a"], ["b"]]
    together = {group.index: group.ids for group in groups if group.layout is not None}
    assert together == {index: [name for name in packed if pack_index(name, 3) == index] for index in range(3)}
