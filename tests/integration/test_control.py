"""Control: every verb reaches its message, and lists, counts and shows report what is there."""

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio.client import Client

from activities import Again, Context, Done, Message, Reject, handler
from activities.api.handler import Handler
from activities.registry import Registry
from shared.errors import (
    GiveUp,
    InvalidEnvelope,
    MessageAlive,
    MessageNotFound,
    PackNotServed,
    ServerUnreachable,
)
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.signals import Pause, Revise, RunNow, Stop
from shared.settings import Settings
from starter.control import Control
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from starter.steering.selection import Selection
from starter.steering.sender import SignalCounts
from starter.steering.status.listing import ListedMessage
from tests.conftest import Begin, Serve, Start, wait_until
from tests.support.subjects import PACK, Subject, declare, names

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


@pytest.fixture
def sleeper(kind: str) -> Handler:
    """A handler that comes back in an hour, is done at once, or rejects, as the payload says."""

    @handler(kind)
    async def sleep(message: Message, ctx: Context) -> Again | Done | Reject:
        if message.payload == "done":
            return Done("well done")
        return Reject(message.payload["reject"]) if message.payload else Again(after=timedelta(hours=1), reason="slept")

    return sleep


@pytest.fixture
async def served(control: Control, serve: Serve, sleeper: Handler) -> AsyncIterator[Control]:
    """The verbs, while a worker serves: a pack knows its messages, but answers only by a worker."""
    async with serve(sleeper):
        yield control


def registry_of(handler: Handler, encoding: str, pack: Pack = PACK) -> Registry:
    """Give the handlers of a process that starts messages of one kind."""
    packs = declare(encoding, handler.kind, pack)
    return Registry([("the test", dataclasses.replace(handler, encoding=packs.get(handler.kind)))])


async def is_counted(control: Control, selection: Selection, expected: int) -> bool:
    """Say whether the index has caught up."""
    return await control.count(selection) == expected


async def status_of(control: Control, kind: str, message_id: str) -> dict[str, Any]:
    """Ask a message."""
    view = await control.show(kind, message_id)
    assert view.status is not None, view.note
    return view.status


async def test_every_verb_changes_its_message(
    control: Control, serve: Serve, begin: Begin, sleeper: Handler, kind: str
) -> None:
    """One message goes through all verbs; each shows at once, and is remembered with its reason."""
    async with serve(sleeper):
        await begin(kind, "a", scheduled_at=LATER)
        ask = functools.partial(status_of, control, kind, "a")

        await control.reschedule(kind, "a", LATER + timedelta(hours=1), "not yet")
        assert (await ask())["due_at_epoch"] == (LATER + timedelta(hours=1)).timestamp()
        await control.reprioritize(kind, "a", 1, LATER)
        assert ((await ask())["priority"], (await ask())["due_at_epoch"]) == (1, LATER.timestamp())
        await control.revise(kind, "a", None, lane="medium", reason="bigger")
        assert ((await ask())["lane"], (await ask())["revision"]) == ("medium", 1)
        await control.pause(kind, "a", "holidays")
        assert (await ask())["state"] == "paused"
        await control.resume(kind, "a")
        await control.run_now(kind, "a", "at last")
        await wait_until(lambda: _has_version(control, kind, "a", 1), "it has run")
        reasons = [d["reason"] for d in (await control.show(kind, "a")).decisions]
        await control.stop(kind, "a")
        await wait_until(lambda: _is_over(control, kind, "a"), "it has ended")

    assert reasons == ["bigger", "holidays", "", "at last", "slept"]


async def _has_version(control: Control, kind: str, message_id: str, version: int) -> bool:
    return (await status_of(control, kind, message_id))["version"] == version


async def _is_over(control: Control, kind: str, message_id: str) -> bool:
    return (await control.look_up(kind, message_id)).state in ("done", "stopped")


VERBS: list[tuple[str, tuple[Any, ...]]] = [
    ("run_now", ()),
    ("reschedule", (LATER,)),
    ("reprioritize", (1,)),
    ("revise", ({},)),
    ("pause", ()),
    ("resume", ()),
    ("stop", ()),
    ("pull_forward", (LATER,)),
    ("show", ()),
    ("look_up", ()),
]


