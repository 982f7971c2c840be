"""Packed messages as rows: ranges of packs, each read by one task, several packs at once."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client

from shared.messages.placement import workflow_id
from shared.settings import Settings
from starter.steering.packs.packs import Packs
from starter.steering.packs.queries import Pack
from starter.steering.packs.reader import KNOWN, iterate_packs
from starter.steering.selection import Selection
from starter.steering.status.listing import ListedMessage

ROWS_AT_ONCE = 20_000  # to save memory, and not to send each pack alone

Accepted = Mapping[str, Collection[str]]
"""The values that conditions leave for a column; a column without conditions is missing."""


@dataclass(frozen=True, slots=True)
class PackPartition:
    """The packs that one task reads, and the requests that it sends them."""

    packs: Sequence[Pack]
    requests: Sequence[dict[str, Any]]


async def cut_packs(client: Client, settings: Settings, accepted: Accepted, parts: int) -> list[PackPartition]:
    """Cut the packs that may hold accepted messages into at most `parts` ranges of about as many packs."""
    states = accepted.get("state")
    requests = [request for request in KNOWN if states is None or request.get("state") in states]
    if states is not None:
        requests += [{"state": state} for state in ("active", "paused", "parked") if state in states]
    if not requests:
        return []

    narrow = "parked" if requests == [{"state": "parked"}] else None  # the index knows which packs have such messages
    asker = Packs(client, settings)
    packs = list[Pack]()

    for kind in accepted.get("kind", (None,)):
        packs += [pack async for pack in asker.find_packs(Selection(kind=kind, state=narrow))]

    size = -(-len(packs) // parts) or 1
    return [PackPartition(packs[first : first + size], requests) for first in range(0, len(packs), size)]


def read_packed(
    runner: asyncio.Runner, client: Client, settings: Settings, part: PackPartition, accepted: Accepted
) -> Iterator[list[tuple[Any, ...]]]:
    """Give the rows of a range, many at a time; raises PackNotServed for a pack that only an absent worker knows."""
    lanes = accepted.get("lane")
    reading = Packs(client, settings).reader.read_each(iterate_packs(part.packs), part.requests)
    rows: list[tuple[Any, ...]] = []
    while (found := runner.run(_next(reading))) is not None:
        (_, index), messages = found
        rows += [_to_row(message, index) for message in messages if lanes is None or message.lane in lanes]
        if len(rows) >= ROWS_AT_ONCE:
            yield rows
            rows = []

    yield rows


async def _next(reading: Any) -> tuple[Pack, list[ListedMessage]] | None:
    return await anext(reading, None)


def _to_row(message: ListedMessage, index: int) -> tuple[Any, ...]:
    name = workflow_id(message.kind, message.id)
    moments = message.due_at, message.earliest_at
    return (name, message.kind, message.id, index, message.lane, message.state, *moments, None, None, None)
