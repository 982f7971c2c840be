"""How scenarios fill packs: the same messages for the bare pack and for dormice, and the wait until all are asleep."""

import asyncio
import hashlib
import importlib
import random
import resource
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from temporalio.client import Client

from bench.bare_pack import BareMessage, start_bare_packs
from bench.harness import ClusterServer, database_bytes
from bench.pack_spread import ROOM, count_full_packs
from bench.worker_process import Order
from shared.messages.encoding import SIZE_MAX, Pack
from shared.messages.envelope import Envelope
from shared.messages.json_value import encode_json
from shared.messages.placement import PACK_WORKFLOW, Layout
from shared.settings import Settings
from spark.tasks.chunks import SortedChunks
from spark.tasks.placement import Placement
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from starter.starting.chunks import Chunk
from starter.starting.receipts import ChunkReceipts, StartOutcome
from starter.starting.start_request import EntryColumns

_arrow: Any = importlib.import_module("pyarrow")  # it has no type stubs
_np: Any = importlib.import_module("numpy")

HOUR = 3600.0
DAY = 24 * HOUR
SPREAD = 0.5
"""Delays differ by up to this share of themselves."""

PAYLOAD_BYTES = 60
URL = "https://example.org/"
PLACED_AT_ONCE = 100_000
NO_OTHERS: dict[str, Any] = {}

PATIENCE_SECONDS = 600.0
TAKEN_IN_PER_SECOND = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What to fill: `count` messages in packs of about `size`, that come back every `delay` seconds.

    They are due first between `due_in` and `due_in + due_spread` seconds from now. `coalesce` is seconds too. The
    prefix is the kind of packed ones, and the prefix of task queues unless several kinds share `queues`. The first
    message has the number `first`.
    """

    prefix: str
    queues: str = ""
    first: int = 0
    count: int
    size: int
    delay: float
    due_in: float = 0.0
    due_spread: float = 0.0
    coalesce: float = 0.0
    encoding: str = "pack"

    @property
    def numbers(self) -> range:
        """Each message's number, with which its id ends."""
        return range(self.first, self.first + self.count)

    @property
    def packs(self) -> int:
        """Give how many packs there are."""
        return count_full_packs(self.count, self.size)

    def payload(self, number: int) -> dict[str, Any]:
        """Give a payload of exactly 60 bytes of JSON."""
        room = PAYLOAD_BYTES - len(encode_json({"delay": self.delay, "url": URL}))
        return {"delay": self.delay, "url": f"{URL}{_digits(number)[:room]}"}

    def first_due(self, now: float) -> float:
        """Give a first due time by chance."""
        return now + self.due_in + self.due_spread * random.random()

    def envelopes(self) -> Iterator[tuple[None, Envelope]]:
        """Give the messages as a sender does; of kind PREFIX where they are packed, so that kinds have a size each."""
        now = time.time()
        for number in self.numbers:
            due = datetime.fromtimestamp(self.first_due(now), UTC) if self.due_in or self.due_spread else None
            kind = self.prefix if self.encoding == "pack" else "bench"
            tolerance_seconds = self.coalesce if due else 0.0
            yield (
                None,
                Envelope(
                    kind=kind,
                    id=f"{self.prefix}-{number}",
                    lane="short",
                    scheduled_at=due,
                    tolerance_seconds=tolerance_seconds,
                    payload=self.payload(number),
                ),
            )

    def sort_by_pack(self, packs: int = 0) -> list[Any]:
        """Give the numbers of each pack's messages, as arrays of numpy; there may be more packs than at the start."""
        packs = packs or self.packs
        places = Placement({self.prefix: packs})
        found: list[Any] = []
        for first in range(0, self.count, PLACED_AT_ONCE):
            ids = [f"{self.prefix}-{number}" for number in self.numbers[first : first + PLACED_AT_ONCE]]
            found.append(places.find(_arrow.array([self.prefix] * len(ids)), _arrow.array(ids)).to_numpy())

        indexes = _np.concatenate(found)
        order = _np.argsort(indexes, kind="stable").astype(_np.int32) + self.first
        return _np.split(order, _np.cumsum(_np.bincount(indexes, minlength=packs))[:-1])

    def chunks(self, layout: Layout, numbers_by_pack: Iterable[Any]) -> Iterator[Chunk[str]]:
        """Give the messages of `envelopes` pack by pack, encoded from columns as a task of Spark does it."""
        now = time.time()
        chunks = SortedChunks()
        head = encode_json({"delay": self.delay, "url": URL}).decode().removesuffix('"}')
        room = PAYLOAD_BYTES - len(head) - len('"}')

        for index, numbers in enumerate(numbers_by_pack):
            some = numbers.tolist()
            columns = EntryColumns(
                ids=[f"{self.prefix}-{number}" for number in some],
                scheduled_at=[round(self.first_due(now) * 1e6) for _ in some],
                tolerances=[self.coalesce] * len(some),
                payloads=[f'{head}{_digits(number)[:room]}"}}' for number in some],
                others=[NO_OTHERS] * len(some),
            )
            yield from chunks.add(layout, index, columns)

        yield from chunks.take_last()

    def bare_packs(self) -> Iterator[list[BareMessage]]:
        """Give the same messages as states of bare packs."""
        now = time.time()
        for first in range(0, self.count, self.size):
            numbers = self.numbers[first : first + self.size]
            yield [[round(self.first_due(now), 3), f"{self.prefix}-{n}", self.payload(n)] for n in numbers]


