"""Bulk: starts any number of messages in parts, one after the other, with one idempotency key for all of them.

httpx reads a response only once the request's body is sent. So the lines go in parts, and memory holds one part.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from dormice.calls import Answer, Call, find_pause
from dormice.documents import Envelope, Receipt, to_json
from dormice.errors import InvalidEnvelope, Misconfigured, RetryLater, read_problem

Item = TypeVar("Item", bound=Envelope | Mapping[str, Any])

PART_LINES = 10_000
LINGER_SECONDS = 0.5
"""How long a part waits for more lines while its source brings nothing."""
ANSWER_SECONDS = 65.0
"""How long the API may be silent in mid-answer: somewhat longer than it waits itself."""


class BulkStream(Generic[Item]):
    """One bulk: its key, the lines of the present part that have no receipt, and since when none came."""

    def __init__(self, key: str, patience: float, *, upsert: bool) -> None:
        self._key = key or uuid.uuid4().hex
        self._patience = patience
        self._upsert = upsert
        self._count = self._attempts = 0
        self._give_up_at = 0.0
        self._waiting: dict[int, tuple[Item, bytes]] = {}
        self._sent: list[int] = []

    @property
    def is_waiting(self) -> bool:
        """Whether there are lines without a receipt."""
        return bool(self._waiting)

    def add(self, part: Sequence[Item]) -> Iterator[Receipt[Item]]:
        """Take the items of the next part; gives the receipts of those that can't be sent."""
        self._mark_progress()
        for number, item in enumerate(part, self._count):
            try:
                document = dict(item.to_document() if isinstance(item, Envelope) else item)
                if self._upsert:
                    document["idempotency_key"] = document.get("idempotency_key") or f"{self._key}:{number}"
                self._waiting[number] = item, to_json(document)
            except InvalidEnvelope as exc:
                yield _to_receipt(item, {"outcome": "rejected", "reason": str(exc), "field": exc.field})
        self._count += len(part)

    def to_call(self) -> Call:
        """Give the request that sends the lines that have no receipt; of one message's upserts only the first."""
        firsts: dict[object, int] = {}
        for number, (item, _) in self._waiting.items():
            firsts.setdefault(tuple(_name(item).values()) if self._upsert else number, number)
        self._sent = list(firsts.values())
        # upserts have a key each: with one for the request, two requests that name the same messages would be the same
        keys = {} if self._upsert else {"Idempotency-Key": self._key}
        return Call(
            method="POST",
            path="/v1/messages:bulk",
            query={"upsert": "true" if self._upsert else "false"},
            content=b"".join(self._waiting[number][1] + b"\n" for number in self._sent),
            headers={"Content-Type": "application/x-ndjson", **keys},
            seconds=ANSWER_SECONDS,
        )

    def read(self, line: str) -> Receipt[Item]:
        """Read a line of the answer; raises what it says if the rest of the lines was not read."""
        try:
            document: dict[str, Any] = json.loads(line)
        except ValueError as exc:
            raise Misconfigured("what answers is no dormice API; give the address of 'dormice serve'") from exc
        if "problem" in document:
            raise read_problem(document["problem"])
        self._mark_progress()
        position: int = document["line"] - 1
        item, _ = self._waiting.pop(self._sent[position])
        return _to_receipt(item, document)

    def find_pause(self, answer: Answer | RetryLater | None) -> float:
        """Give how long to wait before the rest is sent again; raises the error after too long without a receipt."""
        if answer is None and self._waiting.keys().isdisjoint(self._sent):
            return 0.0  # others are left, for the next request
        self._attempts += 1
        try:
            return find_pause(answer, self._attempts, self._give_up_at)
        except RetryLater as exc:
            count = f"{len(self._waiting):,} lines have no receipt; go on with idempotency_key={self._key!r}"
            raise RetryLater(f"{exc}; {count}", field=exc.field, status=exc.status) from exc

    def _mark_progress(self) -> None:
        self._attempts, self._give_up_at = 0, time.monotonic() + self._patience


def gather(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Give items in parts; a slow source, which takes long for an item, gives smaller ones."""
    part, begun_at = list[Item](), time.monotonic()
    for item in items:
        part.append(item)
        if len(part) >= PART_LINES or time.monotonic() - begun_at > LINGER_SECONDS:
            yield part
            part, begun_at = [], time.monotonic()
    if part:
        yield part


async def gather_async(items: AsyncIterable[Item] | Iterable[Item]) -> AsyncGenerator[list[Item]]:
    """Give items in parts; while a source brings nothing, what it has brought goes on its way."""
    if not isinstance(items, AsyncIterable):
        for part in gather(items):
            yield part
        return
    source, part = aiter(items), list[Item]()
    coming = asyncio.ensure_future(anext(source))
    try:
        while True:
            done, _ = await asyncio.wait({coming}, timeout=LINGER_SECONDS if part else None)
            if not done or len(part) >= PART_LINES:
                yield part
                part = []
                continue
            try:
                part.append(coming.result())
            except StopAsyncIteration:
                break
            coming = asyncio.ensure_future(anext(source))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    if part:
        yield part


def _to_receipt(item: Item, document: Mapping[str, Any]) -> Receipt[Item]:
    fields = {name: document.get(name, "") for name in ("reason", "field")}
    return Receipt(item=item, outcome=document["outcome"], **_name(item), **fields)


def _name(item: Envelope | Mapping[str, Any]) -> dict[str, str]:
    named = {"kind": item.kind, "id": item.id} if isinstance(item, Envelope) else item
    return {name: str(named.get(name, "")) for name in ("kind", "id")}
