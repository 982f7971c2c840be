"""`dormice bridge status` as people type it, and what a bridge reports to probes and Prometheus, on a real broker."""

import asyncio
import contextlib
import importlib
import json
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest

from shared.kafka.safe_producer import open_admin
from starter.local.kafka.broker import EmbeddedBroker
from starter.local.supervised_process import find_free_port
from starter.records.dead_letters import SUFFIX
from tests.acceptance.conftest import Run, Spawn
from tests.conftest import wait_until
from tests.support.topics import commit, create_topic

pytestmark = pytest.mark.timeout(120)

_kafka: Any = importlib.import_module("aiokafka")
_admin: Any = importlib.import_module("aiokafka.admin")

PARTITIONS = 2
TINY = 2_000
"""Largest record of a dead-letter topic that somebody made too narrow."""
POISON = b"x" * 2 * TINY

Bridging = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture
async def topic(broker: EmbeddedBroker, kind: str) -> str:
    """A topic of the test's own."""
    await create_topic(broker.address, kind, PARTITIONS)
    return kind


@pytest.fixture
def bridging(spawn: Spawn, environment: dict[str, str], broker: EmbeddedBroker, topic: str) -> Bridging:
    """Run a bridge for the topic and give the address of its health endpoint; drained at the end."""

    @contextlib.asynccontextmanager
    async def bridging(**variables: str) -> AsyncGenerator[str]:
        port = find_free_port()
        process = await spawn(
            *("bridge", topic, "--group", topic, "--kind", "noted", "--id-from", "key"),
            *("--health-port", str(port), "--drain-seconds", "1"),
            env={**environment, "DORMICE_KAFKA_SERVERS": broker.address, **variables},
        )

        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            await process.communicate()

    return bridging


async def produce(broker: EmbeddedBroker, topic: str, *values: bytes, partition: int = 0) -> None:
    """Send records with a key each, which no other test has."""
    producer = _kafka.AIOKafkaProducer(bootstrap_servers=broker.address)
    await producer.start()
    try:
        for number, value in enumerate(values):
            key = f"{topic}-{partition}-{number}".encode()
            await producer.send_and_wait(topic, value, key=key, partition=partition)
    finally:
        await producer.stop()


async def ask(address: str, page: str) -> tuple[int, Any]:
    """Give the code and the JSON that an address answers, or nothing while it does not."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        try:
            answer = await client.get(f"http://{address}{page}")
        except httpx.TransportError:
            return 0, {}
    return answer.status_code, answer.json()


async def ask_partitions(address: str) -> dict[int, dict[str, Any]]:
    """Give what a bridge says of its partitions."""
    _, status = await ask(address, "/status")
    return {each["number"]: each for each in status.get("partitions", ())}


async def is_blocked(address: str) -> bool:
    """Whether partition 0 waits for its dead letter, and nothing is left to do in the other one."""
    found = await ask_partitions(address)
    return len(found) == PARTITIONS and bool(found[0]["blocked"]) and found[1]["lag"] == 0


async def test_lag_is_told_before_while_and_after_a_bridge_runs(
    run: Run, bridging: Bridging, broker: EmbeddedBroker, topic: str
) -> None:
    """Without one the broker's word alone; with one who holds what, and what became of the records."""
    await produce(broker, topic, *[b"1"] * 20)
    await commit(broker.address, topic, topic, {0: 5})

    async def tell(*arguments: str) -> Any:
        return await run(
            *("bridge", "status", topic, "--group", topic), *arguments, DORMICE_KAFKA_SERVERS=broker.address
        )

    before = await tell("--json")
    await commit(broker.address, topic, topic, {1: 3})
    beyond = await tell()
    await commit(broker.address, topic, topic, {1: 0})
    async with bridging() as address:

        async def is_done() -> bool:
            found = await ask_partitions(address)
            return [each["lag"] for each in found.values()] == [0, 0]

        await wait_until(is_done, "all is committed")
        ready = await ask(address, "/readyz")
        table = await tell("--bridge", address)
        told = await tell("--bridge", address, "--json")
    after = await tell("--bridge", address)

    first, second = before.document["partitions"]
    held, _ = told.document["partitions"]
    assert (before.code, before.document["state"], before.document["lag"]) == (0, "Empty", 15)
    assert (first["committed"], first["end"], first["lag"], first["member"]) == (5, 20, 15, "")
    assert f"\ndormice: {topic}/1: offset 3 is committed, but the partition ends at 0, so its log was cut" in beyond.err
    assert first["time_lag_seconds"] == before.document["time_lag_seconds"] > second["time_lag_seconds"] == 0
    assert ready == (200, {"ready": True})
    assert (told.code, told.document["state"], told.document["lag"], held["committed"]) == (0, "Stable", 0, 20)
    assert held["member"].startswith("aiokafka-")
    (bridge,) = told.document["bridges"]
    assert (bridge["address"], bridge["received"], bridge["outcomes"]["started"]) == (address, 15, 15)
    assert {line.split()[0]: line.split()[1:5] for line in table.out.splitlines()[:3]} == {
        "PARTITION": ["COMMITTED", "END", "LAG", "TIME"],
        f"{topic}/0": ["20", "20", "0", "-"],
        f"{topic}/1": ["0", "0", "0", "-"],
    }
    assert "outcomes  started 15\n" in table.out
    assert (after.code, after.out.splitlines()[1].split()) == (3, [f"{topic}/0", "20", "20", "0", "-", "-"])
    step = "start that bridge with --health-port, or leave it out"
    away = f"--bridge: {address} does not answer (ClientConnectorError); {step}"
    assert after.err.splitlines() == [f"group {topic} (Empty): 0 records to go", f"dormice: {away}"]


