"""Records of two kinds for bridges in trouble, and what the ledger of their handlers proves about them."""

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from aiokafka import AIOKafkaProducer

from examples.ledger import Ledger


@contextlib.asynccontextmanager
async def producing(address: str, **options: Any) -> AsyncGenerator[Any]:
    """Give a producer, which neither loses nor doubles a record when its broker goes away for a while."""
    producer: Any = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


class Flow:
    """Envelopes for a topic: a revision is a record for each message, with a payload that no other record has."""

    def __init__(self, producer: Any, topic: str, keys: Mapping[str, int]) -> None:
        """Take how many messages of which kind there are; their ids are no other flow's."""
        self._producer = producer
        self._topic = topic
        self._names = [(kind, f"{topic}-{kind}-{number}") for kind, count in keys.items() for number in range(count)]
        self.revisions = 0

    async def send(self) -> None:
        """Send a revision; all of it is at the broker when this returns."""
        sent: list[asyncio.Future[Any]] = []
        for kind, message_id in self._names:
            value = json.dumps({"kind": kind, "id": message_id, "payload": f"r{self.revisions}"}).encode()
            sent.append(await self._producer.send(self._topic, value, key=message_id.encode()))
        await asyncio.gather(*sent)
        self.revisions += 1

    async def run(self, stopping: asyncio.Event) -> None:
        """Send a revision a second until told to stop."""
        while not stopping.is_set():
            await self.send()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await stopping.wait()

    @property
    def newest(self) -> dict[str, str]:
        """What each message must end with."""
        return {message_id: f"r{self.revisions - 1}" for _, message_id in self._names}


class Noted:
    """What the handlers have noted of a topic's messages, each entry of the ledger read once."""

    def __init__(self, ledger: Ledger, topic: str) -> None:
        self._ledger = ledger
        self._topic = topic
        self._offset = self._calls = 0
        self._newest: dict[str, str] = {}
        self._versions: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    @property
    def newest(self) -> dict[str, str]:
        """The payload of each message's last call up to now."""
        self._read()
        return self._newest

    @property
    def calls(self) -> int:
        """How many calls have ended up to now."""
        self._read()
        return self._calls

    def _read(self) -> None:
        entries, self._offset = self._ledger.read(self._offset)
        for entry in entries:
            if entry.what == "again" and entry.id.startswith(f"{self._topic}-"):
                self._calls += 1
                self._newest[entry.id] = entry.note
                self._versions[entry.id, entry.note].add(entry.version)

    @property
    def doubled(self) -> set[tuple[str, str]]:
        """Records that acted twice: as many messages and payloads that were called for under two versions."""
        return {record for record, versions in self._versions.items() if len(versions) > 1}
