"""The work that every contestant does: some I/O for a message, then a delay that only the handler knows."""

import asyncio
import json
import math
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Self

from bench.worker_process import Measured

Handle = Callable[[str, int], Awaitable[float]]
"""Does the work for a message, by its id and version, and gives the seconds until it is to come back."""

Fresh = list[tuple[str, float]]
"""Ids of new messages, with the moment (seconds since the epoch) at which each is due."""

Send = Callable[[Fresh], Awaitable[None]]

DUE_TOGETHER = 20
"""So many messages are due first at one moment when they are spread: procrastinate stores only such together."""

FRESH_AHEAD = 1.0
"""A fresh message is sent so many seconds before it is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a process of a contestant has to do; its servers' addresses are by name.

    Messages are due first at `due_at` (seconds since the epoch; 0: now), and come back after `delay`, at least and at
    most so many seconds. With `ledger`, the calls are noted in that file; otherwise a window of `seconds` is measured
    after `warmup`. Whoever sends fresh messages, sends `fresh_a_second` from the moment `fresh_from` on. With `cached`
    a worker on Temporal keeps so many workflows in memory, and its packs continue as new less often.

    With `is_spread`, first due times are such that as many are due in each second as later, when all have come back.
    `tolerance` is how many seconds late a message may be, `in_flight` how many calls a process has at once (0: as many
    as the contestant has by itself, batch by batch), and `timeout` cuts off a call of a contestant that does so itself.
    """

    contestant: str
    addresses: Mapping[str, str]
    count: int
    delay: tuple[float, float]
    io_seconds: float = 0.005
    seconds: float = 0.0
    warmup: float = 0.0
    ledger: str = ""
    due_at: float = 0.0
    fresh_a_second: int = 0
    fresh_from: float = 0.0
    cached: int = 0
    is_spread: bool = False
    tolerance: float = 1.0
    in_flight: int = 0
    timeout: float = 0.0

    def write(self) -> str:
        """Give the order as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Self:
        """Take an order from JSON."""
        return cls(**json.loads(text))

    @property
    def sqlalchemy_url(self) -> str:
        """Where PostgreSQL is, for whoever reaches it through SQLAlchemy."""
        return self.addresses["postgres"].replace("postgresql:", "postgresql+psycopg:")

    @property
    def first_due(self) -> datetime:
        """When all messages are due first."""
        return datetime.fromtimestamp(self.due_at or time.time(), UTC)

    def first_dues(self) -> list[float]:
        """Give when each message is due first, in seconds since the epoch."""
        first = self.first_due.timestamp()
        if not self.is_spread:
            return [first] * self.count

        return [first + rest for rest in _spread_rests(self.count, self.delay)]

    @property
    def fresh_messages(self) -> "FreshMessages":
        """What whoever sends fresh messages has to send."""
        return FreshMessages(self.fresh_a_second, self.fresh_from)

    def message_ids(self) -> list[str]:
        """Name the messages."""
        return [f"message-{number:06}" for number in range(self.count)]

    def payload(self, message_id: str) -> dict[str, str]:
        """Give what a message carries, some 60 bytes of JSON."""
        return {"url": f"https://example.org/articles/{message_id}.html"}


@dataclass(frozen=True, slots=True)
class FreshMessages:
    """Messages of which so many a second are sent, from the moment `begin` (seconds since the epoch) on."""

    a_second: int
    begin: float

    async def each_second(self) -> AsyncIterator[Fresh]:
        """Give those of each second when they are to be sent, for ever."""
        for second in count():
            await asyncio.sleep(self.begin + second - time.time())
            numbers = range(second * self.a_second, (second + 1) * self.a_second)
            yield [(f"fresh-{number:06}", self.find_due(number)) for number in numbers]

    def find_due(self, number: int) -> float:
        """Give the moment at which one of them is due, in seconds since the epoch."""
        return self.begin + FRESH_AHEAD + number / self.a_second


def _spread_rests(messages: int, delay: tuple[float, float]) -> list[float]:
    """Give how many seconds each message waits at first, so that as many are due in each second as later."""
    blocks = math.ceil(messages / DUE_TOGETHER)
    rests = [_find_rest((block + 0.5) / blocks, delay) for block in range(blocks)]
    random.Random(messages).shuffle(rests)
    return [rests[number // DUE_TOGETHER] for number in range(messages)]


def _find_rest(share: float, delay: tuple[float, float]) -> float:
    """Give the seconds of waiting that are left to at most this share of the messages, at any moment later."""
    shortest, longest = delay
    passed = share * (shortest + longest) / 2
    if passed <= shortest:
        return passed
    spread = longest - shortest
    return longest - math.sqrt(spread * spread - 2 * spread * (passed - shortest))


class Work:
    """Does what an order says, and counts."""

    def __init__(self, order: Order) -> None:
        self._delay = order.delay
        self._io_seconds = order.io_seconds
        self._file = os.open(order.ledger, os.O_CREAT | os.O_APPEND | os.O_WRONLY) if order.ledger else None
        self.calls = 0

    async def handle(self, message_id: str, version: int) -> float:
        """Do the I/O, and tell when the message is to come back."""
        self.calls += 1
        if self._file is not None:
            os.write(self._file, f"{time.time():.3f} {message_id} {version}\n".encode())
        await asyncio.sleep(self._io_seconds)
        return random.uniform(*self._delay)

    async def measure(self, warmup: float, seconds: float) -> Measured:
        """Measure this process for a window."""
        await asyncio.sleep(warmup)
        calls = self.calls
        cpu = time.process_time()
        began = time.monotonic()
        await asyncio.sleep(seconds)
        return Measured(self.calls - calls, time.monotonic() - began, time.process_time() - cpu)


def read_ledger(path: Path, begin: float = 0.0, end: float = math.inf) -> dict[str, Counter[int]]:
    """Count the calls between two moments (seconds since the epoch), by message and version."""
    found = defaultdict[str, Counter[int]](Counter)
    for line in path.read_text().splitlines():
        at, message_id, version = line.split()
        if begin <= float(at) < end:
            found[message_id][int(version)] += 1
    return dict(found)
