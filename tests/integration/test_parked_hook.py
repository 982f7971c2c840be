"""The hook on_parked: somebody hears of every parked message, and no hook keeps one from being parked."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities import Again, Context, Done, Message, Reject, handler
from activities.admission.gates import Gates
from activities.admission.limits import Limits
from activities.calls.dispatch import Dispatch
from activities.http.client import HttpClient
from activities.registry import Registry
from shared.messages.message import HandlerCall
from shared.settings import Settings
from shared.telemetry.sdk import Telemetry
from tests.conftest import Begin, Serve, wait_until

SOON = timedelta(milliseconds=10)


class Ear:
    """What hears of parked messages: `heard` are their ids, attempts and reasons."""

    def __init__(self, then: Callable[[], Awaitable[object]] | None = None) -> None:
        self.heard: list[tuple[str, int, str]] = []
        self._then = then

    async def hear(self, message: Message, ctx: Context, reason: str) -> None:
        """Note one, then do what the test wants."""
        self.heard.append((message.id, ctx.attempt, reason))
        if self._then is not None:
            await self._then()


async def fail(message: Message, ctx: Context) -> Again | Done | Reject:
    """Reject, fail, or be done, as the payload says."""
    if message.payload == "reject":
        return Reject("unfit")
    if message.payload == "fail":
        raise ValueError(ctx.attempt)
    return Done()


async def test_a_message_that_is_parked_is_told_of_once_and_another_is_not(
    serve: Serve, kind: str, begin: Begin
) -> None:
    """With the reason that people read; failed attempts before the last one are nobody's business."""
    ear = Ear()
    made = handler(kind, max_attempts=2, backoff=SOON, backoff_max=SOON, on_parked=ear.hear)(fail)
    async with serve(made, lanes=("short",)):
        rejected, failed, done = [await begin(kind, payload=payload) for payload in ("reject", "fail", "")]
        for message in (rejected, failed):
            await wait_until(lambda message=message: message.has(state="parked"), "it is parked")
        reasons = [(await message.status())["parked_reason"] for message in (rejected, failed)]
        await done.wait_ended()

    assert sorted(ear.heard) == sorted([(rejected.id, 1, "unfit"), (failed.id, 2, "ValueError: 2")])
    assert reasons == ["unfit", "attempt 2 of 2: ValueError: 2"]


async def leave() -> None:
    """Do what ends a program elsewhere."""
    raise SystemExit


async def cancel() -> None:
    """Cancel the own task."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("then", "flaw"),
    [
        (leave, "SystemExit"),
        (cancel, "it was cancelled from within"),
        (asyncio.Event().wait, "no end within 3 s"),
    ],
    ids=["raises", "cancels itself", "never ends"],
)
async def test_a_hook_that_fails_parks_the_message_all_the_same(
    serve: Serve,
    kind: str,
    begin: Begin,
    caplog: pytest.LogCaptureFixture,
    *,
    then: Callable[[], Awaitable[object]],
    flaw: str,
) -> None:
    """The worker and its other messages go on; the log says what happened to which message."""
    ear = Ear(then)
    async with serve(handler(kind, on_parked=ear.hear)(fail), lanes=("short",)):
        with caplog.at_level(logging.WARNING):
            parked = await begin(kind, payload="reject")
            await wait_until(lambda: parked.has(state="parked"), "it is parked")
        other = await begin(kind, payload="")
        await other.wait_ended()

    (line,) = [vars(r) for r in caplog.records if vars(r).get("action") == "on_parked_failed"]
    assert (line["reason"], line["workflow_id"]) == (flaw, f"{kind}:{parked.id}")
    assert [heard[0] for heard in ear.heard] == [parked.id]


async def test_a_message_whose_calls_were_all_lost_is_told_of_by_the_next_worker(
    client: Client, settings: Settings
) -> None:
    """The workers that ran it can't tell any more."""
    ear = Ear()
    call = HandlerCall("lost", "a", "short", version=3, attempt=3, payload="", due_at=0.0)
    async with HttpClient(settings) as http:
        registry = Registry([("the test", handler("lost", max_attempts=2, on_parked=ear.hear)(fail))])
        dispatch = Dispatch(registry, settings, http.get_session, Gates("lost"), Limits("lost"), Telemetry(is_on=False))
        outcome = await ActivityEnvironment(client).run(dispatch.run_handler, call.dump())

    assert (outcome["verdict"], outcome["reason"]) == ("reject", ear.heard[0][2])
    assert ear.heard[0][:2] == ("a", 2)
    assert outcome["reason"].startswith("attempt 2 of 2: its 2 calls before were lost with their workers")
