"""The bridge: a consumer of one partition that sends records to packs and commits offsets, and may be killed."""

import asyncio
import random
from collections.abc import Sequence
from typing import NamedTuple

from chaos.simulation.faults import Faults
from chaos.simulation.handlers import PACKED
from chaos.simulation.ledger.ledger import Ledger
from chaos.simulation.users.users import Users
from shared.messages.message import MessageState
from shared.messages.placement import pack_index
from shared.packs.entry import Entry, to_entry
from starter.bridge.offsets import Assignment, Partition
from starter.starting.chunks import Chunk
from starter.starting.receipts import StartOutcome

PARTITION = Partition("records", 0)
SOURCE = str(PARTITION)
READ_AT_ONCE = 4
REST_SECONDS = 0.5


class Record(NamedTuple):
    """One record of the topic, whose offset is its index; `revision` is the message's new revision, None stops it."""

    message_id: str
    revision: int | None


class Bridge:
    """The topic and its consumer group with one consumer; committed offsets survive each consumer."""

    def __init__(self, rng: random.Random, users: Users, faults: Faults, ledger: Ledger, pad: int) -> None:
        self._rng = rng
        self._users = users
        self._faults = faults
        self._ledger = ledger
        self._pad = "x" * pad
        self._loop = asyncio.get_running_loop()
        self._revisions: dict[str, int] = {}
        self._settled: set[int] = set()
        self.topic: list[Record] = []
        self.committed = 0

    async def produce(self, ids: Sequence[str], until: float) -> None:
        """Write records for random messages."""
        while self._loop.time() < until:
            await asyncio.sleep(self._rng.expovariate(1 / 4.0))
            message_id = self._rng.choice(ids)
            revision = self._revisions[message_id] = self._revisions.get(message_id, 0) + 1
            value = None if self._rng.random() < 0.1 else revision
            self.topic.append(Record(message_id, value))
            tracked = self._ledger.of(PACKED, message_id)
            tracked.sent += 1
            tracked.asking += 1  # never taken back: a repeated delivery may make the message due again

    async def consume(self) -> None:
        """Run one consumer after the other, until cancelled."""
        while True:
            consumer = asyncio.create_task(self._consume())
            while not consumer.done():
                await asyncio.sleep(1.0)
                if self._faults.strikes("bridge killed"):
                    self._ledger.note("the bridge is killed")
                    consumer.cancel()
                    break
            await asyncio.wait([consumer])
            if not consumer.cancelled():
                consumer.result()

    async def _consume(self) -> None:
        assignment = Assignment()
        epoch = assignment.assign([PARTITION])

        offsets = assignment.find(PARTITION)
        if offsets is None:
            return

        position = self.committed
        async with asyncio.TaskGroup() as under_way:
            while True:
                batch = range(position, min(position + READ_AT_ONCE, len(self.topic)))
                for offset in batch:
                    offsets.received(offset, self._loop.time())
                position = batch.stop
                if batch and offsets.outstanding <= 3 * READ_AT_ONCE:
                    under_way.create_task(self._deliver(assignment, epoch, list(batch)))
                elif batch:
                    await self._deliver(assignment, epoch, list(batch))
                self._commit(assignment)
                await asyncio.sleep(self._rng.uniform(0, 2 * REST_SECONDS))

    async def _deliver(self, assignment: Assignment, epoch: int, batch: list[int]) -> None:
        """Send records to their packs until each has its receipt; records of one message go one after the other."""
        waiting = list(batch)
        while waiting:
            now: list[int] = []
            for offset in waiting:  # like the real record scheduler, at most one record of a message at a time
                if self.topic[offset].message_id not in {self.topic[o].message_id for o in now}:
                    now.append(offset)
            await asyncio.gather(*(self._hand_over(assignment, epoch, offset) for offset in now))
            waiting = [offset for offset in waiting if assignment.is_outstanding(PARTITION, epoch, offset)]

    async def _hand_over(self, assignment: Assignment, epoch: int, offset: int) -> None:
        record = self.topic[offset]
        layout = self._users.layout.current
        chunk: Chunk[str] = Chunk(layout, pack_index(record.message_id, layout.packs))
        chunk.add(record.message_id, self._to_entry(record, offset))
        tracked = self._ledger.of(PACKED, record.message_id)

        if record.revision is not None:
            tracked.is_stopped = False
            tracked.revisions_sent = max(tracked.revisions_sent, record.revision)
        else:
            tracked.may_be_over = True

        self._ledger.note(f"record {offset} for {record.message_id}: {record.revision}")
        times = 2 if self._faults.strikes("record delivered again") else 1
        for number in range(times):
            admission = self._users.senders.build_admission(revises=True)
            (receipt,) = await admission.admit(chunk, f"{epoch}:{offset}:{number}:{self._loop.time()}")
            self._ledger.note(
                f"record {offset} for {record.message_id} came to: {receipt.outcome} {receipt.reason[:60]}"
            )
            if receipt.outcome is StartOutcome.FAILED:
                return
            self._note_receipt(record, offset, receipt.outcome)

        assignment.acknowledged(PARTITION, epoch, offset)

    def _note_receipt(self, record: Record, offset: int, outcome: StartOutcome) -> None:
        tracked = self._ledger.of(PACKED, record.message_id)
        self._settled.add(offset)
        if outcome in (StartOutcome.STARTED, StartOutcome.REVISED):
            tracked.is_acknowledged = True
            tracked.revision = max(tracked.revision, record.revision or 0)
            tracked.offsets[SOURCE] = max(offset, tracked.offsets.get(SOURCE, -1))

    def _commit(self, assignment: Assignment) -> None:
        for position in assignment.to_commit().values():
            for offset in range(self.committed, position):
                if offset not in self._settled:
                    self._ledger.violate(f"offset {position} is committed, and record {offset} was never accepted")
            self.committed = max(self.committed, position)
            assignment.committed({PARTITION: position})

    def _to_entry(self, record: Record, offset: int) -> Entry:
        layout = self._users.layout.current
        now = self._ledger.now
        state = MessageState(PACKED, record.message_id, layout.lane, now, now, sources={SOURCE: offset})
        if record.revision is None:
            return to_entry(state._replace(ended="stopped"), layout.lane)
        return to_entry(state._replace(payload={"rev": record.revision, "pad": self._pad}), layout.lane)
