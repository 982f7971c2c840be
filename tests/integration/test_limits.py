"""Limits per key: calls are spread as declared in both encodings, over all workers, and nothing stands still."""

import asyncio
import bisect
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from activities import Context, Done, Message, handler
from activities.api.handler import Handler
from activities.api.limit import Limit
from examples.ledger import Ledger
from shared.keepers import limits
from shared.keepers.limits import Pace, TurnRequest, grace_of, limits_workflow_id
from shared.messages.envelope import Envelope
from shared.messages.signals import Revise, RunNow
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import Begin, Serve, serving, wait_until
from tests.support.processes import worker_process
from tests.support.subjects import declare
from workflows import limits_keeper

HOUR = timedelta(hours=1)
KEYS = 10
ANSWERS_PER_RUN = 4


class Site:
    """What is called under a limit whose key is the payload; `calls` holds each call's moment, key and message.

    A call of a key in `together` ends only after as many of its key were at work at once.
    """

    def __init__(self, kind: str, takes: float = 0.0, together: Mapping[str, int] | None = None, **limit: Any) -> None:
        self.kind = kind
        self.takes = takes
        self.together = together or {}
        self.limit = Limit(key=lambda message: message.payload, **limit)
        self.calls: list[tuple[float, str, str]] = []
        self.at_work: Counter[str] = Counter()
        self.maximum: Counter[str] = Counter()

    def handler(self) -> Handler:
        """Make a handler under the limit."""

        @handler(self.kind, limit=self.limit)
        async def visit(message: Message, ctx: Context) -> Done:
            key = message.payload
            self.calls.append((time.time(), key, message.id))
            self.at_work[key] += 1
            self.maximum[key] = max(self.maximum[key], self.at_work[key])
            if key in self.together:
                await wait_until(lambda: self.maximum[key] >= self.together[key], f"calls of {key} are at work at once")
            await asyncio.sleep(self.takes)
            self.at_work[key] -= 1
            return Done()

        return visit

    def moments(self, key: str) -> list[float]:
        """Give when the calls of a key began."""
        return [at for at, name, _ in self.calls if name == key]


@pytest.fixture
def starter(client: Client, settings: Settings, encoding: str, kind: str) -> BulkStarter:
    """What starts many messages of the test's kind."""
    return BulkStarter(client, settings, encodings=declare(encoding, kind))


