"""`dormice bridge` in trouble: members come, go and stand still, and broker and server are killed in mid-load."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
from temporalio.client import Client

from examples.ledger import LEDGER_VARIABLE, Ledger
from shared.errors import MessageNotFound
from shared.exit import UNREACHABLE
from shared.lanes import task_queue
from shared.settings import Settings
from shared.temporal.connect import describe_queue
from starter.control import Control
from starter.local.embedded import EmbeddedOptions, EmbeddedServer
from starter.local.kafka.broker import BrokerOptions, EmbeddedBroker, run_broker
from starter.local.supervised_process import find_free_port
from starter.starting.queries import is_polled
from starter.steering.selection import Selection
from tests.conftest import wait_until
from tests.support.processes import bridge_process, kill, worker_process
from tests.support.records import Flow, Noted, producing
from tests.support.topics import Progress, committed_lag, create_topic, list_members, read_progress, read_records

pytestmark = [pytest.mark.fault, pytest.mark.heavy, pytest.mark.long, pytest.mark.timeout(120)]

PARTITIONS = 6
MAX_SECONDS = 400.0
SESSION = ("--session-seconds", "6")
"""The least that a broker takes by default."""

AWAY_SECONDS = 20.0
ASKED_AT_ONCE = 20

TRICKLE = 500
SPIKE = 15_000
SPIKE_RSS_MAX = 250e6


@dataclass(slots=True)
class Scene:
    """Where an ordeal plays, and what is left after it."""

    server: EmbeddedServer
    broker: EmbeddedBroker
    settings: Settings
    topic: str
    flow: Flow
    noted: Noted
    found: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the ordeal has seen on its way."""

    def bridge(self, *arguments: str) -> Any:
        """Run a bridge on the topic for the length of a `with` block."""
        return bridge_process(self.server, self.broker, self.settings, self.topic, *arguments)

    async def wait_until_shared_by(self, count: int, *, without: frozenset[str] = frozenset()) -> frozenset[str]:
        """Wait until `count` members share the topic, and they are not the set `without`; gives them."""

        async def found() -> frozenset[str]:
            members = await list_members(self.broker.address, self.topic)
            return members if len(members) == count and members != without else frozenset()

        return await wait_until(found, f"{count} bridges share the topic", seconds=90)

    async def wait_until_all_acted(self) -> None:
        """Wait until each message has its newest record, and the group nothing left to do."""
        await wait_until(lambda: self.noted.newest == self.flow.newest, "all have their newest record", seconds=180)
        # a worker in which a workflow is stuck drains for 40 s before another takes over
        await wait_until(self.is_committed, "and all is committed", seconds=120)

    async def is_committed(self) -> bool:
        """Whether the group is at the end of its topic."""
        return sum([progress.lag for progress in await self.read_progress()]) == 0

    async def has_committed(self) -> bool:
        """Whether the group has got anywhere."""
        return any(progress.committed for progress in await self.read_progress())

    async def read_progress(self) -> list[Progress]:
        """Tell how far the group is with each partition."""
        return await read_progress(self.broker.address, self.topic, self.topic, PARTITIONS)


async def come_and_go(scene: Scene) -> None:
    """Of three bridges one joins late, one leaves, and one stands still until others have its partitions."""
    stopping = asyncio.Event()
    flowing = asyncio.create_task(scene.flow.run(stopping))
    try:
        async with scene.bridge(*SESSION) as leaving, scene.bridge(*SESSION) as still:
            first = await scene.wait_until_shared_by(2)
            still.send_signal(signal.SIGSTOP)

            async with scene.bridge(*SESSION):
                await scene.wait_until_shared_by(2, without=first)
                still.send_signal(signal.SIGCONT)
                await scene.wait_until_shared_by(3)
                leaving.send_signal(signal.SIGTERM)
                scene.found["exit code"] = await leaving.wait()
                await scene.wait_until_shared_by(2)
                stopping.set()
                await flowing
                await scene.wait_until_all_acted()
    finally:
        flowing.cancel()


