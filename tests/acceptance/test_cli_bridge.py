"""`dormice bridge` as people run it: killed, drained, misused."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from examples.ledger import LEDGER_VARIABLE, Ledger
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.local.kafka.broker import EmbeddedBroker
from tests.acceptance.conftest import PROGRAM, ROOT, Run, Spawn
from tests.conftest import wait_until
from tests.support.alive import end_packs
from tests.support.processes import worker_process
from tests.support.records import Noted
from tests.support.topics import committed_lag, create_topic

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(120)]

PARTITIONS = 4
REVISIONS = 4
KILLS = 5
MAX_SECONDS = 400.0
PACKS = 20
KEYS = {"noted": 400, "noted-packed": 5000}


@dataclass(frozen=True, slots=True)
class Ordeal:
    """What was left after all the kills."""

    newest: dict[str, str]
    """What each message should end with."""
    noted: dict[str, str]
    """What it ended with."""
    lag: int


@pytest.fixture(scope="module", params=KEYS)
async def ordeal(
    request: pytest.FixtureRequest,
    server: EmbeddedServer,
    broker: EmbeddedBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Ordeal:
    """A bridge is killed five times at random moments while it works through a topic; a sixth finishes."""
    await end_packs(await server.connect(), "noted-packed", PACKS)
    kind: str = request.param
    folder = tmp_path_factory.mktemp(kind)
    chance = random.Random(11)
    topic = f"ordeal-{kind}"
    settings = Settings(task_queue_prefix=topic)
    noted = Noted(Ledger(folder / "ledger.jsonl"), topic)
    newest = {f"{topic}-{number}": f"r{REVISIONS - 1}" for number in range(KEYS[kind])}
    await create_topic(broker.address, topic, PARTITIONS)
    await _produce(broker, topic, newest)
    environment = {
        **os.environ,
        "TEMPORAL_ADDRESS": server.address,
        "DORMICE_KAFKA_SERVERS": broker.address,
        "DORMICE_TASK_QUEUE_PREFIX": topic,
        "DORMICE_HANDLERS": "tests.support.handlers",
        "PYTHONPATH": str(ROOT),
    }
    arguments = ("bridge", topic, "--kind", kind, "--id-from", "key", "--group", topic, "--member", "one")

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(LEDGER_VARIABLE, str(folder / "ledger.jsonl"))
        async with asyncio.timeout(MAX_SECONDS), worker_process(server, settings):
            for number in range(KILLS + 1):
                with (folder / "bridge.log").open("ab") as log:
                    process = await asyncio.create_subprocess_exec(
                        str(PROGRAM), *arguments, "--session-seconds", "6", env=environment, stdout=log, stderr=log
                    )

                try:
                    if number < KILLS:
                        before = noted.calls
                        moved = lambda before=before: noted.calls > before  # noqa: E731 — read at once
                        await wait_until(moved, f"bridge {number} delivers", seconds=120)
                        await asyncio.sleep(chance.uniform(0, 0.5))
                    else:
                        await wait_until(lambda: noted.newest == newest, "the last one finishes", seconds=200)
                        await wait_until(lambda: _is_committed(broker, topic), "and commits", seconds=60)
                finally:
                    process.kill()
                    await process.wait()
                    for log in (folder / "bridge.log", server.options.data / "worker.log"):
                        print(log.read_text()[-3000:])  # noqa: T201 — shown when it fails

    return Ordeal(newest, noted.newest, await committed_lag(broker.address, topic, topic, PARTITIONS))


async def _produce(broker: EmbeddedBroker, topic: str, keys: Collection[str]) -> None:
    producer: Any = AIOKafkaProducer(bootstrap_servers=broker.address, enable_idempotence=True)
    await producer.start()
    try:
        for revision in range(REVISIONS):
            for key in keys:
                await producer.send(topic, json.dumps(f"r{revision}").encode(), key=key.encode())
        await producer.flush()
    finally:
        await producer.stop()


async def _is_committed(broker: EmbeddedBroker, topic: str) -> bool:
    return await committed_lag(broker.address, topic, topic, PARTITIONS) == 0


@pytest.mark.long
async def test_a_bridge_killed_five_times_loses_nothing(ordeal: Ordeal) -> None:
    """One message per key, none missing, each with the payload of its newest record; everything is committed."""
    assert ordeal.noted == ordeal.newest
    assert ordeal.lag == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "TOPIC: there is no topic 'nowhere', or this user may not see it; create or allow it"),
        (["t", "--kind", "Ledger"], "--kind: is 'Ledger'; use lower-case letters, digits,"),
        (
            ["t", "--kind", "nobody"],
            "--kind: no handler for 'nobody' is loaded; loaded: celery, dormice-canary, echo, http, ledger,",
        ),
        (["t", "--id-from", "body"], "--id-from: "),
        (["t", "--lane-from", "/lane"], "--lane-from: maps records whose id comes from somewhere, too; add --id-from,"),
        (["t", "--format", "debezium"], "--kind: has to be told with --format debezium, also for records without"),
        (["t", "--drain-seconds", "-1"], "--drain-seconds: is -1; give seconds above 0, at most 3600"),
    ],
)
async def test_what_can_not_work_is_refused_at_once(
    run: Run, broker: EmbeddedBroker, arguments: list[str], sentence: str
) -> None:
    """One sentence, exit code 2, nothing consumed."""
    ran = await run("bridge", *arguments, DORMICE_KAFKA_SERVERS=broker.address)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dormice: {sentence}"), ran.err


async def test_without_a_broker_it_may_be_tried_again(run: Run) -> None:
    """Exit code 3, as for every server that is not there."""
    ran = await run("bridge", "t", DORMICE_KAFKA_SERVERS="127.0.0.1:9")

    assert ran.code == 3
    assert "127.0.0.1:9" in ran.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_commits(
    spawn: Spawn, environment: dict[str, str], broker: EmbeddedBroker, settings: Settings, number: int
) -> None:
    """Exit code 0, and nothing is left for the next one."""
    topic = settings.task_queue_prefix
    await create_topic(broker.address, topic, PARTITIONS)
    await _produce(broker, topic, [str(number) for number in range(20)])
    bridge = await spawn(
        *("bridge", topic, "--group", topic, "--kind", "noted", "--id-from", "key"),
        env={**environment, "DORMICE_KAFKA_SERVERS": broker.address},
    )
    await wait_until(lambda: _is_committed(broker, topic), "it has delivered all of them")
    await _produce(broker, topic, [str(number) for number in range(5)])
    bridge.send_signal(number)
    _, talk = await bridge.communicate()

    assert bridge.returncode == 0, talk
    assert b"drained; everything that was received and accepted is committed" in talk