async def load(starter: BulkStarter, kind: str, keys: dict[str, Any]) -> None:
    """Start a message for each name, with the key under which it is to be called."""
    envelopes = [Envelope(kind=kind, id=name, lane="short", payload=key) for name, key in keys.items()]
    async for receipt in starter.start_all((None, envelope) for envelope in envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt


def assert_within(moments: Iterable[float], calls: int, period: float) -> None:
    """No window holds more calls than docs/limits.md states."""
    ordered = sorted(moments)
    pace = Pace.of(calls, period, 0, 0)
    for window in (period, 3 * period):
        stated = 1 + (window + grace_of(period) + pace.credit) / pace.interval
        maximum = max(bisect.bisect_right(ordered, at + window) - n for n, at in enumerate(ordered))
        assert maximum <= stated, f"{maximum} calls within {window:g} s"


async def test_calls_of_a_key_begin_at_its_rate_and_those_of_other_keys_at_once(
    starter: BulkStarter, serve: Serve, kind: str, message_id: Callable[[], str]
) -> None:
    """No window holds more than what is stated; each message is called once, also those without a key."""
    site = Site(kind, per=(8, timedelta(seconds=1)))
    keys = {message_id(): "busy" for _ in range(40)} | {message_id(): f"other-{n}" for n in range(10)}
    keys |= {message_id(): "" for _ in range(20)}
    await load(starter, kind, keys)
    async with serve(site.handler(), lanes=("short",)):
        await wait_until(lambda: len(site.calls) >= len(keys), "all have run")

    assert_within(site.moments("busy"), 8, 1.0)
    assert sorted(name for _, _, name in site.calls) == sorted(keys)


async def test_a_call_that_ends_lets_the_next_of_its_key_begin(
    starter: BulkStarter, serve: Serve, kind: str, encoding: str, message_id: Callable[[], str]
) -> None:
    """Quick calls follow one another without asking for each: hundreds run, two at once, in a few requests' time."""
    count = 400 if encoding == "pack" else 60  # a solo message costs its own workflow's wake
    site = Site(kind, takes=0.001, together={"busy": 2}, at_once=2)
    await load(starter, kind, {message_id(): "busy" for _ in range(count)})
    async with serve(site.handler(), lanes=("short",)):
        await wait_until(lambda: len(site.calls) >= count, "all have run")

    assert site.maximum["busy"] == 2
    assert len({name for _, _, name in site.calls}) == len(site.calls) == count


async def test_no_more_calls_of_a_key_are_at_work_than_allowed(
    server: EmbeddedServer, settings: Settings, starter: BulkStarter, kind: str, message_id: Callable[[], str]
) -> None:
    """Two workers share what is allowed, and use it."""
    used = {"busy": 3, "other": 2}
    site = Site(kind, takes=0.3, together=used, at_once=3)
    keys = {message_id(): "busy" for _ in range(15)} | {message_id(): "other" for _ in range(2)}
    await load(starter, kind, keys)
    # as two processes have
    first = await server.connect()
    second = await server.connect()
    async with (
        serving(first, settings, site.handler(), lanes=("short",)),
        serving(second, settings, site.handler(), lanes=("short",)),
    ):
        await wait_until(lambda: len(site.calls) >= len(keys), "all have run")

    assert site.maximum == used
    assert sorted(name for _, _, name in site.calls) == sorted(keys)


async def test_a_message_woken_by_a_person_waits_for_its_turn_and_says_so(
    serve: Serve, kind: str, begin: Begin
) -> None:
    """It has used up no attempt; with another key it is called at once."""
    site = Site(kind, per=(1, HOUR))
    async with serve(site.handler(), lanes=("short",)):
        first = await begin(kind, payload="customer-7")
        await first.wait_ended()
        waiting = await begin(kind, payload="customer-7")
        await wait_until(lambda: _waits(waiting), "it waits for its turn")
        await waiting.send(RunNow("a person can't wait"))

        async def has_waited_again() -> bool:
            return [d["what"] for d in await waiting.explain()][-2:] == ["run_now", "gated"]

        await wait_until(has_waited_again, "it has asked again")
        status = await waiting.status()
        assert "waits for its turn at customer-7" in status["why"]
        assert (status["attempt"], status["version"], status["state"]) == (0, 0, "active")
        assert len(site.calls) == 1
        await waiting.send(Revise(payload="customer-8"))
        await waiting.send(RunNow("for another customer"))
        await waiting.wait_ended()

    assert [key for _, key, _ in site.calls] == ["customer-7", "customer-8"]


async def test_a_message_waits_while_its_count_can_not_be_reached(
    client: Client, settings: Settings, serve: Serve, kind: str, begin: Begin
) -> None:
    """It is never called without its turn, uses up no attempt, and comes back by itself."""
    prefix = settings.task_queue_prefix
    names = [limits_workflow_id(prefix, n) for n in range(limits.SHARDS)]
    for name in names:
        await client.start_workflow(limits.LIMITS_WORKFLOW, {}, id=name, task_queue=f"{prefix}-nobody")
    site = Site(kind, per=(1, timedelta(seconds=1)))
    async with serve(site.handler(), lanes=("short",)):
        waiting = await begin(kind, payload="key")
        await wait_until(lambda: _waits(waiting), "it waits for its turn")
        status = await waiting.status()
        assert "whose count can't be reached" in status["why"]
        assert (status["attempt"], status["state"], site.calls) == (0, "active", [])
        for name in names:
            await client.get_workflow_handle(name).terminate()
        await waiting.wait_ended()

    assert len(site.calls) == 1


async def test_counts_go_on_in_the_next_run_and_nothing_that_is_sent_stops_them(
    client: Client, settings: Settings, serve: Serve, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty requests over ten runs get each key's one slot of an hour at most once; what can't be read is refused."""
    monkeypatch.setattr(limits_keeper, "ANSWERS_PER_RUN", ANSWERS_PER_RUN)
    name = limits_workflow_id(settings.task_queue_prefix, 0)
    pace = Pace.of(1, 3600.0, 0, 1.0)
    wires = [limits.write_requests([TurnRequest(f"key-{n}", pace, [], 1)], []) for n in range(KEYS)]
    slots = Counter[int]()
    async with serve(Site(kind, at_once=1).handler(), lanes=("short",)):
        queue = limits.limits_queue(settings.task_queue_prefix)
        handle = await client.start_workflow(limits.LIMITS_WORKFLOW, {}, id=name, task_queue=queue)
        first_run = handle.first_execution_run_id
        update = cast("Any", client.get_workflow_handle(name)).execute_update  # the SDK leaves its types open
        for arguments in (["nonsense"], [], wires[:2]):
            with pytest.raises(WorkflowUpdateFailedError):
                await update(limits.TAKE, args=arguments)
        await client.get_workflow_handle(name).signal("take", "no signal")

        async def ask(number: int) -> None:
            (response,) = limits.read_answers(await update(limits.TAKE, wires[number % KEYS]))
            slots[number % KEYS] += len(response.slots)

        await asyncio.gather(*map(ask, range(20)))
        for number in range(20):
            await ask(number)
        described = await client.get_workflow_handle(name).describe()

    assert set(slots.values()) <= {0, 1}
    # an answer that ends a run is seldom lost on its way to the caller, who asks again; then its slot is nobody's
    assert slots.total() >= KEYS - ANSWERS_PER_RUN
    assert described.run_id != first_run


@pytest.mark.fault
@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_rate_holds_though_the_worker_that_counts_is_killed(
    server: EmbeddedServer, client: Client, settings: Settings, ledger: Ledger, encoding: str
) -> None:
    """Three workers in turn are killed with SIGKILL; all messages are called, and no window holds too many calls."""
    names = {f"{settings.task_queue_prefix}-{n}": "busy" for n in range(150)}
    kind = f"limited-{encoding}"
    await load(BulkStarter(client, settings, encodings=declare(encoding, kind)), kind, names)

    def called() -> list[float]:
        return [entry.at for entry in ledger.entries if entry.what == "began"]

    def is_done() -> bool:
        return {entry.id for entry in ledger.entries if entry.what == "done"} >= set(names)

    for share in (0.2, 0.4, 0.6):
        async with worker_process(server, settings, handlers="tests.support.limited_handlers") as worker:
            await wait_until(lambda share=share: len(called()) > share * len(names), "calls go on")
            worker.kill()
    async with worker_process(server, settings, handlers="tests.support.limited_handlers"):
        await wait_until(is_done, "all have been called", seconds=90)

    assert_within(called(), 20, 5.0)


async def _waits(message: Any) -> bool:
    return (await message.explain())[-1]["what"] == "gated"
