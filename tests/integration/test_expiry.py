"""Expiry: a message whose time is over ends, whatever it waits for, and its handler is told in both encodings."""

from datetime import UTC, datetime, timedelta

import pytest

from activities import Again, Context, Done, Message, handler
from shared.exit import NOT_DONE
from starter.cli.messages.waiting import NO_END, explain_end
from starter.control import Control
from starter.steering.selection import Selection
from tests.conftest import Begin, Serve, wait_until

DAY = timedelta(days=1)


@pytest.mark.parametrize("lane", ["short", "medium"])
async def test_a_sleeping_message_expires_on_time_and_its_handler_is_told(
    begin: Begin, serve: Serve, control: Control, kind: str, *, lane: str
) -> None:
    """Once its first cycle has put it to sleep for longer; lists, `show` and `--wait` say what became of it."""
    told: list[tuple[str, datetime]] = []

    async def on_expiry(message: Message, ctx: Context) -> None:
        told.append((ctx.idempotency_key, datetime.now(UTC)))
        if len(told) == 1:
            raise ConnectionError("try again")

    @handler(kind, lane=lane, on_expiry=on_expiry, backoff=timedelta(milliseconds=200))
    async def sleep(message: Message, ctx: Context) -> Again:
        return Again(after=DAY)

    expires_at = datetime.now(UTC) + timedelta(seconds=4)
    async with serve(sleep, lanes=(lane,) if lane == "short" else ("short", lane)):
        subject = await begin(kind, lane=lane, expires_at=expires_at)
        await wait_until(lambda: subject.has(version=1), "it sleeps")
        why = (await subject.status())["why"]
        ended = await subject.wait_ended()
        view = await control.show(kind, subject.id)
        await wait_until(lambda: _is_listed(control, kind, subject.id), "it is listed")

    assert why.startswith("expires ")
    assert ended == {"state": "expired", "version": 2, "result": None}
    assert [key for key, _ in told] == [f"{kind}:{subject.id}:1"] * 2
    assert told[0][1] >= expires_at
    assert explain_end(view, NO_END)[0] == NOT_DONE
    assert view.decisions[-1]["what"] == "expired"


async def _is_listed(control: Control, kind: str, message_id: str) -> bool:
    return [each.id async for each in control.list(Selection(kind=kind, state="expired"))] == [message_id]


async def test_a_message_that_is_late_expires_without_a_call(begin: Begin, serve: Serve, kind: str) -> None:
    """Nobody was there to run it in time; a message of the same kind that has time left runs."""
    calls: list[str] = []

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Done:
        calls.append(message.id)
        return Done()

    late = await begin(kind, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    async with serve(work, lanes=("short",)):
        early = await begin(kind, expires_at=datetime.now(UTC) + DAY)
        ends = [(await subject.wait_ended())["state"] for subject in (late, early)]

    assert ends == ["expired", "done"]
    assert calls == [early.id]