@pytest.mark.parametrize(("verb", "arguments"), VERBS)
async def test_a_message_that_is_not_there_is_named(
    served: Control, begin: Begin, kind: str, verb: str, arguments: tuple[Any, ...]
) -> None:
    """No verb reports success for a message that did not get it, even if another one of its pack did."""
    neighbour = await begin(kind, scheduled_at=LATER)
    for name in ("nobody", *neighbour.neighbours(1)):
        with pytest.raises(
            MessageNotFound, match=f"no message {kind}:{name} is (alive|known); 'dormice list' shows those"
        ):
            await getattr(served, verb)(kind, name, *arguments)


@pytest.mark.parametrize("verb", ["reschedule", "pull_forward"])
async def test_a_moment_without_a_zone_is_refused(control: Control, verb: str) -> None:
    """It would mean another moment on another machine."""
    naive = datetime.fromisoformat("2026-11-21T20:00:00")

    with pytest.raises(GiveUp, match="due_at: 2026-11-21T20:00:00 has no time zone; add one, for example UTC"):
        await getattr(control, verb)("any", "id", naive)


async def test_a_list_tells_what_is_there(served: Control, begin: Begin, kind: str) -> None:
    """Kind, id, lane, state and due time of each, narrowed by every field of the selection."""
    await begin(kind, "a:b", lane="short", scheduled_at=LATER)
    await begin(kind, "c", lane="medium", scheduled_at=LATER + timedelta(days=1))
    everything = Selection(kind=kind)
    await wait_until(lambda: is_counted(served, everything, 2), "both are indexed")

    listed = {found.id: found async for found in served.list(everything)}
    early = [found.id async for found in served.list(Selection(kind=kind, due_before=LATER + timedelta(hours=1)))]
    medium = [found.id async for found in served.list(Selection(kind=kind, lane="medium"))]

    assert listed["a:b"] == ListedMessage(
        kind=kind,
        id="a:b",
        lane="short",
        state="active",
        due_at=LATER,
        earliest_at=LATER,
        started_at=listed["a:b"].started_at,
    )
    assert (early, medium) == (["a:b"], ["c"])
    assert len([found async for found in served.list(everything, limit=1)]) == 1


async def test_a_parked_message_is_listed_with_its_reason(served: Control, begin: Begin, kind: str) -> None:
    """Reason and moment are in the list itself: nobody asks a thousand messages one by one."""
    parked = Selection(kind=kind, state="parked")
    before = datetime.now(UTC) - timedelta(seconds=1)
    await begin(kind, "a", payload={"reject": "no colour"})
    await begin(kind, "b")
    await wait_until(lambda: is_counted(served, parked, 1), "it is parked")

    (found,) = [found async for found in served.list(parked)]

    assert (found.id, found.state, found.parked_reason) == ("a", "parked", "no colour")
    assert found.parked_at is not None
    assert before < found.parked_at < datetime.now(UTC)


async def test_a_signal_goes_to_all_of_a_selection_that_are_kept(served: Control, begin: Begin, kind: str) -> None:
    """The selection is made by the index, the rest by the caller; the others are left alone."""
    for number in range(10):
        await begin(kind, str(number), scheduled_at=LATER)
    await wait_until(lambda: is_counted(served, Selection(kind=kind), 10), "all are indexed")

    counts = SignalCounts()
    await served.send_to_each(served.names(Selection(kind=kind), lambda listed: int(listed.id) >= 7), Pause(), counts)
    await wait_until(lambda: is_counted(served, Selection(kind=kind, state="paused"), 3), "three are paused")

    paused = {found.id async for found in served.list(Selection(kind=kind, state="paused"))}
    assert (counts.sent, counts.waiting, counts.missing, paused) == (3, 0, 0, {"7", "8", "9"})


async def test_names_that_are_nobodys_are_counted_and_told(served: Control, begin: Begin, kind: str) -> None:
    """One wrong name among many stops nothing."""
    await begin(kind, "a", scheduled_at=LATER)
    told: list[str] = []
    counts = SignalCounts(report=told.append)

    await served.send_to_each(names((kind, "a"), (kind, "nobody"), (kind, "a")), RunNow(), counts)

    assert (counts.sent, counts.missing) == (2, 1)
    assert told == [f"no message {kind}:nobody is alive; 'dormice list' shows those that are"]


