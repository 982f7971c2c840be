"""Lists and counts of messages: those with a workflow of their own by the index, the others by their packs."""

import math
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from temporalio.client import Client

from shared.messages.message import ENDS
from shared.temporal.connect import translate_rpc_errors
from starter.steering.packs.packs import Packs
from starter.steering.packs.reader import PassOver
from starter.steering.selection import Selection
from starter.steering.status.listing import ListedMessage, to_listed
from starter.steering.stored.memo_counts import MessageCount

PAGE_SIZE = 500


class MessageLists:
    """Lists and counts the messages of a selection, whatever workflows they live in."""

    def __init__(self, client: Client, packs: Packs) -> None:
        self._client = client
        self._packs = packs

    async def list(
        self, selection: Selection, limit: int | None = None, pass_over: PassOver | None = None
    ) -> AsyncIterator[ListedMessage]:
        """List messages, see `Control.list`."""
        left = math.inf if limit is None else limit
        with translate_rpc_errors():
            async for execution in self._client.list_workflows(selection.to_query(), limit=limit, page_size=PAGE_SIZE):
                left -= 1
                yield await to_listed(execution)

        if left > 0:
            async for listed in self._packs.iterate(selection, pass_over):
                yield listed
                left -= 1
                if left <= 0:
                    return

    async def list_known(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        """Give (id, state) of each message of a kind, see `Control.list_known`."""
        if await self._packs.layouts.find(kind) is not None:
            async for known in self._packs.iterate_known(kind):
                yield known
            return

        for state in (None, *ENDS):  # without a state, those that are alive
            async for listed in self.list(Selection(kind=kind, state=state)):
                yield listed.id, listed.state

    async def names(
        self, selection: Selection, keep: Callable[[ListedMessage], bool]
    ) -> AsyncIterator[tuple[str, str]]:
        """Give (kind, id) of each message that is kept, see `Control.names`."""
        async for listed in self.list(selection):
            if keep(listed):
                yield listed.kind, listed.id

    async def count(self, selection: Selection) -> int:
        """Count a selection, see `Control.count`."""
        return await self._count_solo(selection) + await self._packs.count(selection)

    async def estimate(self, selection: Selection) -> MessageCount:
        """Count a selection as exactly as is cheap, see `Control.estimate`."""
        packed = await self._packs.estimate(selection)
        return replace(packed, number=packed.number + await self._count_solo(selection))

    async def _count_solo(self, selection: Selection) -> int:
        with translate_rpc_errors():
            return (await self._client.count_workflows(selection.to_query())).count
