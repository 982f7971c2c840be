"""Clients: the asynchronous one and its twin that blocks, each with the same verbs, and how to connect them."""

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, Unpack

import httpx

from dormice.bulk import BulkStream, Item, gather, gather_async
from dormice.calls import Answer, AsyncCaller, SyncCaller
from dormice.documents import ListedMessage, Receipt, Selection
from dormice.errors import Misconfigured, RetryLater
from dormice.verbs import ClientVerbs, MessageVerbs

URL_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "DORMICE_API_URL", "DORMICE_API_TOKEN", "DORMICE_API_TOKEN_FILE"
DEFAULT_URL = "http://127.0.0.1:8235"
DEFAULT_TIMEOUT = timedelta(minutes=1)


class Message(AsyncCaller, MessageVerbs):
    """One message, by kind and id; its verbs are awaited."""

    def __init__(self, caller: AsyncCaller, kind: str, id: str, receipt: Receipt[None] | None = None) -> None:  # noqa: A002 — the envelope's own word
        super().__init__(caller.http, caller.patience)
        self.kind, self.id, self.receipt = kind, id, receipt


class SyncMessage(SyncCaller, MessageVerbs):
    """One message, by kind and id; its verbs block."""

    def __init__(self, caller: SyncCaller, kind: str, id: str, receipt: Receipt[None] | None = None) -> None:  # noqa: A002 — as above
        super().__init__(caller.http, caller.patience)
        self.kind, self.id, self.receipt = kind, id, receipt


class Client(AsyncCaller, ClientVerbs[Message]):
    """All messages behind one HTTP API; its verbs are awaited."""

    def _make(self, kind: str, message_id: str, receipt: Receipt[None] | None) -> Message:
        return Message(self, kind, message_id, receipt)

    async def messages(self, **filters: Unpack[Selection]) -> AsyncIterator[ListedMessage]:
        """List messages; one that moves meanwhile may be missing or come twice."""
        cursor: str | None = ""
        while cursor is not None:
            page, cursor = await self.run(self._list_page(cursor, filters))
            for each in page:
                yield each

    async def start_many(
        self, items: AsyncIterable[Item] | Iterable[Item], *, upsert: bool = False, idempotency_key: str = ""
    ) -> AsyncIterator[Receipt[Item]]:
        """Start any number of messages, and give the receipt of each as it comes, in any order.

        What is finished is not started again, unless `upsert`. Lines whose receipt gets lost are sent again with the
        same key, so nothing is doubled; raises RetryLater once no receipt has come for the client's timeout.
        """
        bulk = BulkStream[Item](idempotency_key, self.patience, upsert=upsert)
        async with contextlib.aclosing(gather_async(items)) as parts:
            async for part in parts:
                for receipt in bulk.add(part):
                    yield receipt
                while bulk.is_waiting:
                    answer: Answer | RetryLater | None = None
                    try:
                        async with self.http.stream(**bulk.to_call().arguments) as response:
                            if response.is_success:
                                async for line in response.aiter_lines():
                                    yield bulk.read(line)
                            else:
                                await response.aread()
                                answer = response
                    except (httpx.TransportError, RetryLater) as exc:
                        answer = exc
                    if bulk.is_waiting:
                        await asyncio.sleep(bulk.find_pause(answer))

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncClient(SyncCaller, ClientVerbs[SyncMessage]):
    """All messages behind one HTTP API; its verbs block."""

    def _make(self, kind: str, message_id: str, receipt: Receipt[None] | None) -> SyncMessage:
        return SyncMessage(self, kind, message_id, receipt)

    def messages(self, **filters: Unpack[Selection]) -> Iterator[ListedMessage]:
        """List messages, as `Client.messages` does."""
        cursor: str | None = ""
        while cursor is not None:
            page, cursor = self.run(self._list_page(cursor, filters))
            yield from page

    def start_many(
        self, items: Iterable[Item], *, upsert: bool = False, idempotency_key: str = ""
    ) -> Iterator[Receipt[Item]]:
        """Start any number of messages, as `Client.start_many` does."""
        bulk = BulkStream[Item](idempotency_key, self.patience, upsert=upsert)
        for part in gather(items):
            yield from bulk.add(part)
            while bulk.is_waiting:
                answer: Answer | RetryLater | None = None
                try:
                    with self.http.stream(**bulk.to_call().arguments) as response:
                        if response.is_success:
                            yield from map(bulk.read, response.iter_lines())
                        else:
                            response.read()
                            answer = response
                except (httpx.TransportError, RetryLater) as exc:
                    answer = exc
                if bulk.is_waiting:
                    time.sleep(bulk.find_pause(answer))

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    timeout: timedelta = DEFAULT_TIMEOUT,
    verify: ssl.SSLContext | bool = True,
) -> Client:
    """Make a client for an `async with` block, or to be closed by `close`; nothing is sent yet.

    Without `url` and `token` the environment has them: DORMICE_API_URL, DORMICE_API_TOKEN or DORMICE_API_TOKEN_FILE. A
    call is repeated for `timeout` in all. `verify` is as in httpx. Raises Misconfigured.
    """
    return Client(httpx.AsyncClient(**_find_options(url, token), verify=verify), timeout.total_seconds())


def connect_sync(
    url: str | None = None,
    token: str | None = None,
    *,
    timeout: timedelta = DEFAULT_TIMEOUT,
    verify: ssl.SSLContext | bool = True,
) -> SyncClient:
    """Make a client that blocks, for a `with` block, or to be closed by `close`; all else is as with `connect`."""
    return SyncClient(httpx.Client(**_find_options(url, token), verify=verify), timeout.total_seconds())


def _find_options(url: str | None, token: str | None) -> dict[str, Any]:
    name, url = ("url", url) if url else (URL_VARIABLE, os.environ.get(URL_VARIABLE) or DEFAULT_URL)
    try:
        address = httpx.URL(url.rstrip("/"))
    except httpx.InvalidURL as exc:
        raise Misconfigured(f"{name}: is {url!r}, which is no address ({exc}); write {DEFAULT_URL}") from exc
    if address.scheme not in ("http", "https") or not address.host:
        raise Misconfigured(f"{name}: is {url!r}, which is no address of HTTP; write it like {DEFAULT_URL}")
    headers = {"User-Agent": "dormice-client"}
    if token := token or os.environ.get(TOKEN_VARIABLE) or _read_token():
        if not (token.isascii() and token.isprintable()):
            raise Misconfigured("token: has characters that no HTTP header may have; check where it comes from")
        headers["Authorization"] = f"Bearer {token}"
    return {"base_url": address, "headers": headers}


def _read_token() -> str:
    if not (path := os.environ.get(TOKEN_FILE_VARIABLE)):
        return ""
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise Misconfigured(f"{TOKEN_FILE_VARIABLE}: {path} can't be read ({exc}); correct it") from exc