async def test_a_dead_letter_topic_that_takes_nothing_blocks_its_partition_and_says_so(
    run: Run, bridging: Bridging, broker: EmbeddedBroker, topic: str
) -> None:
    """Nothing is skipped, the other partition goes on, lag grows though it pauses; mended, all of it is done."""
    await create_topic(broker.address, topic + SUFFIX, max_message_bytes=TINY)
    await produce(broker, topic, POISON, b"1")
    await produce(broker, topic, b"1", b"1", partition=1)
    async with bridging() as address:
        await wait_until(lambda: is_blocked(address), "the dead letter is refused")
        await produce(broker, topic, b"2", b"2", b"2")

        async def has_grown() -> bool:
            return (await ask_partitions(address))[0]["lag"] == 5

        await wait_until(has_grown, "records that are not fetched are counted")
        (blocked,) = [each for each in (await ask_partitions(address)).values() if each["blocked"]]
        told = await run(
            *("bridge", "status", topic, "--group", topic, "--bridge", address), DORMICE_KAFKA_SERVERS=broker.address
        )
        await widen(broker, topic + SUFFIX)

        async def is_over() -> bool:
            return [each["lag"] for each in (await ask_partitions(address)).values()] == [0, 0]

        await wait_until(is_over, "the partition goes on")
        _, status = await ask(address, "/status")

    reason = f"topic {topic}{SUFFIX}: MessageSizeTooLargeError; raise max.message.bytes of the topic"
    assert (blocked["number"], blocked["committed"], blocked["is_paused"]) == (0, 0, True)
    assert blocked["blocked"] == reason
    assert f"blocked   {topic}/0: {reason}\n" in told.out
    assert told.out.splitlines()[1].endswith("blocked")
    assert (status["outcomes"]["dead"], status["partitions"][0]["blocked"]) == (1, "")


async def widen(broker: EmbeddedBroker, topic: str) -> None:
    """Let a topic take large records."""
    kinds = _admin.config_resource
    async with open_admin({"bootstrap_servers": broker.address}) as admin:
        resource = kinds.ConfigResource(
            kinds.ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": str(10 * TINY)}
        )
        (answer,) = await admin.alter_configs([resource])
    assert [code for code, *_ in answer.resources] == [0]


async def test_prometheus_fetches_the_lag_of_a_real_topic(
    bridging: Bridging, broker: EmbeddedBroker, topic: str
) -> None:
    """Of each partition, with what became of records and why none begin."""
    await create_topic(broker.address, topic + SUFFIX, max_message_bytes=TINY)
    await produce(broker, topic, POISON, b"1", b"1")
    await produce(broker, topic, b"1", partition=1)
    metrics = f"127.0.0.1:{find_free_port()}"

    async def fetch() -> dict[str, float]:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            lines = (await client.get(f"http://{metrics}/metrics")).text.splitlines()
        return {(found := line.rpartition(" "))[0]: float(found[2]) for line in lines if line.startswith("dormice_")}

    def name(metric: str, partition: int) -> str:
        return f'dormice_bridge_{metric}{{group="{topic}",partition="{partition}",topic="{topic}"}}'

    started = f'dormice_bridge_records_total{{group="{topic}",outcome="started"}}'
    async with bridging(DORMICE_TELEMETRY_PROMETHEUS=metrics) as address:
        await wait_until(lambda: is_blocked(address), "the dead letter is refused")

        async def is_published() -> bool:
            found = await fetch()
            known = name("lag", 0) in found  # with the first commit
            return known and found.get(name("blocked", 0)) == 1 and found.get(started, 0) >= 1

        await wait_until(is_published, "the readings follow")
        series = await fetch()

    assert (series[name("lag", 0)], series[name("lag", 1)]) == (3, 0)
    assert series[name("time_lag_seconds", 0)] > series[name("time_lag_seconds", 1)] == 0
    assert (series[name("paused", 0)], series[name("paused", 1)]) == (1, 0)
    assert series[name("in_flight", 0)] >= 1
    assert series[f'dormice_bridge_rebalances_total{{group="{topic}"}}'] >= 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "TOPIC: there is no topic 'nowhere', or this user may not see it; create or allow it"),
        (["TOPIC", "--group", "none"], "--group: there is no consumer group 'none'; start its bridge, or correct the"),
    ],
)
async def test_what_is_not_there_is_told_in_one_sentence(
    run: Run, broker: EmbeddedBroker, topic: str, arguments: list[str], sentence: str
) -> None:
    """Exit code 2, and nothing on standard output."""
    named = [topic if argument == "TOPIC" else argument for argument in arguments]
    ran = await run("bridge", "status", *named, DORMICE_KAFKA_SERVERS=broker.address)

    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"dormice: {sentence}")


async def test_without_a_broker_it_may_be_tried_again(run: Run) -> None:
    """Exit code 3."""
    ran = await run("bridge", "status", "t", DORMICE_KAFKA_SERVERS="127.0.0.1:9")

    assert (ran.code, ran.out, ran.err.count("\n")) == (3, "", 1)


async def test_who_answers_but_is_no_bridge_is_told_so(run: Run, broker: EmbeddedBroker, topic: str) -> None:
    """Some other program's page is not taken for a status."""
    await commit(broker.address, topic, topic, {0: 0})

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"hello": "world"}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ran = await run(
            *("bridge", "status", topic, "--group", topic, "--bridge", address, "--json"),
            DORMICE_KAFKA_SERVERS=broker.address,
        )

    (bridge,) = ran.document["bridges"]
    assert (ran.code, bridge["address"]) == (3, address)
    assert bridge["error"].startswith(f"--bridge: {address} answers /status with code 200 and not as a bridge does;")
