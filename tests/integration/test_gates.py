"""Gates: what asked to be left alone is left alone by all messages that need it, and none of them is forgotten."""

import asyncio
import time
from datetime import timedelta

import pytest
from temporalio.client import Client

from activities import Again, Context, Done, Message, RetryAfter, handler
from activities.api.handler import Handler
from shared.errors import InvalidSetting
from shared.keepers.gates import GATES_MEMO, GATES_WORKFLOW, GateClosure, gates_workflow_id
from shared.lanes import task_queue
from shared.messages.envelope import Envelope
from shared.settings import Settings
from shared.temporal.connect import describe_queue
from starter.starting.bulk import BulkStarter
from starter.starting.queries import is_polled
from starter.starting.receipts import StartOutcome
from starter.steering.keepers import GateControl
from starter.steering.message_view import to_document
from tests.conftest import Begin, Serve, serving, wait_until
from tests.support.subjects import Subject, declare

pytestmark = pytest.mark.timeout(150)  # workers begin and end in it, and gates stay closed for a while

CLOSED = timedelta(seconds=10)
HOUR = timedelta(hours=1)
HOST = "host:example.org"


class Site:
    """Something that answers at most one message, which it asks to leave it alone; `calls` holds all that came."""

    def __init__(self, kind: str, closed: timedelta = CLOSED) -> None:
        self.kind = kind
        self.closed = closed
        self.calls: list[tuple[float, str]] = []
        self.opens_at = 0.0

    def handler(self, lane: str = "short", kind: str = "") -> Handler:
        """Make a handler whose messages pass the site's gate; those called "elsewhere" need none."""
        gate = handler(kind or self.kind, lane=lane, gate=lambda message: None if "elsewhere" in message.id else HOST)
        return gate(self.visit)

    async def visit(self, message: Message, ctx: Context) -> Again | Done:  # noqa: ARG002 — the shape of every handler
        """Answer one message."""
        self.calls.append((time.time(), message.id))
        if "elsewhere" not in message.id and not self.opens_at:
            self.opens_at = time.time() + self.closed.total_seconds()
            raise RetryAfter(self.closed, "asked to wait", gate=HOST)
        return Done()


@pytest.fixture
def gates(client: Client, settings: Settings) -> GateControl:
    """What a person steers gates with."""
    return GateControl(client, settings)


@pytest.fixture
def starter(client: Client, settings: Settings, encoding: str, kind: str) -> BulkStarter:
    """What starts many messages of the test's kind."""
    return BulkStarter(client, settings, encodings=declare(encoding, kind))


@pytest.mark.parametrize(("many", "closed_for"), [(50, CLOSED), pytest.param(200, 3 * CLOSED, marks=pytest.mark.long)])
async def test_messages_wait_at_a_closed_gate_without_a_call_and_all_run_when_it_opens(
    starter: BulkStarter, serve: Serve, kind: str, begin: Begin, gates: GateControl, *, many: int, closed_for: timedelta
) -> None:
    """Those behind a gate that is closed for a while cost it no call; others don't wait with them."""
    site = Site(kind, closed_for)
    async with serve(site.handler(), lanes=("short",)):
        first = await begin(kind)
        await wait_until(lambda: site.opens_at, "somebody was asked to wait")
        waiting = [f"{first.id}-{n}" for n in range(many)]
        stream = ((name, Envelope(kind=kind, id=name, lane="short")) for name in (*waiting, f"{first.id}-elsewhere"))
        async for receipt in starter.start_all(stream):
            assert receipt.outcome is StartOutcome.STARTED, receipt
        closed = (await gates.fetch(time.time()))[HOST]
        expected = {first.id, *waiting, f"{first.id}-elsewhere"}
        await wait_until(lambda: {name for _, name in site.calls[1:]} == expected, "all have run", 100)

    assert closed.opens_at == pytest.approx(site.opens_at, abs=1)
    assert closed.reason == "asked to wait"
    early = {name for at, name in site.calls[1:] if at < site.opens_at - 0.1}
    assert early == {f"{first.id}-elsewhere"}


async def test_a_gate_closed_by_one_worker_is_closed_for_every_worker_and_every_kind(
    serve: Serve, kind: str, gates: GateControl, begin: Begin, encoding: str
) -> None:
    """A message of another kind on another lane waits too, without an attempt, and says what it waits for."""
    site = Site(kind, timedelta(hours=1))
    other = f"{kind}-other"
    async with serve(site.handler(), lanes=("short",)), serve(site.handler("medium", other), lanes=("medium",)):
        await begin(kind)
        await wait_until(lambda: _is_closed(gates), "the gate is closed")
        neighbour = await begin(other, lane="medium")
        await wait_until(lambda: _is_gated(neighbour), "it waits at the gate")
        decision = (await neighbour.explain())[-1]
        status = await neighbour.status()

    assert decision["reason"].startswith(f"gate {HOST} is closed for another 59 min")
    assert (status["version"], status["attempt"], status["state"]) == (0, 0, "active")
    assert status["due_at_epoch"] - time.time() < 90, "it looks again in a minute, for a person may open it"
    assert [name for _, name in site.calls if name == neighbour.id] == []