async def lose_the_broker(scene: Scene) -> None:
    """The broker is killed while a bridge is at work, and started again."""
    async with scene.bridge():
        await scene.flow.send()
        await wait_until(lambda: scene.noted.newest, "it is in the middle of it")
        await kill(scene.broker)
        await scene.broker.start()
        await scene.flow.send()
        await scene.wait_until_all_acted()


async def lose_the_server(scene: Scene) -> None:
    """The server is killed while a bridge is at work, and started again after longer than a call's patience.

    Before the bridge may go on, what is committed is compared with what the server has.
    """
    scene.settings = replace(scene.settings, patience=timedelta(seconds=10))
    async with scene.bridge() as bridge:
        await scene.flow.send()
        await wait_until(scene.has_committed, "it has committed something")
        await wait_until(lambda: scene.noted.newest, "and the worker has come from beginning to work")
        await kill(scene.server)
        await asyncio.sleep(AWAY_SECONDS)  # the fault itself: no server for this time
        bridge.send_signal(signal.SIGSTOP)
        committed = await read_committed_names(scene)
        scene.found["committed"] = len(committed)
        await scene.server.start()
        client = await scene.server.connect()
        scene.found["missing"] = await find_missing(client, scene.settings, committed)
        bridge.send_signal(signal.SIGCONT)
        await scene.wait_until_all_acted()


async def read_committed_names(scene: Scene) -> list[tuple[str, str]]:
    """Name the messages whose records the group will never read again."""
    names: list[tuple[str, str]] = []
    for number, progress in enumerate(await scene.read_progress()):
        for record in await read_records(scene.broker.address, scene.topic, number):
            if record.offset < progress.committed:
                envelope = json.loads(record.value)
                names.append((envelope["kind"], envelope["id"]))
    return names


async def find_missing(client: Client, settings: Settings, names: list[tuple[str, str]]) -> list[str]:
    """Name those of the messages that the server does not know."""
    control = Control(client, settings)
    room = asyncio.Semaphore(ASKED_AT_ONCE)

    async def find(kind: str, message_id: str) -> list[str]:
        async with room:
            try:
                await control.look_up(kind, message_id)
            except MessageNotFound:
                return [message_id]
        return []

    return [missing for found in await asyncio.gather(*(find(*name) for name in names)) for missing in found]


Play = Callable[..., Awaitable[Scene]]


@pytest.fixture(scope="module")
async def killable(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    """A server of these tests' own, because it will be killed."""
    options = EmbeddedOptions(data=tmp_path_factory.mktemp("killable"), port=find_free_port(), ui_port=None, slim=False)
    server = EmbeddedServer(options)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBroker]:
    """A broker of these tests' own, for the same reason."""
    options = BrokerOptions(data=tmp_path_factory.mktemp("broker"), port=find_free_port())
    async with run_broker(options) as running:
        yield running


