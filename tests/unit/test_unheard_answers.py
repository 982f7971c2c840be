"""Questions about calls in flight whose pack's run has ended: the next run asks again."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from activities import Context, Done, Message, handler
from activities.admission.gates import Gates
from activities.admission.limits import Limits
from activities.calls.batch import BatchDispatch
from activities.calls.dispatch import Dispatch
from activities.http.client import HttpClient
from activities.registry import Registry
from shared.messages.message import MessageState
from shared.packs.entry import to_entry
from shared.settings import Settings
from shared.telemetry.sdk import Telemetry
from tests.conftest import wait_until

NOW = 1_800_000_000.0
BATCH: dict[str, Any] = {
    "kind": "held",
    "lane": "short",
    "token": "run/0",
    "pack_lane": "short",
    "spread": [0.0, 0.0],
    "left_run": "",
    "begun_at": NOW,
    "entries": [to_entry(MessageState("held", "one", "short", NOW, NOW), "short")],
}


class OpenGates(Gates):
    """Gates that nobody closes, without a server to read them from."""

    async def keep_fresh(self, now: float) -> None:
        """Take all gates for open."""
        self.fresh_until = now + timedelta(days=1).total_seconds()


async def test_a_question_whose_run_has_ended_ends_without_an_error() -> None:
    """The SDK would log a traceback for each, though nothing is wrong: the call goes on, and the next run asks."""
    is_over = asyncio.Event()

    @handler("held")
    async def hold(message: Message, ctx: Context) -> Done:
        await is_over.wait()
        return Done()

    settings = Settings()
    async with HttpClient(settings) as http:
        registry = Registry([("the test", hold)])
        dispatch = Dispatch(
            registry, settings, http.get_session, OpenGates("test"), Limits("test"), Telemetry(is_on=False)
        )
        batches = BatchDispatch(dispatch)
        await ActivityEnvironment().run(batches.run_batch, BATCH)

        asking = ActivityEnvironment()
        question = {"token": "run/0", "positions": [0], "lane": "short"}
        asked = asyncio.create_task(asking.run(batches.await_calls, question))
        await wait_until(lambda: batches._awaited, "it is asked for")  # pyright: ignore[reportPrivateUsage]
        asking.cancel(cancellation_details=ActivityCancellationDetails(not_found=True))

        assert await asked is None

        again = asyncio.create_task(ActivityEnvironment().run(batches.await_calls, question))
        is_over.set()
        assert await again is not None
