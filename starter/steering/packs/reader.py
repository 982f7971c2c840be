"""Pack reader: lists what packs hold, without a worker where the server has stored all of it."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from temporalio.client import Client

from shared.errors import PackNotServed, StandsStill
from shared.messages.message import ENDS
from shared.messages.placement import Layout, pack_workflow_id
from shared.temporal.connect import translate_rpc_errors
from starter.steering.packs.queries import Pack, PackBusy, PackQueries
from starter.steering.status.listing import ListedMessage, from_pack
from starter.steering.stored.read_ahead import read_ahead
from starter.steering.stored.stored_pack import StoredPack, read_stored

PAGE_SIZE = 1000
READ_AT_ONCE = 32
"""Packs that are read side by side, most of them without a worker."""

KNOWN: Sequence[dict[str, Any]] = ({}, *({"state": state} for state in ENDS))
"""Requests for all that a pack knows: those that are alive, and those that finished a while ago."""

Found = TypeVar("Found")
PassOver = Callable[[str], None]
"""Gets a sentence for each pack that can't be read, and lets the others be read."""


class PackReader:
    """Lists the messages of packs, alive and finished."""

    def __init__(self, client: Client, queries: PackQueries) -> None:
        self._client = client
        self._queries = queries

    async def read_each(
        self, packs: AsyncIterator[Pack], requests: Sequence[dict[str, Any]], pass_over: PassOver | None = None
    ) -> AsyncIterator[tuple[Pack, list[ListedMessage]]]:
        """Read packs side by side, and give the messages that any of the requests (to the query `page`) selects.

        A pack is read without its worker where the server has stored all of it. Busy ones come last, and are asked for
        as long as any of them answers. Raises PackNotServed for one that only a worker can tell of when none serves it,
        or when none of the busy ones answers any more; `pass_over` gets the sentence in place of that, and the pack is
        left out.
        """

        async def read(pack: Pack, is_patient: bool) -> list[ListedMessage]:  # noqa: FBT001 — called by one function
            try:
                messages = await self._list(pack, requests, is_patient=is_patient)
            except (PackNotServed, StandsStill) as exc:
                if pass_over is None or isinstance(exc, PackBusy):
                    raise
                pass_over(str(exc))
                return []
            return [from_pack(pack[0].kind, message) for message in messages]

        async for pack, messages in self._read_ahead(packs, read, pass_over):
            yield pack, messages

    async def read_known(self, packs: AsyncIterator[Pack]) -> AsyncIterator[tuple[str, str]]:
        """Give (id, state) of each message of packs, alive or remembered as finished, see `read_each`."""
        async for _, known in self._read_ahead(packs, self._list_known):
            for each in known:
                yield each

    async def read_page(self, pack: Pack, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Give what a request to the query `page` selects, without a worker where the server has stored all of it.

        Raises PackNotServed at once where no worker has polled for minutes, as far as the server remembers.
        """
        stored = await self._read_stored(pack)
        if stored.is_current:
            return stored.page(request)

        await self._queries.check_served(*pack)
        return (await self._queries.ask(*pack, "page", request))["messages"]

    async def list_ids(self, layout: Layout, index: int, state: str) -> set[str]:
        """Give the ids of the messages of a pack that are in a state."""
        return {message["id"] async for message in self._read_pages(layout, index, {"state": state})}

    async def _read_ahead(
        self,
        packs: AsyncIterator[Pack],
        read: Callable[[Pack, bool], Awaitable[list[Found]]],
        pass_over: PassOver | None = None,
    ) -> AsyncIterator[tuple[Pack, list[Found]]]:
        left = packs
        is_patient = False

        async def try_to_read(pack: Pack) -> list[Found] | PackBusy:
            try:
                return await read(pack, is_patient)
            except PackBusy as exc:
                return exc

        while True:
            busy = dict[Pack, PackBusy]()
            answered = 0
            async with contextlib.aclosing(read_ahead(left, try_to_read, READ_AT_ONCE)) as reading:
                async for pack, found in reading:
                    if isinstance(found, PackBusy):
                        busy[pack] = found
                    else:
                        answered += 1
                        yield pack, found
            if not busy:
                return
            if is_patient and not answered:
                _give_up(list(busy.values()), pass_over)
                return
            left = iterate_packs(busy)
            is_patient = True

    async def _list(self, pack: Pack, requests: Sequence[dict[str, Any]], *, is_patient: bool) -> list[dict[str, Any]]:
        stored = await self._read_stored(pack)
        if stored.is_current:
            return [message for request in requests for message in stored.list(request)]
        pages = [self._read_pages(*pack, request, is_patient=is_patient) for request in requests]
        return [message for page in pages async for message in page]

    async def _list_known(self, pack: Pack, is_patient: bool) -> list[tuple[str, str]]:  # noqa: FBT001 — as above
        stored = await self._read_stored(pack)
        if stored.knows_ids:
            return stored.list_known()
        pages = [self._read_pages(*pack, request, is_patient=is_patient) for request in KNOWN]
        return [(message["id"], message["state"]) for page in pages async for message in page]

    async def _read_stored(self, pack: Pack) -> StoredPack:
        with translate_rpc_errors():
            return await read_stored(self._client, pack_workflow_id(pack[0].kind, pack[1]))

    async def _read_pages(
        self, layout: Layout, index: int, request: dict[str, Any], *, is_patient: bool = True
    ) -> AsyncIterator[dict[str, Any]]:
        after = ""
        while True:
            wanted = request | {"after": after, "limit": PAGE_SIZE}
            page = await self._queries.ask(layout, index, "page", wanted, is_patient=is_patient)
            for message in page["messages"]:
                yield message
            if len(page["messages"]) < PAGE_SIZE:
                return
            after = page["messages"][-1]["id"]


def _give_up(busy: Sequence[PackBusy], pass_over: PassOver | None) -> None:
    if pass_over is None:
        raise busy[0]
    for exc in busy:
        pass_over(str(exc))


async def iterate_packs(packs: Iterable[Pack]) -> AsyncIterator[Pack]:
    """Give packs that are known already."""
    for pack in packs:
        yield pack
