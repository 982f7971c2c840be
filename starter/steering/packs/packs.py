"""Packs: where they are, signals for some messages of one, and lists and counts of what many hold."""

import asyncio
import contextlib
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError

from shared.errors import PackNotServed, RetryLater, StandsStill
from shared.messages.message import ENDS
from shared.messages.placement import Layout, pack_of, pack_workflow_id
from shared.messages.signals import SIGNAL_NAMES, Signal, write_steering
from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import CALL_TIMEOUT, is_missing, translate_rpc_error, translate_rpc_errors
from starter.starting.layouts import Layouts
from starter.starting.queries import HistoryRoom
from starter.steering.packs.queries import PATIENCE_SECONDS, Pack, PackQueries
from starter.steering.packs.reader import PackReader, PassOver
from starter.steering.selection import Selection
from starter.steering.status.listing import ListedMessage
from starter.steering.stored.memo_counts import MemoCounts, MessageCount, read_memo_counts

ASKED_MAX = 200
ASK_SECONDS = 10.0
"""Up to so many packs are asked for exact counts if that takes no longer; more are counted by their memos."""


class HistoryFull(RetryLater):
    """A pack does not answer, and its history has no room for another signal: nothing was sent."""


class Packs:
    """Signals packs, and lists and counts their messages.

    Raises PackNotServed within seconds if no worker serves a pack, StandsStill if its task fails.
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._history = HistoryRoom(client, settings)
        self.layouts = Layouts(client, settings)
        self.queries = PackQueries(client, settings, self._history)
        self.reader = PackReader(client, self.queries)

    async def steer(self, layout: Layout, index: int, ids: list[str], signal: Signal) -> list[str]:
        """Send a signal for messages of a pack; returns the ids not alive in it. At PackNotServed the server has it.

        Raises HistoryFull, and sends nothing, when the pack does not answer and its history has no room.
        """
        if obstacle := await self._history.find_obstacle(layout, index):
            raise HistoryFull(obstacle)

        token = uuid.uuid4().hex
        handle = self._client.get_workflow_handle(pack_workflow_id(layout.kind, index))

        try:
            wire = write_steering(ids, signal, token)
            await handle.signal(SIGNAL_NAMES[type(signal)], wire, rpc_timeout=CALL_TIMEOUT)
        except RPCError as exc:
            if is_missing(exc):
                return list(ids)
            raise translate_rpc_error(exc) from exc

        return await self._find_missing(layout, index, token, ids)

    async def _find_missing(self, layout: Layout, index: int, token: str, ids: list[str]) -> list[str]:
        receipt = await self.queries.ask(layout, index, "receipt", token)
        missing: list[str] = [ids[position] for position in receipt["missing"]]
        for other, positions in receipt["moved"].items():
            missing += await self._find_missing(layout, int(other), token, [ids[position] for position in positions])
        return missing

    async def status(self, layout: Layout, index: int, message_id: str) -> dict[str, Any] | None:
        """Query the status and the last decisions of a message; None when the pack does not know it."""
        answer = await self.queries.ask(layout, index, "known", message_id)
        if (other := answer["moved_to"]) is None:
            return answer["status"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (found := await self.status(layout, other, message_id)) is None:
                if (await self.queries.ask(layout, index, "overview"))["strays"] == 0:
                    return await self.status(layout, other, message_id)
                await asyncio.sleep(backoff_seconds(1))

        return found

    async def iterate(self, selection: Selection, pass_over: PassOver | None = None) -> AsyncIterator[ListedMessage]:
        """List the packed messages of a selection, pack by pack, see `PackReader.read_each`."""
        requests = [selection.to_page_request()]
        async for _, messages in self.reader.read_each(self.find_packs(selection), requests, pass_over):
            for message in messages:
                yield message

    async def iterate_known(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        """Give (id, state) of each message of a packed kind, alive or remembered as finished, likewise."""
        async for known in self.reader.read_known(self.find_packs(Selection(kind=kind))):
            yield known

    async def count(self, selection: Selection) -> int:
        """Count the packed messages of a selection, by a query to every pack that may hold some."""
        return (await self._count_kinds(selection)).total()

    async def _count_kinds(self, selection: Selection) -> Counter[str]:
        async def count(pack: Pack) -> tuple[str, int]:
            answer = await self.queries.ask(*pack, "page", selection.to_page_request() | {"limit": 0})
            return pack[0].kind, answer["count"]

        found = Counter[str]()
        for kind, number in await asyncio.gather(*[count(pack) async for pack in self.find_packs(selection)]):
            found[kind] += number
        return found

    async def estimate(self, selection: Selection) -> MessageCount:
        """Count like `count` where few packs are to be asked and answer soon, else about, by the packs' memos.

        Finished messages are always asked for, because no memo counts them.
        """
        if selection.state in ENDS:
            return MessageCount(await self.count(selection))
        if await self.count_packs(selection) <= ASKED_MAX:
            asked = await self._count_in_time(selection)
            if asked is not None:
                return MessageCount(asked.total())

        return (await self.read_memos(selection)).count(selection)

    async def estimate_kinds(self, selection: Selection, states: Iterable[str]) -> dict[str, dict[str, MessageCount]]:
        """Count by kind and state likewise; the memos are read once, and finished messages are in none."""
        found = defaultdict[str, dict[str, MessageCount]](dict)
        memos: MemoCounts | None = None
        is_answering = True

        for state in states:
            part = replace(selection, state=state)
            asked = None
            if is_answering and await self.count_packs(part) <= ASKED_MAX:
                asked = await self._count_in_time(part)
                is_answering = asked is not None
            if asked is not None:
                counts = {kind: MessageCount(number) for kind, number in asked.items()}
            else:
                memos = memos or await self.read_memos(selection)
                counts = memos.count_kinds(part)
            for kind, count in counts.items():
                found[kind][state] = count

        return found

    async def _count_in_time(self, selection: Selection) -> Counter[str] | None:
        """Count by kind, None where packs do not answer soon."""
        with contextlib.suppress(PackNotServed, StandsStill, TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                return await self._count_kinds(selection)
        return None

    async def count_packs(self, selection: Selection) -> int:
        """Count the packs that may hold messages of a selection, in the index."""
        with translate_rpc_errors():
            return (await self._client.count_workflows(selection.to_pack_query(), rpc_timeout=CALL_TIMEOUT)).count

    async def read_memos(self, selection: Selection) -> MemoCounts:
        """Read the counts of the packs that may hold messages of a selection; no worker is needed."""
        return await read_memo_counts(self._client, selection, time.time())

    async def find_packs(self, selection: Selection) -> AsyncIterator[Pack]:
        """Give the packs that may hold messages of a selection; for one kind also those not in the index yet."""
        known = 0
        # the index can exclude packs: it knows which have parked messages, and when each is due next
        is_narrowed = selection.state == "parked" or selection.due_before is not None
        if selection.kind and not is_narrowed and (layout := await self.layouts.find(selection.kind)):
            known = layout.packs
            for index in range(known):
                yield layout, index

        with translate_rpc_errors():
            async for execution in self._client.list_workflows(selection.to_pack_query(), page_size=500):
                kind, index = pack_of(execution.id)
                layout = await self.layouts.find(kind)
                if layout is not None and index >= known:
                    yield layout, index
