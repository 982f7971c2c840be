"""Pages: a list of messages a page at a time, each with the cursor to the next; a page costs a bounded number of calls.

The lists are the server's own: first messages with a workflow of their own, newest start first, then packs in the order
of the index, each by id. What moves in the index meanwhile may be missed or come twice.
"""

import base64
import binascii
from typing import Any, NamedTuple

from temporalio.client import Client

from shared.errors import GiveUp
from shared.messages.json_value import decode_json, encode_json
from shared.temporal.connect import translate_rpc_errors
from starter.steering.packs import Packs
from starter.steering.selection import Selection
from starter.steering.status.listing import ListedMessage, from_pack, to_listed

PACKS_ASKED = 20
"""Most packs that a page asks; where few of their messages match, the page is short and its cursor leads on."""


class MessagePage(NamedTuple):
    """Some messages of a list, and the cursor of the next page; without one, the list is over."""

    messages: list[ListedMessage]
    cursor: str = ""


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

    def __init__(self, client: Client, packs: Packs, selection: Selection) -> None:
        self._client = client
        self._packs = packs
        self._selection = selection

    async def read(self, limit: int, cursor: str = "") -> MessagePage:
        """Give at most `limit` messages from a cursor on."""
        place, found = _Place.read(cursor), list[ListedMessage]()
        with translate_rpc_errors():
            if not place.is_packed:
                query, token = self._selection.to_query(), place.token or None
                listing = self._client.list_workflows(query, page_size=limit, next_page_token=token)
                await listing.fetch_next_page()
                found = [await to_listed(execution) for execution in listing.current_page or ()]
                if listing.next_page_token:
                    return MessagePage(found, _Place(token=listing.next_page_token).write())
                place = _Place(is_packed=True)
            following = await self._add_packed(limit, place, found)
        return MessagePage(found, "" if following is None else following.write())

    async def _add_packed(self, limit: int, place: _Place, found: list[ListedMessage]) -> _Place | None:
        """Add packed messages to those found; gives where the next page begins, None at the end of the list."""
        layouts, selection = self._packs.layouts, self._selection
        if selection.kind and await layouts.find(selection.kind) is None:
            return None
        query, request = selection.to_pack_query(), selection.to_page_request()
        listing = self._client.list_workflows(query, page_size=PACKS_ASKED, next_page_token=place.token or None)
        await listing.fetch_next_page()
        for number, execution in enumerate((listing.current_page or ())[place.pack :], place.pack):
            if len(found) >= limit:
                return place._replace(pack=number, after="")
            kind, _, index = execution.id.rpartition("~")
            if (layout := await layouts.find(kind)) is None:
                continue
            after = place.after if number == place.pack else ""
            wanted = request | {"after": after, "limit": limit - len(found)}
            messages = await self._packs.read_page((layout, int(index)), wanted)
            found += [from_pack(kind, message) for message in messages]
            if len(found) >= limit:
                return place._replace(pack=number, after=messages[-1]["id"])
        token = listing.next_page_token
        return _Place(is_packed=True, token=token) if token else None
