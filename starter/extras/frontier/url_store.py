"""The store: the URLs of a frontier as messages of one packed kind; puts, looks them up and reads them all.

- A discovered URL is started unless its message is alive; one that was deleted is started anew at once, because the
  flag `restarts` of its chunk lets a pack do that, and a delivery that is newer than the stop does so too.
- A known one and a deletion are deliveries of one source with a rising offset: one that comes late, from a process that
  was killed, changes nothing. A pack tells what became of a chunk when it has applied it, not before.
- A revised message has no tolerance. So that one wake serves many, dates are rounded up here, by a few per cent of what
  is left until then; each pack rounds to moments of its own, so that packs don't wake together.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client

from shared.errors import InvalidEnvelope, RetryLater
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.json_value import encode_json
from shared.messages.message import ENDS, MessageState
from shared.messages.placement import Layout, pack_index, pack_workflow_id, unit_hash
from shared.messages.timespan import HORIZON
from shared.packs.entry import Entry, to_entry
from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import translate_rpc_errors
from starter.extras.frontier.crawl_url import CrawlUrl
from starter.starting.calls import RetryingCaller
from starter.starting.chunks import Chunk
from starter.starting.layouts import Layouts
from starter.starting.pack_starter import PackStarter
from starter.starting.receipts import Receipt
from starter.starting.start_request import first_entry
from starter.steering.packs.packs import Packs
from starter.steering.stored.read_ahead import read_ahead
from starter.steering.stored.stored_pack import read_stored

LANE = "short"
SOURCE = "frontier"
DATES_BYTES = 50
"""What the dates that a put gets here may add to its payload; a pack ignores a revision that is too large."""
LEAP = 3_600_000_000
"""An hour, in microseconds, of which offsets are made."""
PATIENCE = timedelta(seconds=30)
"""How long a put is tried again; a client whose put fails then may send it again."""

NEVER = HORIZON - timedelta(days=1)
"""How far ahead a completed URL is due."""
SOON_SECONDS = 1.0
ROUNDED_SHARE = 0.05
ROUNDED_MAX = 256

READ_AT_ONCE = 8
_PAGE = {"has_payloads": True}
StoredUrl = tuple[str, CrawlUrl]
"""A message's id, and its URL."""