async def test_a_message_that_has_ended_takes_no_signal_but_is_shown(served: Control, begin: Begin, kind: str) -> None:
    """Done and stopped messages show how they ended, and are what the index says they are."""
    await (await begin(kind, "done", payload="done")).wait_ended()
    stopped = await begin(kind, "stopped", scheduled_at=LATER)
    await served.stop(kind, "stopped", "enough")
    await stopped.wait_ended()
    views = [await served.show(kind, name) for name in ("done", "stopped")]
    why = [each.status and each.status["why"] for each in views]
    with pytest.raises(MessageNotFound):
        await served.send(kind, "done", Revise({}))

    assert [each.listed.state for each in views] == ["done", "stopped"]
    assert [each.ended for each in views] == [
        {"state": "done", "version": 1, "result": "well done"},
        {"state": "stopped", "version": 0, "result": None},
    ]
    assert why == ["done since done", "stopped since stop (enough)"]
    assert [(each.decisions[-1]["what"], each.decisions[-1]["reason"]) for each in views] == [
        ("done", ""),
        ("stop", "enough"),
    ]
    await wait_until(lambda: is_counted(served, Selection(kind=kind, state="stopped"), 1), "it is counted as stopped")


async def test_a_message_is_shown_once_it_rests(served: Control, begin: Begin, kind: str) -> None:
    """Whoever waits learns that it has ended or is parked, and after the time given what it is then."""
    await begin(kind, "a")
    await begin(kind, "b", payload={"reject": "it is bad"})
    waiting = asyncio.ensure_future(served.show(kind, "a", wait=timedelta(seconds=40)))

    parked = await served.show(kind, "b", wait=timedelta(seconds=40))
    asleep = await served.show(kind, "a", wait=timedelta(milliseconds=300))
    assert not waiting.done()
    await served.stop(kind, "a")
    stopped = await waiting

    assert [view.listed.state for view in (parked, asleep, stopped)] == ["parked", "active", "stopped"]
    assert parked.listed.parked_reason == "it is bad"


async def test_a_message_that_has_ended_is_shown_without_a_worker(
    control: Control, serve: Serve, start: Start, sleeper: Handler, kind: str
) -> None:
    """What it ended with is the server's own knowledge, if it had a workflow of its own."""
    async with serve(sleeper, lanes=("short",)):
        await (await start(kind, "a", payload="done")).result()

    alone = await control.show(kind, "a")

    assert (alone.listed.state, alone.status) == ("done", None)
    assert alone.ended == {"state": "done", "version": 1, "result": "well done"}


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["pack"])
async def test_without_a_worker_nobody_tells_of_what_is_packed_but_signals_are_kept(
    control: Control, serve: Serve, begin: Begin, sleeper: Handler, kind: str
) -> None:
    """The sentence says which worker to start; the signal that was sent meanwhile takes effect then."""
    message = await begin(kind, "a", scheduled_at=LATER)

    for asking in (control.show(kind, "a"), control.count(Selection(kind=kind)), control.pause(kind, "a")):
        with pytest.raises(PackNotServed, match=r"no worker of lane short serves pack .*: dormice worker --lane short"):
            await asking
    async with serve(sleeper):
        await wait_until(lambda: message.has(state="paused"), "it is paused")


@pytest.mark.parametrize("encoding", ["pack"])
async def test_a_pack_stays_on_the_task_queue_where_its_kind_began(
    client: Client, settings: Settings, begin: Begin, kind: str
) -> None:
    """The error under another prefix names the prefix to start workers with."""
    await begin(kind, "a", scheduled_at=LATER)
    elsewhere = Control(client, dataclasses.replace(settings, task_queue_prefix="elsewhere"))

    with pytest.raises(PackNotServed) as told:
        await elsewhere.show(kind, "a")

    assert str(told.value).endswith(f"dormice worker --lane short --set task_queue_prefix={settings.task_queue_prefix}")


async def test_without_a_worker_the_server_tells_what_it_knows(control: Control, start: Start, kind: str) -> None:
    """Lane, state, due time and priority are the server's own knowledge; the note says why there is no more."""
    await start(kind, "a", lane="long", priority=2, scheduled_at=LATER)

    view = await control.show(kind, "a")

    assert (view.listed.lane, view.listed.state, view.listed.due_at) == ("long", "active", LATER)
    assert (view.status, view.ended, view.decisions, view.priority) == (None, None, [], 2)
    assert view.note == "no worker of lane long could tell more within 5 s"