@pytest.mark.long
async def test_a_closed_kind_or_tenant_holds_its_messages_and_no_others(
    serve: Serve, starter: BulkStarter, kind: str, gates: GateControl, begin: Begin
) -> None:
    """No handler declares a gate; newcomers wait too and say why, and all of them run when it is time."""
    site = Site(kind)
    other = f"{kind}-other"
    site.opens_at = 1
    tenant = f"{kind}-noisy"
    async with serve(handler(kind)(site.visit), handler(other)(site.visit), lanes=("short",)):
        await gates.close(f"tenant:{tenant}", GateClosure.lasting(HOUR, "too loud"))
        await gates.close(f"kind:{kind}", GateClosure.lasting(CLOSED, "wrong prices"))
        await wait_until(lambda: _are_closed(gates, 2), "both are closed")
        opens_at = (await gates.fetch(time.time()))[f"kind:{kind}"].opens_at
        held = await begin(kind)
        names = [held.id, *(f"{held.id}-{n}" for n in range(20))]
        stream = ((name, Envelope(kind=kind, id=name, lane="short")) for name in names[1:])
        assert {receipt.outcome async for receipt in starter.start_all(stream)} == {StartOutcome.STARTED}
        loud = await begin(other, tenant=tenant)
        quiet = await begin(other, tenant=f"{kind}-quiet")
        await wait_until(lambda: _is_gated(held), "one of the kind waits")
        await wait_until(lambda: _is_gated(loud), "one of the tenant waits")
        shown = to_document(await held.control.show(kind, held.id))
        await wait_until(lambda: {name for _, name in site.calls} == {*names, quiet.id}, "all others have run", 60)

    assert shown["why"].endswith(": wrong prices"), "it says so without a look at the gates"
    assert f"; gate kind:{kind} is closed for another" in shown["why"]
    assert {name for at, name in site.calls if at < opens_at} == {quiet.id}
    assert loud.id not in {name for _, name in site.calls}


@pytest.mark.parametrize(
    ("gate", "problem"),
    [
        ("lane:fast", "'lane:fast' names no lane; use one of lane:short, lane:medium, lane:long"),
        ("kind:Price", "'kind:Price' names no kind; write it as 'dormice handlers' prints it"),
        ("tenant:", "'tenant:' names no tenant; give 1 to 64 bytes"),
    ],
)
async def test_a_gate_that_can_hold_nobody_is_refused(gates: GateControl, gate: str, problem: str) -> None:
    """A slip of the pen would look like a closed gate."""
    with pytest.raises(InvalidSetting, match=f"^gate: {problem}"):
        await gates.close(gate, GateClosure.lasting(CLOSED))
    assert await gates.fetch(time.time()) == {}


async def test_what_a_person_says_about_a_gate_outlives_all_workers(
    serve: Serve, kind: str, gates: GateControl, begin: Begin
) -> None:
    """Closed before there is a worker, it holds what the first one finds; opened, everything passes at once."""
    site = Site(kind)
    site.opens_at = 1  # nobody is asked to wait
    await gates.close(HOST, GateClosure.lasting(timedelta(hours=2), "maintenance"))
    assert await _is_closed(gates)
    waiting = await begin(kind)
    async with serve(site.handler(), lanes=("short",)):
        await wait_until(lambda: _is_gated(waiting), "it waits at the gate")
    async with serve(site.handler(), lanes=("short",)):
        await gates.open(HOST)
        await wait_until(lambda: _is_open(gates), "it is open")
        assert site.calls == []
        await asyncio.sleep(1.5)  # workers go by what they read within the last second
        passing = await begin(kind)
        await wait_until(lambda: site.calls, "one that comes now passes")

    assert [name for _, name in site.calls] == [passing.id]


async def test_gates_are_kept_by_a_lane_that_has_workers(
    client: Client, settings: Settings, serve: Serve, gates: GateControl
) -> None:
    """A person who closes the first one can open it again, also where nobody works on lane short."""
    queue = task_queue(settings.task_queue_prefix, "medium")

    async def is_served() -> bool:
        return is_polled(await describe_queue(client, queue))

    async with serve(lanes=("medium",)):
        await wait_until(is_served, "the server knows of the lane's workers")
        lacking = [await gates.close(HOST, GateClosure.lasting(HOUR)), await gates.open(HOST)]
        await wait_until(lambda: _is_open(gates), "it is open")

    assert lacking == ["", ""]


@pytest.mark.parametrize("encoding", ["solo"])
async def test_a_gate_that_is_closed_for_a_crowd_does_not_wait_behind_it(
    client: Client, settings: Settings, serve: Serve, gates: GateControl, begin: Begin
) -> None:
    """A person closes it because more is due than can run; nor does one whose workflow older code has started."""
    name = gates_workflow_id(settings.task_queue_prefix)
    queue = task_queue(settings.task_queue_prefix, "short")
    await client.start_workflow(GATES_WORKFLOW, {}, id=name, task_queue=queue)
    gates_workflow = client.get_workflow_handle(name)

    async def is_served() -> bool:
        return GATES_MEMO in await (await gates_workflow.describe()).memo()

    async with serve(lanes=("short",)):
        await wait_until(is_served, "a worker has taken in the gates' workflow")
    site = Site("crowd")
    site.opens_at = 1  # nobody is asked to wait

    async def visit(message: Message, ctx: Context) -> Again | Done:
        await asyncio.sleep(0.3)
        return await site.visit(message, ctx)

    crowd = [await begin("crowd") for _ in range(60)]
    await gates.close("kind:crowd", GateClosure.lasting(HOUR))
    async with serving(client, settings, handler("crowd")(visit), lanes=("short",), slots=2, calls=2):
        await wait_until(lambda: _is_gated(crowd[-1]), "the last one waits at the gate")

    assert len(site.calls) <= len(crowd) / 2, "the others wait at the gate"


async def _is_closed(gates: GateControl) -> bool:
    return HOST in await gates.fetch(time.time())


async def _are_closed(gates: GateControl, count: int) -> bool:
    return len(await gates.fetch(time.time())) == count


async def _is_open(gates: GateControl) -> bool:
    return not await _is_closed(gates)


async def _is_gated(message: Subject) -> bool:
    return (await message.explain())[-1]["what"] == "gated"
