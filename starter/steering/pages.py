"""Pages: a list of messages a page at a time, each with the cursor to the next; a page costs a bounded number of calls.

A pack that does not answer in time is left out, and the page says so.

The lists are the server's own: first messages with a workflow of their own, newest start first, then packs in the order
of the index, each by id. What moves in the index meanwhile may be missed or come twice.
"""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from temporalio.client import Client, WorkflowExecution

from shared.errors import GiveUp, PackNotServed, StandsStill
from shared.messages.json_value import decode_json, encode_json
from shared.messages.placement import pack_of, pack_workflow_id
from shared.temporal.connect import translate_rpc_errors
from starter.steering.packs.packs import Packs
from starter.steering.packs.queries import Pack
from starter.steering.selection import Selection
from starter.steering.status.listing import ListedMessage, from_pack, to_listed
from starter.steering.stored.read_ahead import read_ahead

PACKS_ASKED = 20
"""Most packs that a page asks; where few of their messages match, the page is short and its cursor leads on."""
PACK_SECONDS = 12.0
"""Most that one pack of a page may take: less than a batch of a busy pack seldom does."""
SILENT_SECONDS = 1.0
"""The same on a lane of which a pack has not answered: what its other packs take if they can answer at all."""


class MessagePage(NamedTuple):
    """Some messages of a list, and the cursor of the next page; without one, the list is over."""

    messages: list[ListedMessage]
    cursor: str = ""
    left_out: Sequence[str] = ()
    """A sentence for each pack that did not answer, and whose messages are missing."""


class _Place(NamedTuple):
    """Where a page begins: in the index's page of `token`; of packs at `pack` in that page, after message `after`."""

    is_packed: bool = False
    token: bytes = b""
    pack: int = 0
    after: str = ""

    def write(self) -> str:
        """Write it as a cursor."""
        token = base64.b64encode(self.token).decode()
        return base64.urlsafe_b64encode(encode_json([self.is_packed, token, self.pack, self.after])).decode()

    @classmethod
    def read(cls, cursor: str) -> "_Place":
        """Read a cursor; raises GiveUp for what is none."""
        if not cursor:
            return cls()

        try:
            values: Any = decode_json(base64.urlsafe_b64decode(cursor.encode("ascii", "replace")))
            is_packed, token, pack, after = values
            place = cls(is_packed, base64.b64decode(token), pack, after)
        except (ValueError, TypeError, binascii.Error):
            place = None

        if place is None or [*map(type, place)] != [bool, bytes, int, str] or place.pack < 0:
            raise GiveUp("cursor: is none of those that a page ends with; leave it out to begin anew")
        return place


class MessagePages:
    """Reads the messages of a selection a page at a time; raises GiveUp for a wrong cursor, and RetryLater."""

    def __init__(self, client: Client, packs: Packs, selection: Selection, pack_seconds: float = PACK_SECONDS) -> None:
        self._client = client
        self._packs = packs
        self._selection = selection
        self._pack_seconds = pack_seconds
        self._silent = set[str]()
        """Lanes of which a pack has not answered."""

    async def read(self, limit: int, cursor: str = "") -> MessagePage:
        """Give at most `limit` messages from a cursor on."""
        place = _Place.read(cursor)
        page = MessagePage([], left_out=list[str]())

        with translate_rpc_errors():
            if not place.is_packed:
                query = self._selection.to_query()
                token = place.token or None
                listing = self._client.list_workflows(query, page_size=limit, next_page_token=token)
                await listing.fetch_next_page()
                page.messages.extend([await to_listed(execution) for execution in listing.current_page or ()])
                if listing.next_page_token:
                    return page._replace(cursor=_Place(token=listing.next_page_token).write())
                place = _Place(is_packed=True)
            following, left_out = await self._add_packed(limit, place, page.messages)

        cursor = "" if following is None else following.write()
        return page._replace(cursor=cursor, left_out=left_out)

    async def _add_packed(
        self, limit: int, place: _Place, found: list[ListedMessage]
    ) -> tuple[_Place | None, Sequence[str]]:
        """Add packed messages to those found; gives where the next page begins, if any, and what is missing."""
        left_out = list[str]()
        if self._selection.kind and await self._packs.layouts.find(self._selection.kind) is None:
            return None, left_out
        query = self._selection.to_pack_query()
        listing = self._client.list_workflows(query, page_size=PACKS_ASKED, next_page_token=place.token or None)
        await listing.fetch_next_page()
        if len(found) >= limit and listing.current_page:
            return place, left_out

        async def read(numbered: tuple[int, Pack]) -> list[dict[str, Any]] | str:
            number, pack = numbered
            after = place.after if number == place.pack else ""
            return await self._read_pack(pack, {"after": after, "limit": limit - len(found)})

        packs = self._find_packs((listing.current_page or ())[place.pack :], place.pack)
        async with contextlib.aclosing(read_ahead(packs, read, PACKS_ASKED)) as reading:
            async for (number, (layout, _)), answer in reading:
                if isinstance(answer, str):
                    left_out.append(answer)
                    continue
                messages = answer[: limit - len(found)]  # what was read ahead did not know yet how many are wanted
                found += [from_pack(layout.kind, message) for message in messages]
                if len(found) >= limit:
                    return place._replace(pack=number, after=messages[-1]["id"]), left_out
        token = listing.next_page_token
        return (_Place(is_packed=True, token=token) if token else None), left_out

    async def _find_packs(self, executions: Sequence[WorkflowExecution], first: int) -> AsyncIterator[tuple[int, Pack]]:
        """Give the packs that still are some, numbered from `first` on."""
        for number, execution in enumerate(executions, first):
            kind, index = pack_of(execution.id)
            if (layout := await self._packs.layouts.find(kind)) is not None:
                yield number, (layout, index)

    async def _read_pack(self, pack: Pack, wanted: dict[str, Any]) -> list[dict[str, Any]] | str:
        """Give the messages of a pack, or a sentence that says why they are missing."""
        layout, index = pack
        seconds = SILENT_SECONDS if layout.lane in self._silent else self._pack_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._packs.reader.read_page(pack, self._selection.to_page_request() | wanted)
        except (PackNotServed, StandsStill) as exc:
            sentence = str(exc)
        except TimeoutError:
            sentence = f"pack {pack_workflow_id(layout.kind, index)} on lane {layout.lane} does not answer"

        self._silent.add(layout.lane)
        return sentence
