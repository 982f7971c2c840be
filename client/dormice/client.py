"""Clients: what can be asked of messages, awaited or blocking, and how to connect."""

import math
import os
import re
import time
import uuid
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, Unpack
from urllib.parse import quote

import httpx

from dormice.calls import Caller, Http, Verb
from dormice.documents import Envelope, MessageView, Options, Receipt, to_fields, to_json
from dormice.errors import InvalidEnvelope, MessageParked, MessageStopped, Misconfigured, RetryLater

URL_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "DORMICE_API_URL", "DORMICE_API_TOKEN", "DORMICE_API_TOKEN_FILE"
DEFAULT_URL, PART_LINES, MINUTE = "http://127.0.0.1:8235", 2_000, timedelta(minutes=1)


def _make_verb(name: str, doc: str):  # noqa: ANN202 — a Verb with the parameters of `verb`
    async def verb(message: "AnyMessage[Any]", reason: str = "") -> Receipt:
        return await message.signal(name, reason=reason)

    verb.__doc__ = doc
    return Verb(verb)


class AnyMessage(Caller[Http]):
    """One message, by kind and id; `receipt` says what became of the start or upsert that gave this object."""

    def __init__(self, caller: Caller[Http], kind: str, id: str, receipt: Receipt | None = None) -> None:
        super().__init__(caller.http, caller.seconds)
        self.kind, self.id, self.receipt = kind, id, receipt
        if not (kind and id):
            raise InvalidEnvelope("id: is empty, or kind is; give both", field="id" if kind else "kind")
        self.path = "/v1/messages/" + "/".join(quote(name, safe="").replace(".", "%2E") for name in (kind, id))

    run_now = _make_verb("run_now", "Run as soon as a worker is free; a parked message gets fresh attempts.")
    pause = _make_verb("pause", "Run nothing until `resume`; other signals still change the message.")
    resume = _make_verb("resume", "End a pause; a due time that has passed meanwhile counts as due now.")
    stop = _make_verb("stop", "End the message for good; a running handler finishes first.")

    @Verb
    async def reschedule(self, at: datetime | None = None, after: timedelta | None = None, reason: str = "") -> Receipt:
        """Be due at a moment, or after a time, instead; wakes a parked message up for it."""
        return await self.signal("reschedule", at=at, after=after, reason=reason)

    @Verb
    async def reprioritize(self, priority: int, reason: str = "") -> Receipt:
        """Take another priority, 1 (first) to 5 (last)."""
        return await self.signal("reprioritize", priority=priority, reason=reason)

    @Verb
    async def revise(self, payload: Any, *, lane: str = "", priority: int | None = None, reason: str = "") -> Receipt:
        """Take another payload, and lane and priority if they are given."""
        return await self.signal("revise", payload=payload, lane=lane, priority=priority, reason=reason)

    async def signal(self, name: str, **given: Any) -> Receipt:
        """Send a signal, as each verb above does."""
        told = await self.send("POST", f"{self.path}/{name}", {}, to_fields("due_at", **given))
        return Receipt(None, told.get("outcome", "taken"), told["note"])

    @Verb
    async def show(self, *, payload: bool = True) -> MessageView:
        """Show it, alive or finished; raises MessageNotFound."""
        return MessageView(await self.send("GET", self.path, {"payload": payload}))

    @Verb
    async def result(self, timeout: timedelta | None = None) -> Any:
        """Wait until it is done, and give its result; raises MessageParked, MessageStopped or RetryLater."""
        give_up_at = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
        while True:
            left = max(give_up_at - time.monotonic(), 0)
            wait = math.ceil(min(left, 40))  # what the API may wait; then it answers within 6 seconds
            seconds = min(self.seconds, left + 6) + wait
            view = MessageView(await self.send("GET", self.path, {"wait": wait}, seconds=seconds))
            if view.state == "done":
                return view.result
            told = f"{self.kind}:{self.id} is {view.why or view.state}"
            if view.state not in ("active", "running", "paused"):
                raise (MessageParked if view.state == "parked" else MessageStopped)(f"{told}, so it has no result")
            if not left:
                raise RetryLater(f"{told}, and has not ended within {timeout}; wait longer, or look at it")