class UrlStore:
    """The messages of a kind. Raises RetryLater while the server does not answer, Misconfigured when it refuses."""

    def __init__(self, client: Client, settings: Settings, kind: str, pack: Pack, offer_seconds: float) -> None:
        self.kind = kind
        self.settings = prepare_settings(settings, kind)
        caller = RetryingCaller(self.settings.patience, self.settings.starts_per_second)
        self._client = client
        self._offer_seconds = offer_seconds
        self._layouts = Layouts(client, self.settings, {kind: pack})
        self._packs = Packs(client, self.settings)
        self._starts = PackStarter(client, self.settings, caller, restarts_finished=True, revises=False)
        self._changes = PackStarter(client, self.settings, caller, restarts_finished=False, revises=True)
        self._offset = 0
        self._pack_count = pack.packs

    def leap(self) -> None:
        """Go on with much higher offsets, because this machine's clock is behind that of an earlier process."""
        self._offset += LEAP

    async def find_layout(self) -> Layout:
        """Give how the kind is packed; the first call of all fixes it, whatever number of packs is given later."""
        layout = self._layouts.known(self.kind) or await self._layouts.find(self.kind)
        layout = layout or await self._layouts.ensure(self.kind, LANE)
        if layout is None:
            raise RetryLater(f"the packs of kind {self.kind!r} are not known yet; try again")
        self._pack_count = layout.packs
        return layout

    def find_pack(self, message_id: str) -> int:
        """Give the index of a URL's pack, by what `find_layout` gave last."""
        return pack_index(message_id, self._pack_count)

    async def find_layout_patiently(self) -> Layout:
        """Give how the kind is packed as soon as the server tells."""
        failures = 0
        while True:
            with contextlib.suppress(RetryLater):
                return await self.find_layout()
            failures += 1
            await asyncio.sleep(backoff_seconds(failures))

    def is_storable(self, url: CrawlUrl) -> bool:
        """Return whether a URL is small enough."""
        return len(encode_json(url.to_payload())) + DATES_BYTES <= self.settings.payload_max_bytes

    async def start(self, layout: Layout, index: int, urls: Sequence[StoredUrl]) -> list[Receipt[None]]:
        """Store URLs of one pack, except those whose messages are alive; an id comes once."""
        now = time.time()
        entries = [self._to_entry(layout, index, message_id, url, now) for message_id, url in urls]
        return await self._send(self._starts, layout, index, entries)

    async def change(
        self, layout: Layout, index: int, changes: Sequence[tuple[str, CrawlUrl | None]]
    ) -> list[Receipt[None]]:
        """Store URLs of one pack, whatever was there, and delete those given as None; an id comes once."""
        now = time.time()
        self._offset = max(self._offset + 1, time.time_ns() // 1000)
        entries: list[Entry] = []

        for message_id, url in changes:
            if url is None:
                ended = MessageState(self.kind, message_id, LANE, now, now, ended="stopped", sources=self._sources)
                entries.append(to_entry(ended, LANE))
            else:
                entry = self._to_entry(layout, index, message_id, url, now)
                entries.append([*entry, {"sources": self._sources}])

        return await self._send(self._changes, layout, index, entries)

    async def find(self, message_id: str) -> CrawlUrl | None:
        """Look a URL up; None if there is none, or it was deleted."""
        if (layout := await self._layouts.find(self.kind)) is None:
            return None
        status = await self._packs.status(layout, pack_index(message_id, layout.packs), message_id)
        if status is None or status["phase"] in ENDS:
            return None
        return CrawlUrl.of_message(message_id, status["payload"])

    async def read_pack(self, layout: Layout, index: int) -> list[StoredUrl]:
        """Read all URLs of a pack: where the server has stored all of it without a worker, else by queries."""
        with translate_rpc_errors():
            stored = await read_stored(self._client, pack_workflow_id(self.kind, index), ends_when_stale=True)
        if stored.is_current:
            found = [(each["id"], each["payload"]) for each in stored.list(_PAGE)]
        else:
            found = [(each["id"], each["payload"]) async for each in self._query_pages(layout, index)]
        return [(message_id, url) for message_id, payload in found if (url := _read(message_id, payload)) is not None]

    async def read_all(self) -> AsyncGenerator[list[StoredUrl]]:
        """Read the URLs of all packs, a pack at a time."""
        if (layout := await self._layouts.find(self.kind)) is None:
            return

        async def read(index: int) -> list[StoredUrl]:
            return await self.read_pack(layout, index)

        async with contextlib.aclosing(read_ahead(_count_to(layout.packs), read, READ_AT_ONCE)) as reading:
            async for _, found in reading:
                yield found

    @property
    def _sources(self) -> dict[str, int]:
        return {SOURCE: self._offset}

    async def _query_pages(self, layout: Layout, index: int) -> AsyncIterator[dict[str, Any]]:
        after = ""
        while page := (await self._packs.queries.ask(layout, index, "page", _PAGE | {"after": after}))["messages"]:
            for message in page:
                yield message
            after = page[-1]["id"]

    def _to_entry(self, layout: Layout, index: int, message_id: str, url: CrawlUrl, now: float) -> Entry:
        due = find_due(url, now, unit_hash(pack_workflow_id(layout.kind, index)), self._offer_seconds)
        scheduled_at = datetime.fromtimestamp(due, UTC)
        envelope = Envelope(
            kind=self.kind, id=message_id, lane=LANE, scheduled_at=scheduled_at, payload=url.to_payload()
        )
        return first_entry(envelope, now, layout.lane)

    async def _send(
        self, starter: PackStarter, layout: Layout, index: int, entries: Sequence[Entry]
    ) -> list[Receipt[None]]:
        receipts: list[Receipt[None]] = []
        chunk = Chunk[None](layout, index)
        for entry in entries:
            chunk.add(None, entry)
            if chunk.is_full:
                receipts += await _admit(starter, chunk)
                chunk = Chunk[None](layout, index)

        return receipts + (await _admit(starter, chunk) if chunk.tags else [])


def prepare_settings(settings: Settings, kind: str) -> Settings:
    """Give the settings of a kind's own task queue, which no other worker serves: the buffer is in one process."""
    return replace(
        settings,
        task_queue_prefix=f"{settings.task_queue_prefix}-{kind}",
        patience=min(settings.patience, PATIENCE),
        deployment_name="",
        outcomes_topic="",
    )


def find_due(url: CrawlUrl, now: float, share: float, offer_seconds: float) -> float:
    """Give when the message of a URL is due, in seconds since the epoch: not before the URL may be fetched.

    One that may be fetched now is in the buffer, so it is due only when it is to be offered again. `share` is the
    pack's, from 0 up to 1.
    """
    last = now + NEVER.total_seconds()
    if url.is_completed:
        return last

    soonest = min(url.refetch_at, last) if url.refetch_at > now + SOON_SECONDS else now + offer_seconds
    step = min(ROUNDED_MAX, 2 ** int(ROUNDED_SHARE * (soonest - now)).bit_length() // 2)
    return soonest + (share * step - soonest) % step if step else soonest


async def _admit(starter: PackStarter, chunk: Chunk[None]) -> list[Receipt[None]]:
    return list(await starter.admit(chunk, uuid.uuid4().hex))


def _read(message_id: str, payload: Any) -> CrawlUrl | None:
    """Read a URL; None for a message that somebody else has started."""
    try:
        return CrawlUrl.of_message(message_id, payload)
    except InvalidEnvelope:
        return None


async def _count_to(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number
