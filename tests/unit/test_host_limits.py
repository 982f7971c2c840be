"""Politeness: a worker process makes so many calls to one host at once, and who waits holds nobody else up."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from activities.admission import leases
from activities.admission.limits import Limits
from activities.api.limit import Limit
from activities.handlers.host_limit import per_host
from activities.handlers.http.handler import http
from activities.handlers.webhook.handler import webhook
from activities.testing import make_message
from shared.errors import InvalidHandler
from shared.keepers.limits import Pace
from shared.messages.message import Outcome

PACE = Pace.of(0, 0.0, 2, 60.0)
ALONE = Pace.of(0, 0.0, 1, 60.0)


class Host:
    """Calls of handlers at one host, which end when a test lets them, and how many are there at once."""

    def __init__(self) -> None:
        self.limits = Limits("test")
        self.is_open = asyncio.Event()
        self.at_once = self.maximum = self.calls = 0

    async def call(self, key: str = "host:a.example", held: Any = (), pace: Pace = PACE) -> Outcome | None:
        """Call a handler if it is a message's turn, else give the outcome of one that waits."""
        function = await self.limits.admit(self._work, key, pace, 3.0, held, is_local=True)
        if isinstance(function, Outcome):
            return function
        await function()
        return None

    async def _work(self) -> None:
        self.at_once += 1
        self.calls += 1
        self.maximum = max(self.maximum, self.at_once)
        await self.is_open.wait()
        await asyncio.sleep(0.01)
        self.at_once -= 1

    async def hang(self) -> list[asyncio.Task[Outcome | None]]:
        """Begin as many calls as may be at a host at once; they last until the test lets them end."""
        hanging = [asyncio.create_task(self.call()) for _ in range(PACE.at_once)]
        await asyncio.sleep(0)
        return hanging

    async def visit(self) -> None:
        """Live as a message does: wait until it is its turn, then call."""
        held: Any = ()
        while isinstance(waiting := await self.call(held=held), Outcome):
            assert waiting.turn is not None
            held = list(waiting.turn)
            await asyncio.sleep(0.01)


async def test_no_more_calls_are_at_a_host_than_allowed_and_all_have_their_turn() -> None:
    """Those that wait in the process go on as soon as another ends, those that were sent away when they come again."""
    host = Host()
    host.is_open.set()

    async with asyncio.timeout(20):
        await asyncio.gather(*(host.visit() for _ in range(200)))

    assert (host.calls, host.maximum) == (200, 2)


async def test_a_handler_with_a_smaller_number_takes_no_more_turns_than_its_own() -> None:
    """Handlers share the count of a host, and a turn goes on only to calls of the same number."""
    host = Host()
    alone = Host()
    alone.limits = host.limits
    others = await host.hang()
    waiting = [asyncio.create_task(alone.call(pace=ALONE)) for _ in range(5)]
    await asyncio.sleep(0)

    host.is_open.set()
    alone.is_open.set()
    await asyncio.gather(*others, *waiting)

    assert alone.maximum <= 1


async def test_a_host_that_begins_to_hang_soon_keeps_nobody_waiting_in_the_process() -> None:
    """Its calls were quick before, so many waited; none joins them once the host stands still."""
    host = Host()
    host.is_open.set()
    await asyncio.gather(*(host.visit() for _ in range(50)))
    host.is_open.clear()
    hanging = await host.hang()
    await asyncio.sleep(0.3)

    beginning = time.monotonic()
    outcomes = await asyncio.gather(*(host.call() for _ in range(100)))
    waited = [outcome for outcome in outcomes if isinstance(outcome, Outcome)]
    assert len(waited) == 100
    assert time.monotonic() - beginning < 5  # far less than a second each, one after the other

    host.is_open.set()
    await asyncio.gather(*hanging)


async def test_a_host_that_hangs_keeps_no_call_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it is due again later, and gives its place in the process to others."""
    monkeypatch.setattr(leases, "PASS_ON_SECONDS", 0.05)
    host = Host()
    hanging = await host.hang()

    waiting = await host.call()
    assert isinstance(waiting, Outcome)
    assert waiting.verdict == "gated"
    assert waiting.reason == "waits for its turn at host:a.example"
    assert waiting.after

    other = asyncio.create_task(host.call("host:b.example"))
    await asyncio.sleep(0)
    assert host.at_once == 3

    host.is_open.set()
    assert await asyncio.gather(*hanging, other) == [None] * 3


async def test_a_message_that_waited_gets_its_turn_when_the_host_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with its place in line."""
    monkeypatch.setattr(leases, "PASS_ON_SECONDS", 0.01)
    host = Host()
    hanging = await host.hang()
    waiting = await host.call()
    assert isinstance(waiting, Outcome)
    assert waiting.turn is not None
    host.is_open.set()
    await asyncio.gather(*hanging)

    assert await host.call(held=list(waiting.turn)) is None


async def test_calls_that_heed_no_time_limit_do_not_stop_a_host_for_good() -> None:
    """Their turns end some seconds after their time, as those of killed workers do; a later end changes none."""
    host = Host()
    brief = Pace.of(0, 0.0, 2, 0.05)
    hanging = [asyncio.create_task(host.call(pace=brief)) for _ in range(2)]
    await asyncio.sleep(0.1)

    others = [asyncio.create_task(host.call(pace=brief)) for _ in range(2)]
    await asyncio.sleep(0)
    assert host.at_once == 4

    host.is_open.set()
    assert await asyncio.gather(*hanging, *others) == [None] * 4
    await asyncio.gather(*(host.visit() for _ in range(20)))
    assert host.calls == 24


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        ({"url": "https://Example.org:8443/a?b"}, "host:example.org"),
        ({"url": "https://b\u00fccher.example/"}, "host:xn--bcher-kva.example"),
        ({"url": "http://[2001:db8::1]/"}, "host:2001:db8::1"),
        ({"url": "no URL"}, ""),
        ({"url": 7}, ""),
        ({"url": "http://[/"}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_visits_and_webhooks_share_the_count_of_a_host(payload: Any, key: str) -> None:
    """Whatever path and port; a payload without a URL is left to its handler."""
    for handler in (http, webhook):
        assert handler.limit is not None
        assert handler.limit.key_of(make_message(handler, payload)) == key


def test_the_number_is_that_of_the_handler_or_of_the_setting() -> None:
    """A handler's own number comes before the setting."""
    usual = per_host(lambda message: message.id)
    own = per_host(lambda message: message.id, at_once=3)

    assert usual.pace(http.timeout_on("short"), default=8).at_once == 8
    assert own.pace(http.timeout_on("short"), default=8).at_once == 3
    assert (usual.summary, own.summary) == ("http_at_once at once in a process", "3 at once in a process")


def test_a_rate_is_counted_by_all_processes_or_not_at_all() -> None:
    """A process alone knows how many calls it has, not how many began elsewhere."""
    with pytest.raises(InvalidHandler, match="per can't be counted by each process alone; give at_once alone"):
        Limit(key="a", per=(1, timedelta(minutes=1)), is_per_process=True)
