"""Kafka with a Redis sorted set, glued by hand: a poller claims what is due, a topic carries it, a consumer runs it.

What a careful team writes: a claim is a lease, so that a killed process loses nothing; one round trip for many.
"""

import asyncio
import importlib
import json
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bench.peers.work import Handle, Order

_redis: Any = importlib.import_module("redis.asyncio")  # its types are not complete

TOPIC = "due"
PARTITIONS = 4
DUE = "due"
MESSAGES = "messages"
LEASE_SECONDS = 30.0
CLAIMED_AT_ONCE = 500
IN_FLIGHT_MAX = 4000
POLL_SECONDS = 0.1
STORE_SECONDS = 0.05
FILLED_AT_ONCE = 5000

CLAIM = """
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #ids == 0 then return {} end
local leases = {}
for _, id in ipairs(ids) do
  leases[#leases + 1] = ARGV[3]
  leases[#leases + 1] = id
end
redis.call('ZADD', KEYS[1], unpack(leases))
return {ids, redis.call('HMGET', KEYS[2], unpack(ids))}
"""


def _connect(order: Order) -> Any:
    retry = Retry(ExponentialBackoff(cap=1.0, base=0.05), 60)
    return _redis.Redis.from_url(
        order.addresses["redis"], retry=retry, retry_on_error=[RedisConnectionError, RedisTimeoutError]
    )


async def fill(order: Order) -> None:
    """Make the topic, and store all messages as due now."""
    admin = AIOKafkaAdminClient(bootstrap_servers=order.addresses["kafka"])
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    await admin.close()
    redis = _connect(order)
    dues = dict(zip(order.message_ids(), order.first_dues(), strict=True))

    ids = list(dues)
    for first in range(0, len(ids), FILLED_AT_ONCE):
        some = ids[first : first + FILLED_AT_ONCE]
        messages = {name: json.dumps({"id": name, "version": 0, "payload": order.payload(name)}) for name in some}
        async with redis.pipeline() as pipe:
            pipe.hset(MESSAGES, mapping=messages)
            pipe.zadd(DUE, {name: dues[name] for name in some})
            await pipe.execute()

    await redis.aclose()


async def serve(order: Order, handle: Handle) -> None:
    """Claim, carry and run what is due, for ever."""
    redis = _connect(order)
    async with (
        AIOKafkaProducer(bootstrap_servers=order.addresses["kafka"], acks="all", linger_ms=5) as producer,
        AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=order.addresses["kafka"],
            group_id="runners",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=1000,
        ) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(_claim(redis, producer, consumer))
        if order.in_flight:
            tasks.create_task(_consume_freely(redis, consumer, handle, order.in_flight))
        else:
            tasks.create_task(_consume(redis, consumer, handle))


async def _claim(redis: Any, producer: Any, consumer: Any) -> None:
    script = redis.register_script(CLAIM)
    while True:
        now = time.time()
        claimed: Any = None
        if not await _is_behind(consumer):
            claimed = await script([DUE, MESSAGES], [now, CLAIMED_AT_ONCE, now + LEASE_SECONDS])
        if not claimed:
            await asyncio.sleep(POLL_SECONDS)
            continue
        ids, messages = claimed
        sent = [await producer.send(TOPIC, message, key=name) for name, message in zip(ids, messages, strict=True)]
        await asyncio.gather(*sent)


async def _is_behind(consumer: Any) -> bool:
    """Say whether more waits in the topic than leases would bear."""
    lag = 0
    for partition in consumer.assignment():
        end = consumer.highwater(partition)
        lag += end - await consumer.position(partition) if end else 0
    return lag > IN_FLIGHT_MAX


async def _consume(redis: Any, consumer: Any, handle: Handle) -> None:
    while True:
        fetched = await consumer.getmany(timeout_ms=200, max_records=CLAIMED_AT_ONCE)
        messages = [json.loads(record.value) for records in fetched.values() for record in records]
        if not messages:
            continue
        delays = await asyncio.gather(*(handle(message["id"], message["version"]) for message in messages))
        now = time.time()
        await _store(redis, [(message, now + delay) for message, delay in zip(messages, delays, strict=True)])
        await consumer.commit(_next_offsets(fetched))


async def _store(redis: Any, ended: list[tuple[dict[str, Any], float]]) -> None:
    """Store messages whose calls have ended, each with its next due time."""
    for message, _ in ended:
        message["version"] += 1
    async with redis.pipeline() as pipe:
        pipe.hset(MESSAGES, mapping={message["id"]: json.dumps(message) for message, _ in ended})
        pipe.zadd(DUE, {message["id"]: due for message, due in ended})
        await pipe.execute()


async def _consume_freely(redis: Any, consumer: Any, handle: Handle, in_flight: int) -> None:
    """Run each message by itself, so that a slow call holds up no other; a dead process's leases run out."""
    slots = asyncio.Semaphore(in_flight)
    ended: list[tuple[dict[str, Any], float]] = []

    async def run(message: dict[str, Any]) -> None:
        delay = await handle(message["id"], message["version"])
        ended.append((message, time.time() + delay))
        slots.release()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_store_often(redis, ended))
        while True:
            fetched = await consumer.getmany(timeout_ms=200, max_records=CLAIMED_AT_ONCE)
            for record in [record for records in fetched.values() for record in records]:
                await slots.acquire()
                tasks.create_task(run(json.loads(record.value)))
            if fetched:
                await consumer.commit(_next_offsets(fetched))


async def _store_often(redis: Any, ended: list[tuple[dict[str, Any], float]]) -> None:
    while True:
        await asyncio.sleep(STORE_SECONDS)
        if some := ended[:]:
            ended.clear()
            await _store(redis, some)


def _next_offsets(fetched: dict[Any, Any]) -> dict[Any, int]:
    return {partition: records[-1].offset + 1 for partition, records in fetched.items() if records}