async def test_a_message_that_was_terminated_is_not_shown_as_active(control: Control, start: Start, kind: str) -> None:
    """Its search attributes are frozen at what it was before; the server knows better."""
    message = await start(kind, "a", scheduled_at=LATER)
    await message.terminate("by a person in the Web UI")

    assert (await control.look_up(kind, "a")).state == "terminated"


async def test_starting_anew_replaces_a_finished_message_but_never_one_that_is_alive(
    served: Control, client: Client, settings: Settings, *, sleeper: Handler, kind: str, encoding: str
) -> None:
    """`start` is the verb of a person: it means what it says."""
    control = Control(client, settings, registry_of(sleeper, encoding))
    envelope = Envelope(kind=kind, id="a", lane="short", payload="done")
    first = await control.start(envelope)
    await Subject(client, control, encoding, kind, "a").wait_ended()
    second = await control.start(envelope.model_copy(update={"payload": None}))
    with pytest.raises(MessageAlive, match=f"{kind}:a is alive already, nothing was started") as refused:
        await control.start(envelope)

    assert [receipt.outcome.value for receipt in (first, second)] == ["started", "started"]
    assert second.run_id == refused.value.run_id
    assert (await served.show(kind, "a")).listed.state == "active"


WRONG_WISHES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "alien"}, r"kind: no handler for 'alien' is loaded; loaded: kind-\S+"),
    ({"id": ""}, "id: is empty; give 1 to 200 bytes"),
    ({"payload": "x" * 4095}, "payload: is 4097 bytes of JSON, the limit is 4096; keep bulk data elsewhere"),
    ({"scheduled_at": datetime.fromisoformat("2026-11-21T20:00:00")}, "scheduled_at: is 2026-11-21T20:00:00, which"),
]


@pytest.mark.parametrize(("fields", "sentence"), WRONG_WISHES)
async def test_a_start_of_what_no_message_may_be_raises(
    client: Client, settings: Settings, sleeper: Handler, kind: str, *, fields: dict[str, Any], sentence: str
) -> None:
    """The sentence of the command line, not a receipt that somebody has to read; and nothing is started."""
    control = Control(client, settings, registry_of(sleeper, "solo"))

    with pytest.raises(InvalidEnvelope, match=sentence):
        await control.start({"kind": kind, "id": "a", **fields})
    with pytest.raises(MessageNotFound):
        await control.look_up(kind, "a")


async def test_a_start_that_a_pack_can_not_answer_raises(
    client: Client, settings: Settings, serve: Serve, sleeper: Handler, kind: str
) -> None:
    """It says in one sentence what to do; the message waits for a worker, and is there once one has come."""
    pack = Pack(packs=1, size=2, coalesce=timedelta(0))
    control = Control(client, settings, registry_of(sleeper, "pack", pack))
    await control.start({"kind": kind, "id": "a", "scheduled_at": LATER})

    with pytest.raises(PackNotServed, match=f"{kind}:b has not been started yet: no worker serves its pack"):
        await control.start({"kind": kind, "id": "b", "scheduled_at": LATER})
    async with serve(sleeper, lanes=("short",)):
        await wait_until(lambda: is_counted(control, Selection(kind=kind), 2), "the pack has taken it in")


async def test_a_verb_says_what_keeps_its_message_from_running(served: Control, begin: Begin, kind: str) -> None:
    """Paused and parked messages take the signal; that it has no effect yet is in what the verb gives."""
    name = f"{kind}:a"
    message = await begin(kind, "a", scheduled_at=LATER)
    await served.pause(kind, "a")
    await wait_until(lambda: message.has(state="paused"), "it is paused")

    assert (
        await served.run_now(kind, "a") == f"{name} is paused and runs once 'dormice resume {name}' has ended the pause"
    )
    due_time_kept = (
        f"{name} is paused and keeps the new due time; it runs once 'dormice resume {name}' has ended the pause"
    )
    assert await served.reschedule(kind, "a", LATER) == due_time_kept
    assert await served.reprioritize(kind, "a", 2, LATER) == due_time_kept
    assert (await served.reprioritize(kind, "a", 1), await served.resume(kind, "a")) == ("", "")
    assert await served.revise(kind, "a", {"reject": "no colour"}) == ""
    await served.run_now(kind, "a")
    await wait_until(lambda: message.has(state="parked"), "it is parked")
    assert (
        await served.resume(kind, "a")
        == f"{name} is parked, which 'resume' does not end; 'dormice now {name}' runs it again"
    )
    assert (
        await served.revise(kind, "a", None)
        == f"{name} is parked and keeps the new payload; 'dormice now {name}' runs it again"
    )


