"""`--wait`: a command that ends when its message has, and whose exit code says how."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from activities import Again, Context, Done, Message, Reject, handler
from starter.control import Control
from tests.acceptance.conftest import Run, Spawn
from tests.conftest import Begin, Serve

pytestmark = pytest.mark.timeout(120)

KIND = "telling"
"""A kind that the program knows; who handles it is this test's own business."""


async def obey(message: Message, ctx: Context) -> Again | Done | Reject:
    """Be done, be rejected, or come back in an hour, as the payload says."""
    if message.payload == "done":
        return Done({"told": message.id})
    return Reject(message.payload["reject"]) if message.payload else Again(after=timedelta(hours=1))


@pytest.fixture
async def worker(serve: Serve) -> AsyncIterator[None]:
    """A worker that obeys."""
    async with serve(handler(KIND)(obey), lanes=("short",)):
        yield


@pytest.fixture
def name(message_id: Callable[[], str]) -> str:
    """An id that no other test uses."""
    return message_id()


@pytest.mark.usefixtures("worker")
async def test_a_start_that_waits_prints_what_its_message_came_to(run: Run, message_id: Callable[[], str]) -> None:
    """Done is 0 and brings the result; parked is 4, not in time is 5, both with a sentence that says what to do."""
    done = message_id()
    parked = message_id()
    late = message_id()

    first = await run("start", KIND, done, "--payload", '"done"', "--wait")
    second = await run("start", KIND, parked, "--payload", '{"reject": "no such feed"}', "--wait=90s")
    third = await run("start", KIND, late, "--wait", "1s")

    assert (first.code, first.err) == (0, "")
    assert first.out == f'{KIND}:{done}  started  due now\n{KIND}:{done}  done  {{"told": "{done}"}}\n'
    assert (second.code, second.out) == (4, f"{KIND}:{parked}  started  due now\n{KIND}:{parked}  parked\n")
    remedy = f"mend the cause, then 'dormice parked replay {KIND}:{parked}'"
    assert second.err == f"dormice: {KIND}:{parked} is parked (no such feed); {remedy}\n"
    assert (third.code, third.out.splitlines()[-1]) == (5, f"{KIND}:{late}  active")
    assert third.err.startswith(f"dormice: {KIND}:{late} is still active after 1.0 s and goes on; 'dormice show")


@pytest.mark.usefixtures("worker")
async def test_with_json_a_start_that_waits_prints_one_document(run: Run, name: str) -> None:
    """The receipt, and what became of the message; one that is alive already is not waited for."""
    done = await run("start", KIND, name, "--payload", '"done"', "--json", "--wait")
    again = await run("start", KIND, name, "--json")
    alive = await run("start", KIND, name, "--json", "--wait")

    found = {key: done.document[key] for key in ("outcome", "state", "version", "result")}
    assert (done.code, found) == (0, {"outcome": "started", "state": "done", "version": 1, "result": {"told": name}})
    assert set(again.document) == {"workflow_id", "outcome", "is_due_now", "run_id", "reason"}
    assert (alive.code, alive.document["outcome"]) == (1, "already running")


@pytest.mark.usefixtures("worker")
async def test_an_upsert_that_waits_takes_no_older_state_for_the_end(run: Run, name: str) -> None:
    """The message was parked before; what counts is what comes after the change."""
    parked = await run("upsert", KIND, name, "--payload", '{"reject": "not yet"}', "--wait")

    done = await run("upsert", KIND, name, "--payload", '"done"', "--wait")

    assert (parked.code, parked.out.splitlines()[-1]) == (4, f"{KIND}:{name}  parked")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{KIND}:{name}  revised  due now\n{KIND}:{name}  done  ")


async def test_show_waits_for_the_end(run: Run, serve: Serve, begin: Begin, kind: str, control: Control) -> None:
    """Solo or packed; all that are named share the time, and the worst of them is the exit code."""
    async with serve(handler(kind)(obey), lanes=("short",)):
        finished = await begin(kind, payload="done")
        stopped = await begin(kind)
        asleep = await begin(kind)
        names = (f"{kind}:{finished.id}", f"{kind}:{stopped.id}")
        waiting = asyncio.ensure_future(run("show", *names, "--wait", "--json"))
        await control.stop(kind, stopped.id, "not needed")
        ended = await waiting
        late = await run("show", f"{kind}:{asleep.id}", f"{kind}:{finished.id}", "--wait", "1s")

    assert (ended.code, [line["state"] for line in ended.lines]) == (4, ["done", "stopped"])
    assert ended.err == (
        f"dormice: {kind}:{stopped.id} was stopped; 'dormice show {kind}:{stopped.id}' tells why, "
        "and it may be started anew\n"
    )
    assert late.code == 5
    assert f"{kind}:{asleep.id} is still active after 1.0 s and goes on" in late.err


async def test_ctrl_c_ends_the_waiting_and_not_the_message(spawn: Spawn, control: Control, name: str) -> None:
    """It says so; a worker that comes later runs the message."""
    process = await spawn("start", KIND, name, "--wait")
    assert process.stdout is not None
    started = await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()

    sentence = f"no longer waiting: {KIND}:{name} goes on; 'dormice show {KIND}:{name} --wait' waits again"
    assert (process.returncode, err.decode()) == (130, f"{sentence}\ninterrupted\n")
    assert (started.decode(), out) == (f"{KIND}:{name}  started  due now\n", b"")
    assert (await control.look_up(KIND, name)).state == "active"


async def test_a_time_to_wait_that_is_none_is_refused(run: Run) -> None:
    """Nothing is started."""
    ran = await run("start", "echo", "a", "--wait=soon")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("dormice: Invalid value for '--wait': is 'soon', no duration; write for example 90s")