def _digits(number: int) -> str:
    """Give digits as of a hash: what counts up would be compressed to nothing, unlike most people's payloads."""
    return hashlib.blake2b(str(number).encode(), digest_size=32).hexdigest()


async def start_packs(client: Client, filling: Filling, envelopes: Iterable[tuple[None, Envelope]]) -> float:
    """Start the messages with a bulk starter in this process; gives the starts per second.

    The starter holds all back until it has seen all: each pack then gets its messages in as few calls as they fit in.
    """
    starter = build_starter(client, filling)
    began = time.monotonic()
    async for receipt in starter.start_all(envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt
    return filling.count / (time.monotonic() - began)


async def start_sorted(client: Client, filling: Filling, numbers_by_pack: Sequence[Any] = ()) -> "Sent":
    """Start messages that are ready by pack, with a bulk starter in this process, which streams them."""
    starter = build_starter(client, filling)
    numbers = numbers_by_pack or filling.sort_by_pack()
    layout = await starter.find_layout(filling.prefix, "short")
    assert layout is not None
    began = time.monotonic()
    cpu = time.process_time()
    failed = 0
    async for receipts in starter.start_groups(filling.chunks(layout, numbers)):
        assert isinstance(receipts, ChunkReceipts)
        outcomes = {outcome for outcome, _ in receipts.others.values()}
        assert outcomes <= {StartOutcome.FAILED}, outcomes
        failed += len(receipts.others)

    return Sent(time.monotonic() - began, time.process_time() - cpu, failed)


class Sent(NamedTuple):
    """How messages were sent: the seconds it took, this process's processor seconds, and how many starts failed."""

    seconds: float
    cpu_seconds: float
    failed: int

    def describe(self, count: int, server_cpu: float) -> str:
        """Say how `count` messages were sent, for which the server needed `server_cpu` seconds."""
        each = f"{self.cpu_seconds / count * 1e6:.1f} us a message here, {server_cpu / count * 1e6:.1f} in the server"
        maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        return (
            f"filled in {self.seconds:,.0f} s ({count / self.seconds:,.0f}/s, {each}); at most {maximum:,.0f} MB here"
        )


def build_starter(client: Client, filling: Filling, room: int | None = None, *, revises: bool = False) -> BulkStarter:
    """Make a filling's bulk starter; it holds back all of it or `room` messages, and `revises` what it is delivered."""
    settings = Settings(
        task_queue_prefix=filling.queues or filling.prefix,
        pack_room=room or filling.count + 1,
    )
    pack = Pack(
        packs=filling.packs,
        size=min(round(filling.size * ROOM), SIZE_MAX),
        coalesce=timedelta(seconds=filling.coalesce),
    )
    encodings = {filling.prefix: pack} if filling.encoding == "pack" else {}

    return BulkStarter(client, settings, encodings=encodings, revises=revises)


async def start_bare(client: Client, filling: Filling, packs: Iterable[list[BareMessage]], *, wakes: int) -> float:
    """Start the same messages in bare packs; gives the starts per second."""
    began = time.monotonic()
    await start_bare_packs(
        client, f"{filling.prefix}-short", filling.prefix, packs, coalesce=filling.coalesce, wakes=wakes
    )
    return filling.count / (time.monotonic() - began)


async def wait_until_asleep(client: Client, filling: Filling) -> None:
    """Wait until the index knows when every pack of the filling is due: it has taken its messages in."""
    query = f"WorkflowType = '{PACK_WORKFLOW}' AND Kind = '{filling.prefix}' AND DueAt IS NOT NULL"
    async with asyncio.timeout(PATIENCE_SECONDS + filling.count / TAKEN_IN_PER_SECOND):
        while (await client.count_workflows(query)).count < filling.packs:  # noqa: ASYNC110 — the server is asked
            await asyncio.sleep(0.5)


async def settled_bytes(server: EmbeddedServer) -> int:
    """Give the size of the database once its write-ahead log has been worked in, as far as the server lets it."""
    if isinstance(server, ClusterServer):
        return database_bytes(server)

    def work_in() -> None:
        database = sqlite3.connect(server.options.database, timeout=10)
        try:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            database.close()

    await asyncio.to_thread(work_in)
    return database_bytes(server)


def to_order(filling: Filling, **changes: Any) -> Order:
    """Order a worker for a filling, to be stopped when it has been seen enough; `changes` replace its fields."""
    what = "pack" if filling.encoding == "pack" else "dormice"
    order = Order(
        what=what,
        prefix=filling.queues or filling.prefix,
        seconds=HOUR,
        warmup=0,
        spread=SPREAD,
        tolerance=filling.coalesce,
    )
    return replace(order, **changes)