class AnyClient(Caller[Http]):
    """All messages behind one HTTP API."""

    def message(self, kind: str, id: str) -> AnyMessage[Http]:
        """Give a message by its name; nothing is sent."""
        return AnyMessage(self, kind, id)

    @Verb
    async def start(self, kind: str, id: str, payload: Any = None, **options: Unpack[Options]) -> AnyMessage[Http]:
        """Start a message, also one that has finished; raises MessageAlive, StartRefused and InvalidEnvelope."""
        return await self._bring("POST", kind, id, payload=payload, **options)

    @Verb
    async def upsert(self, kind: str, id: str, payload: Any = None, **options: Unpack[Options]) -> AnyMessage[Http]:
        """Start a message, or change it if it is alive; a condition that does not hold raises ConditionUnmet."""
        return await self._bring("PUT", kind, id, payload=payload, **options)

    async def _bring(self, method: str, kind: str, message_id: str, **given: Any) -> AnyMessage[Http]:
        message = self.message(kind, message_id)
        query = {name: given.pop(name, None) for name in ("if_version", "if_due_before")}
        body = {"idempotency_key": uuid.uuid4().hex, **to_fields("scheduled_at", **given)}
        told = await self.send(method, message.path, query, body)
        message.receipt = Receipt(None, told["outcome"], told["note"])
        return message

    @Verb
    async def start_many(
        self, items: Iterable[Envelope], *, upsert: bool = False, idempotency_key: str = ""
    ) -> AsyncGenerator[Receipt]:
        """Start any number of messages, and give their receipts part by part, as README.md says."""
        key, part = idempotency_key or uuid.uuid4().hex, dict[Any, tuple[Envelope, bytes]]()
        headers = {"Content-Type": "application/x-ndjson"} | ({} if upsert else {"Idempotency-Key": key})
        for number, item in enumerate(chain(items, [None])):  # None ends the last part
            name = item and (item.kind, item.id) if upsert else number
            if part and (item is None or name in part or len(part) == PART_LINES):
                sent, body = [item for item, _ in part.values()], b"\n".join(line for _, line in part.values())
                for got in await self.send("POST", "/v1/messages:bulk", {"upsert": upsert}, body, headers=headers):
                    yield Receipt(sent[got["line"] - 1], got["outcome"], got.get("reason", ""), got.get("field", ""))
                part.clear()
            try:
                if item is not None:
                    own_key = {"idempotency_key": f"{key}:{number}"} if upsert else {}
                    part[name] = item, to_json(own_key | to_fields("scheduled_at", **vars(item)))
            except InvalidEnvelope as exc:
                yield Receipt(item, "rejected", str(exc), exc.field)

    @Verb
    async def messages(
        self, *, kind: str = "", lane: str = "", state: str = "", due_before: datetime | None = None
    ) -> AsyncGenerator[MessageView]:
        """List messages, without a filter all that are alive; one that moves meanwhile may be missing or come twice."""
        query = {"kind": kind, "lane": lane, "state": state, "due_before": due_before, "limit": 1000}
        page: dict[str, Any] = {"cursor": ""}
        while page["cursor"] is not None:
            page = await self.send("GET", "/v1/messages", {**query, "cursor": page["cursor"]})
            for each in page["messages"]:
                yield MessageView(each)


Client: TypeAlias = AnyClient[httpx.AsyncClient]
SyncClient: TypeAlias = AnyClient[httpx.Client]
Message: TypeAlias = AnyMessage[httpx.AsyncClient]


@asynccontextmanager
async def connect(url: str = "", token: str = "", *, timeout: timedelta = MINUTE) -> AsyncGenerator[Client]:
    """Give a client for an `async with` block; a call takes `timeout` with its repeats. Raises Misconfigured."""
    async with httpx.AsyncClient(**_find_options(url, token)) as http:
        yield Client(http, timeout.total_seconds())


@contextmanager
def connect_sync(url: str = "", token: str = "", *, timeout: timedelta = MINUTE) -> Generator[SyncClient]:
    """Give a client that blocks, for a `with` block; all else is as with `connect`."""
    with httpx.Client(**_find_options(url, token)) as http:
        yield SyncClient(http, timeout.total_seconds())


def _find_options(url: str, token: str) -> dict[str, Any]:
    url, path = (url or os.environ.get(URL_VARIABLE, DEFAULT_URL)).rstrip("/"), os.environ.get(TOKEN_FILE_VARIABLE)
    if not re.fullmatch(r"https?://([\w.-]+|\[[\da-f:]+\])(:\d+)?(/\S*)?", url):
        raise Misconfigured(f"url: is {url!r}, which is no address of HTTP; write it like {DEFAULT_URL}")
    try:
        token = token or os.environ.get(TOKEN_VARIABLE) or (Path(path).read_text("utf-8").strip() if path else "")
    except (OSError, UnicodeDecodeError) as exc:
        raise Misconfigured(f"{TOKEN_FILE_VARIABLE}: {path} can't be read ({exc}); correct it") from exc
    if not re.fullmatch(r"[!-~]*", token):
        raise Misconfigured("token: has characters that no HTTP header may have; check where it comes from")
    headers = {"User-Agent": "dormice-client", "Content-Type": "application/json"}
    return {"base_url": url, "headers": headers | ({"Authorization": f"Bearer {token}"} if token else {})}