async def test_of_messages_that_are_named_those_are_reported_that_do_not_run(
    served: Control, begin: Begin, kind: str
) -> None:
    """Once each, also where one signal reaches many messages of a pack."""
    message = await begin(kind, "a", scheduled_at=LATER)
    others = message.neighbours(2) or ["b", "c"]
    for name in others:
        await begin(kind, name, scheduled_at=LATER)
    await served.pause(kind, others[0])
    told: list[str] = []
    await wait_until(lambda: _is_paused(served, kind, others[0]), "it is paused")

    pairs = [(kind, name) for name in ("a", *others)]
    await served.send_to_each(names(*pairs), RunNow(), counts := SignalCounts(report=told.append), are_named=True)

    assert (counts.sent, counts.waiting, counts.missing) == (3, 0, 0)
    assert [sentence.split()[0] for sentence in told] == [f"{kind}:{others[0]}"]


async def _is_paused(control: Control, kind: str, message_id: str) -> bool:
    return (await control.look_up(kind, message_id)).state == "paused"


async def test_a_due_time_that_has_passed_in_the_index_is_no_due_time(
    client: Client, settings: Settings, control: Control, kind: str
) -> None:
    """Short delays are not indexed: where a message was due long ago, it is due soon."""
    starter = BulkStarter(client, dataclasses.replace(settings, index_after=timedelta(0)))
    soon = datetime.now(UTC) + timedelta(seconds=2)
    await starter.start(Envelope(kind=kind, id="a", lane="short", scheduled_at=soon), None)
    indexed = (await control.look_up(kind, "a")).due_at

    async def is_due_soon() -> bool:
        return (await control.look_up(kind, "a")).is_due_soon

    await wait_until(is_due_soon, "its indexed due time is past")
    assert indexed is not None
    assert abs(indexed - soon) < timedelta(seconds=1)


@pytest.mark.long
async def test_a_server_that_is_away_is_waited_for_by_bulk_and_told_by_single_verbs(
    tmp_path: Path, settings: Settings, encoding: str
) -> None:
    """Fifty signals ride out a killed server; one verb says within seconds that nobody answers."""
    options = EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None, slim=False)
    counts = SignalCounts()
    async with run_embedded(options) as server:
        control = Control(await server.connect(), dataclasses.replace(settings, patience=timedelta(minutes=1)))
        starter = BulkStarter(await server.connect(), settings, encodings=declare(encoding, "echo"))
        envelopes = [Envelope(kind="echo", id=str(n), lane="short", scheduled_at=LATER) for n in range(50)]
        started = [r.outcome async for r in starter.start_all((None, envelope) for envelope in envelopes)]
        _kill(server)
        await server.wait()
        pairs = [("echo", str(number)) for number in range(50)]
        sending = asyncio.create_task(control.send_to_each(names(*pairs), Stop(), counts))
        with pytest.raises(ServerUnreachable, match="the server did not answer"):
            await control.stop("echo", "0")
        await server.start()
        await sending

    assert started == [StartOutcome.STARTED] * 50
    assert (counts.sent, counts.missing) == (50, 0)


def _kill(server: EmbeddedServer) -> None:
    assert server.process_id is not None
    for child in psutil.Process(server.process_id).children():
        child.kill()


async def test_a_workflow_of_another_application_is_no_message(client: Client, settings: Settings, kind: str) -> None:
    """Whatever its name: it would answer in its own way."""
    foreign = await client.start_workflow("Foreign", id=f"{kind}:a", task_queue="nowhere")

    with pytest.raises(MessageNotFound):
        await Control(client, settings).show(kind, "a")
    await foreign.terminate()
