"""The workload: starts messages that come back during the whole run, and then messages of one cycle all the time."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client

from chaos.ledger import Ledger, What
from chaos.load.groups import GROUPS, MEDIUM, NUMBER_OF, ONCE, PACKED, PACKED_MEDIUM, SOLO, Group
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome

ONCE_EVERY_SECONDS = 1.0
ONCE_AT_ONCE = 3
UNDER_WAY_MAX = 50
SAMPLE_MIN = 32
"""Least number of messages of each kind, so that some are steered and some revised."""

FIRST_SECONDS = 30
"""Time over which the first runs of the messages are spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The number of messages of each kind."""

    solo: int = 150
    medium: int = 100
    packed: int = 7_000
    packed_medium: int = 300
    records: int = 60
    packed_records: int = 400
    spark: int = 1200
    load: float = 1.0
    """Share of the usual rate at which records and messages of one cycle are sent."""

    def scale(self, share: float) -> "Sizes":
        """Give a share of each number, but SAMPLE_MIN messages of a kind at least."""
        counts = {name: count for name, count in asdict(self).items() if name != "load"}
        return Sizes(**{name: max(SAMPLE_MIN, round(count * share)) for name, count in counts.items()}, load=share)


class Starts:
    """Starts messages, and writes to the ledger what was sent and what was acknowledged."""

    def __init__(self, client: Client, settings: Settings, ledger: Ledger) -> None:
        self._ledger = ledger
        encodings = {group.kind: group.encoding for group in GROUPS if group.encoding is not None}
        self._starter = BulkStarter(client, settings, encodings=encodings)
        self._under_way: set[asyncio.Task[None]] = set()
        self.refused: list[str] = []

    async def start_initial(self, sizes: Sizes) -> None:
        """Start all messages that come back during the whole run."""
        counts = {SOLO: sizes.solo, MEDIUM: sizes.medium, PACKED: sizes.packed, PACKED_MEDIUM: sizes.packed_medium}
        await self._start(
            ((group, number) for group, count in counts.items() for number in range(count)), is_spread=True
        )

    async def run(self, stopping: asyncio.Event, load: float) -> None:
        """Start messages of one cycle until `stopping` is set, then wait for the starts in flight.

        `load` is the share of the usual rate, which is a few a second.
        """
        number = 0
        while not stopping.is_set():
            if len(self._under_way) < UNDER_WAY_MAX:
                numbers = range(number, number + ONCE_AT_ONCE)
                number += ONCE_AT_ONCE
                task = asyncio.create_task(self._start([(ONCE, one) for one in numbers]))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(ONCE_EVERY_SECONDS / load)
        await asyncio.gather(*self._under_way)

    async def _start(self, wanted: Iterable[tuple[Group, int]], *, is_spread: bool = False) -> None:
        def send() -> Iterator[tuple[tuple[int, int], Envelope]]:
            for group, number in wanted:
                seconds = number % FIRST_SECONDS if is_spread else 0
                due = datetime.now(UTC) + timedelta(seconds=seconds)
                self._ledger.append(What.START_SENT, NUMBER_OF[group.kind], number, due=due.timestamp())
                envelope = make_envelope(group, number, due=due) if is_spread else make_envelope(group, number)
                yield (NUMBER_OF[group.kind], number), envelope

        async for receipt in self._starter.start_all(send()):
            if receipt.outcome is StartOutcome.STARTED:
                self._ledger.append(What.START_ACKNOWLEDGED, *receipt.tag)
            else:  # not acknowledged, so there is no promise to check
                self.refused.append(f"{receipt.workflow_id}: {receipt.outcome.value} {receipt.reason}")


def make_envelope(group: Group, number: int, mark: int = 0, due: datetime | None = None) -> Envelope:
    """Give a message that is due at `due`, or at once if that is None."""
    payload = {"mark": mark}
    return Envelope(kind=group.kind, id=str(number), lane=group.lane, scheduled_at=due, payload=payload)


def count_messages(sizes: Sizes) -> Mapping[str, int]:
    """Give the number of messages of each group that comes back, by the group's name."""
    return {
        "solo on short": sizes.solo,
        "solo on medium": sizes.medium,
        f"packed on short, in {PACKED.packs} packs at first": sizes.packed,
        f"packed on medium, in {PACKED_MEDIUM.packs} packs": sizes.packed_medium,
        "solo on short, by Kafka": sizes.records,
        "packed on short, by Kafka": sizes.packed_records,
        "packed on short, by Spark": sizes.spark,
    }