@pytest.fixture(scope="module")
def play(killable: EmbeddedServer, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Play an ordeal on a topic of its own, beside a worker: fixtures may take longer than a test."""

    async def play(ordeal: Callable[[Scene], Awaitable[None]], **keys: int) -> Scene:
        topic = ordeal.__name__
        path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
        # the packs of a kind live on, on the task queue of whoever began them
        settings = Settings(task_queue_prefix="faults", workflow_task_timeout=timedelta(seconds=5))
        await create_topic(broker.address, topic, PARTITIONS)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv(LEDGER_VARIABLE, str(path))
            async with (
                asyncio.timeout(MAX_SECONDS),
                producing(broker.address) as producer,
                worker_process(killable, settings),
            ):
                flow = Flow(producer, topic, {kind.replace("_", "-"): count for kind, count in keys.items()})
                client = await killable.connect()
                queue = task_queue(settings.task_queue_prefix, "short")

                async def is_served() -> bool:
                    return is_polled(await describe_queue(client, queue))

                await wait_until(is_served, "the worker is at work")
                scene = Scene(killable, broker, settings, topic, flow, Noted(Ledger(path), topic))
                await ordeal(scene)
        return scene

    return play


@pytest.fixture(scope="module")
async def changed_group(play: Play) -> Scene:
    """What is left after members came, went and stood still."""
    return await play(come_and_go, noted=8, noted_packed=80)


@pytest.fixture(scope="module")
async def lost_broker(play: Play) -> Scene:
    """What is left after the broker's death."""
    return await play(lose_the_broker, noted=150, noted_packed=3000)


@pytest.fixture(scope="module")
async def lost_server(play: Play) -> Scene:
    """What is left after the server's death."""
    return await play(lose_the_server, noted=500, noted_packed=3000)


async def test_bridges_that_come_go_and_stand_still_lose_and_double_nothing(changed_group: Scene) -> None:
    """Each message ends with its newest record, no record acts twice, and who was told to go has drained."""
    assert changed_group.noted.newest == changed_group.flow.newest
    assert changed_group.noted.doubled == set()
    assert changed_group.found["exit code"] == 0


async def test_a_broker_that_dies_in_mid_load_takes_nothing_along(lost_broker: Scene) -> None:
    """The same bridge goes on by itself: all records act, and none acts twice."""
    assert lost_broker.noted.newest == lost_broker.flow.newest
    assert lost_broker.noted.doubled == set()


async def test_a_server_that_is_away_for_long_misses_nothing_that_is_committed(lost_server: Scene) -> None:
    """It has each message whose record will not be read again; the same bridge brings the others when it is back."""
    assert lost_server.found["missing"] == []
    assert 0 < lost_server.found["committed"] < len(lost_server.flow.newest)
    assert lost_server.noted.newest == lost_server.flow.newest
    assert lost_server.noted.doubled == set()


async def test_a_bridge_told_to_end_without_its_broker_says_that_not_all_is_committed(
    server: EmbeddedServer, broker: EmbeddedBroker, settings: Settings, client: Client
) -> None:
    """It does not wait for the broker, and its exit code says that the same may succeed later."""
    topic = settings.task_queue_prefix
    await create_topic(broker.address, topic, PARTITIONS)
    async with producing(broker.address) as producer:
        flow = Flow(producer, topic, {"noted": 400})
        await flow.send()

    async def has_begun() -> bool:
        return len(await find_missing(client, settings, [("noted", next(iter(flow.newest)))])) == 0

    async with bridge_process(server, broker, settings, topic) as bridge:
        await wait_until(has_begun, "it is in the middle of it")
        await kill(broker)
        try:
            bridge.send_signal(signal.SIGTERM)
            code = await bridge.wait()
        finally:
            await broker.start()

    assert code == UNREACHABLE


@pytest.mark.timeout(240)
async def test_a_spike_waits_in_kafka_and_not_in_memory(
    server: EmbeddedServer, broker: EmbeddedBroker, settings: Settings, client: Client
) -> None:
    """More than it can hold comes at once: its memory stays bounded, and nothing is left behind."""
    topic = settings.task_queue_prefix
    peak = 0
    await create_topic(broker.address, topic, PARTITIONS)
    async with (
        producing(broker.address) as producer,
        worker_process(server, settings),
        bridge_process(server, broker, settings, topic) as bridge,
    ):
        await flood(producer, topic, range(TRICKLE))
        await wait_until(lambda: has_drained(broker, topic), "it goes its usual way")
        await flood(producer, topic, range(TRICKLE, TRICKLE + SPIKE))

        async def is_over() -> bool:
            nonlocal peak
            peak = max(peak, psutil.Process(bridge.pid).memory_info().rss)
            return await has_drained(broker, topic)

        await wait_until(is_over, "all of it is committed", seconds=200)
        alive = await Control(client, settings).count(Selection(kind="standby"))

    assert peak < SPIKE_RSS_MAX
    assert alive == TRICKLE + SPIKE


async def flood(producer: Any, topic: str, numbers: range) -> None:
    """Send messages that are due tomorrow; all are at the broker when this returns."""
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for number in numbers:
        envelope = {"kind": "standby", "id": f"{topic}-{number}", "scheduled_at": tomorrow, "payload": {"n": number}}
        await producer.send(topic, json.dumps(envelope).encode(), key=b"%d" % number)
    await producer.flush()


async def has_drained(broker: EmbeddedBroker, topic: str) -> bool:
    """Whether the topic's group has nothing left to do."""
    return await committed_lag(broker.address, topic, topic, PARTITIONS) == 0
