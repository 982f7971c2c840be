"""The tutorial of holding back: messages that wait together, and calls that begin one after the other."""

import asyncio
import contextlib
import time

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from activities import Context, Done, Message, handler
from activities.api.limit import Limit
from shared.keepers.gates import GateClosure
from shared.settings import Settings
from starter.steering.keepers import GateControl
from tests.conftest import Serve, Start, wait_until


async def test_messages_of_a_closed_kind_wait_until_it_is_opened(
    serve: Serve, start: Start, client: Client, settings: Settings
) -> None:
    """The gate `kind:NAME` is there for every kind; what waits at it is called once it opens, and not before."""
    called: list[str] = []

    @handler("guarded")
    async def work(message: Message, ctx: Context) -> Done:
        called.append(message.id)
        return Done()

    gates = GateControl(client, settings)
    now = time.time()
    await gates.close("kind:guarded", GateClosure(now, now + 3600, "the shop is closed"))
    message = await start("guarded")

    async def is_waiting() -> bool:
        return "the shop is closed" in (await message.query("status"))["why"]

    async def has_ended() -> bool:
        # a worker looks at the gates at most once a second
        await message.signal("run_now", {})
        return (await message.describe()).status is not WorkflowExecutionStatus.RUNNING

    async with serve(work, lanes=("short",)):
        await wait_until(is_waiting, "it says that it waits at the gate")
        called_before = list(called)
        await gates.open("kind:guarded")
        with contextlib.suppress(RPCError):  # it may end before the last signal comes
            await wait_until(has_ended, "it passes the open gate")
        ended = await message.result()

    assert ended["state"] == "done"
    assert called_before == []
    assert len(called) == 1


async def test_calls_of_one_customer_begin_one_after_the_other(serve: Serve, start: Start) -> None:
    """`Limit(key, at_once=1)` lets one of a key's calls work at a time; calls of other keys do not wait for it."""
    at_work: dict[str, int] = {"ada": 0, "bob": 0}
    maximum: dict[str, int] = {"ada": 0, "bob": 0}

    @handler("polite", limit=Limit(key=lambda message: message.payload, at_once=1))
    async def work(message: Message, ctx: Context) -> Done:
        customer = message.payload
        at_work[customer] += 1
        maximum[customer] = max(maximum[customer], at_work[customer])
        await asyncio.sleep(0.05)
        at_work[customer] -= 1
        return Done()

    async with serve(work, lanes=("short",)):
        messages = [await start("polite", payload=customer) for customer in ("ada", "ada", "ada", "bob")]
        states = [(await message.result())["state"] for message in messages]

    assert states == ["done"] * 4
    assert maximum == {"ada": 1, "bob": 1}
