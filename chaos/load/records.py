"""Records: sends new messages, revisions and tombstones to the bridge during a run, and reads what it has committed."""

import asyncio
import importlib
import json
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from chaos.ledger import Ledger, What
from chaos.load.groups import GROUPS, NUMBER_OF, PACKED_RECORDS, RECORDS, Group
from chaos.load.workload import Sizes, make_envelope
from shared.kafka.safe_producer import open_admin
from shared.messages.placement import workflow_id

TOPIC = "chaos"
PARTITIONS = 4
RECORDS_A_SECOND = 4
TOMBSTONE_SHARE = 0.04

Message = tuple[int, int]
"""A message's group and number."""


class Records:
    """Sends records, and writes to the ledger which were sent and which the bridge has committed."""

    def __init__(self, address: str, producer: Any, ledger: Ledger, sizes: Sizes, seed: int) -> None:
        self._address = address
        self._producer = producer
        self._ledger = ledger
        self._draw = random.Random(seed)
        self._rate = RECORDS_A_SECOND * sizes.load
        self._messages = [(RECORDS, number) for number in range(sizes.records)]
        self._messages += [(PACKED_RECORDS, number) for number in range(sizes.packed_records)]
        self._marks: dict[Message, int] = {}
        self._sent: list[tuple[What, Message, int, int, int]] = []
        """Event, message, mark, partition and offset of the records that the broker has."""
        self.unsure = 0
        """Number of records for which it is unknown whether the broker has them."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Send a record to each message, and then to random messages, until `stopping` is set."""
        for group, number in self._messages:
            if stopping.is_set():
                return
            await self._send(group, number, is_tombstone=False)
            await asyncio.sleep(0.2 / self._rate)
        while not stopping.is_set():
            group, number = self._draw.choice(self._messages)
            await self._send(group, number, is_tombstone=self._draw.random() < TOMBSTONE_SHARE)
            await asyncio.sleep(1 / self._rate)

    async def _send(self, group: Group, number: int, *, is_tombstone: bool) -> None:
        """Send one record, and wait until the broker has it, so that a message's records keep their order."""
        message = (NUMBER_OF[group.kind], number)
        name = workflow_id(group.kind, str(number)).encode()
        what = What.STOP_ACKNOWLEDGED
        value = None
        mark = self._marks.get(message, -1)

        if is_tombstone:
            self._ledger.append(What.STOP_SENT, *message, mark=max(mark, 0))
        else:
            what = What.START_ACKNOWLEDGED if mark < 0 else What.REVISION_ACKNOWLEDGED
            mark = self._marks[message] = mark + 1
            sent = What.START_SENT if mark == 0 else What.REVISION_SENT
            self._ledger.append(sent, *message, due=time.time(), mark=mark)
            envelope = make_envelope(group, number, mark).model_dump(mode="json", exclude_defaults=True)
            value = json.dumps(envelope).encode()

        try:
            written = await self._producer.send_and_wait(TOPIC, value, key=name)
        except importlib.import_module("aiokafka.errors").KafkaError:
            self.unsure += 1
            return

        self._sent.append((what, message, max(mark, 0), written.partition, written.offset))

    async def read_lag(self) -> int:
        """Count the records that the bridge has not committed yet."""
        committed = await self._read_committed()
        return sum(offset >= committed[partition] for *_, partition, offset in self._sent)

    async def note_committed(self) -> None:
        """Write an acknowledgement to the ledger for each record that the bridge has committed."""
        committed = await self._read_committed()
        for what, message, mark, partition, offset in self._sent:
            if offset < committed[partition]:
                self._ledger.append(what, *message, mark=mark)

    async def _read_committed(self) -> list[int]:
        kafka: Any = importlib.import_module("aiokafka")
        consumer = kafka.AIOKafkaConsumer(bootstrap_servers=self._address, group_id=TOPIC, enable_auto_commit=False)
        await consumer.start()
        try:
            partitions = [kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            return [await consumer.committed(partition) or 0 for partition in partitions]
        finally:
            await consumer.stop()


@asynccontextmanager
async def open_producer(address: str) -> AsyncGenerator[Any]:
    """Create the topic, and give an idempotent producer: a broker failure neither loses nor doubles a record."""
    async with open_admin({"bootstrap_servers": address}) as admin:
        new_topic: Any = importlib.import_module("aiokafka.admin").NewTopic
        await admin.create_topics([new_topic(TOPIC, PARTITIONS, 1)])

    producer: Any = importlib.import_module("aiokafka").AIOKafkaProducer(
        bootstrap_servers=address, enable_idempotence=True
    )
    await producer.start()

    try:
        yield producer
    finally:
        await producer.stop()


def is_by_record(group: int) -> bool:
    """Say whether a group's messages come through Kafka."""
    return GROUPS[group] in (RECORDS, PACKED_RECORDS)
