"""Clients: what can be asked of messages, written once, to be awaited or to block; and how to connect."""

import asyncio
import json
import math
import os
import random
import re
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, Unpack, overload

import httpx

from dormice.arguments import (
    OPTION_TYPES,
    SIGNAL_TYPES,
    Options,
    check,
    describe,
    read_name,
    to_fields,
    to_json,
    to_path,
    to_query,
)
from dormice.errors import PASSING, GiveUp, InvalidEnvelope, Misconfigured, NoResult, RetryLater, read_problem

URL_VARIABLE = "DORMICE_API_URL"
TOKEN_VARIABLE = "DORMICE_API_TOKEN"  # noqa: S105 — the name of a variable
TOKEN_FILE_VARIABLE = "DORMICE_API_TOKEN_FILE"  # noqa: S105 — as above
DEFAULT_URL = "http://127.0.0.1:8235"
PART_LINES = 2_000
MINUTE = timedelta(minutes=1)
PORT_MAX = 65_535
P = ParamSpec("P")
T = TypeVar("T")
Made_co = TypeVar("Made_co", covariant=True)
Http = TypeVar("Http", httpx.AsyncClient, httpx.Client)
Blocking = httpx.Client


class Envelope(SimpleNamespace):
    """A message to be started: due `at` a moment or `after` a time, at once without either."""

    def __init__(self, kind: str, id: str | int, payload: Any = None, **options: Unpack[Options]) -> None:
        super().__init__(kind=kind, id=id, payload=payload, **options)


class Receipt(NamedTuple):
    """What became of a start, an upsert or a signal, see README.md; `item` is the caller's."""

    item: Any
    outcome: str
    reason: str = ""
    field: str = ""
    is_due_now: bool = False
    """Whether a start or upsert made its message due at once: it had no moment, or one that has passed."""


class MessageView(SimpleNamespace):
    """One message with all that the API says of it; what nobody could tell, or a list does not have, is None."""

    state: str
    due_at: datetime | None
    why: str | None
    version: int | None
    payload: Any
    result: Any
    decisions: list[dict[str, Any]] | None
    parked_reason: str | None
    note: str | None

    def __init__(self, document: Mapping[str, Any]) -> None:
        due_at = document["due_at"] and datetime.fromisoformat(document["due_at"])
        super().__init__(**{**dict.fromkeys(MessageView.__annotations__), **document, "due_at": due_at})


class Verb(Generic[P, Made_co]):
    """Makes a method block where its owner's client of httpx blocks: it never waits then, and is run to its end."""

    def __init__(self, method: Callable[Concatenate[Any, P], Made_co]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self: "Verb[P, Coroutine[Any, Any, T]]", owner: "Caller[Blocking]", _: type) -> Callable[P, T]: ...
    @overload
    def __get__(self: "Verb[P, AsyncGenerator[T]]", owner: "Caller[Blocking]", _: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, owner: "Caller[httpx.AsyncClient]", _: type) -> Callable[P, Made_co]: ...
    def __get__(self, owner: "Caller[Any]", _: type) -> Any:
        call = partial(self._method, owner)
        return partial(_run, call) if isinstance(owner.http, httpx.Client) else call


class Caller(Generic[Http]):
    """What speaks to the API, awaited or blocking as its client of httpx; a call takes `seconds` with its repeats."""

    def __init__(self, http: Http, seconds: float = MINUTE.total_seconds()) -> None:
        advice = "a client of httpx, or make this object with connect() or connect_sync()"
        check("http", http, httpx.AsyncClient | httpx.Client, Misconfigured, advice)
        self.http: Http = http
        self.seconds = seconds

    async def send(
        self, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None, **more: Any
    ) -> Any:
        """Ask the API, such as GET /v1/gates, until it answers; gives its document, or those of all lines."""
        check("method", method, str, GiveUp, "a method of HTTP, such as 'GET'")
        if not re.fullmatch("[A-Za-z]+", method):
            raise GiveUp(f"method: is {describe(method)}; give a method of HTTP, such as 'GET'", field="method")

        check("path", path, str, GiveUp, "a path, such as '/v1/gates'")
        if not path.startswith("/"):
            raise GiveUp(f"path: is {describe(path)}; give one that begins with /, such as '/v1/gates'", field="path")

        pause = 0.1
        give_up_at = time.monotonic() + more.pop("seconds", self.seconds)
        is_repeated = more.pop("is_repeated", True)
        more["content"] = body if body is None or isinstance(body, bytes) else to_json(body)
        more["params"] = to_query(query)

        while True:
            try:
                answer = self.http.request(method, path, timeout=max(give_up_at - time.monotonic(), 0.1), **more)
                response = answer if isinstance(answer, httpx.Response) else await answer
                return _read(response)
            except httpx.InvalidURL as exc:
                raise GiveUp(f"path: is {describe(path)}, which no address may hold ({exc}); correct it") from exc
            except (httpx.TransportError, RetryLater) as exc:
                why = f"the HTTP API at {self.http.base_url} does not answer ({str(exc) or type(exc).__name__})"
                error = exc if isinstance(exc, RetryLater) else RetryLater(f"{why}; try again later")

            wait = error.pause_seconds + pause * random.uniform(0.5, 1)  # noqa: S311 — jitter needs no cryptography
            if not is_repeated or time.monotonic() + wait > give_up_at:
                raise error

            _ = time.sleep(wait) if isinstance(self.http, httpx.Client) else await asyncio.sleep(wait)
            pause = min(2 * pause, 5.0)

    call = Verb(send)


def _make_verb(name: str):  # noqa: ANN202 — a Verb with the parameters of `verb`
    async def verb(message: "AnyMessage[Any]", reason: str = "") -> Receipt:
        return await message.send_signal(name, reason=reason)

    return Verb(verb)


class AnyMessage(Caller[Http]):
    """One message, by kind and id; `receipt` says what became of the start or upsert that gave this object."""

    def __init__(self, caller: Caller[Http], kind: str, id: str | int, receipt: Receipt | None = None) -> None:
        check("caller", caller, Caller, GiveUp, "a client, or make this object with its method message(kind, id)")
        super().__init__(caller.http, caller.seconds)
        self.kind, self.id = read_name(kind, id)
        self.receipt = receipt
        self.path = to_path(self.kind, self.id)

    def __repr__(self) -> str:
        outcome = "" if self.receipt is None else f", {self.receipt.outcome}"
        return f"<dormice message {self.kind}:{self.id}{outcome}, at {self.http.base_url}>"

    run_now = _make_verb("run_now")  # as soon as a worker is free; a parked message gets fresh attempts
    pause = _make_verb("pause")  # run nothing until `resume`; other signals still change the message
    resume = _make_verb("resume")  # a due time that has passed meanwhile counts as due now
    stop = _make_verb("stop")  # for good; a running handler finishes first

    @Verb
    async def reschedule(self, at: datetime | None = None, after: timedelta | None = None, reason: str = "") -> Receipt:
        """Be due at a moment, or after a time, instead; wakes a parked message up for it."""
        return await self.send_signal("reschedule", at=at, after=after, reason=reason)

    @Verb
    async def reprioritize(self, priority: int, reason: str = "") -> Receipt:
        """Take another priority, 1 (first) to 5 (last)."""
        return await self.send_signal("reprioritize", priority=priority, reason=reason)

    @Verb
    async def revise(self, payload: Any, *, lane: str = "", priority: int | None = None, reason: str = "") -> Receipt:
        """Take another payload, and lane and priority if they are given."""
        return await self.send_signal("revise", payload=payload, lane=lane, priority=priority, reason=reason)

    async def send_signal(self, name: str, **given: Any) -> Receipt:
        """Send a signal, as each verb does; it is awaited by clients that block, too."""
        fields = to_fields("due_at", given, SIGNAL_TYPES)
        answer = await self.send("POST", f"{self.path}/{name}", {}, fields)
        return Receipt(None, answer.get("outcome", "taken"), answer["note"])

    @Verb
    async def show(self, *, payload: bool = True) -> MessageView:
        """Show it, alive or finished; raises MessageNotFound."""
        return MessageView(await self.send("GET", self.path, {"payload": payload}))

    @Verb
    async def result(self, timeout: timedelta | None = None) -> Any:
        """Wait until it is done, and give its result; raises NoResult or RetryLater."""
        give_up_at = math.inf
        if timeout is not None:
            check("timeout", timeout, timedelta, GiveUp)
            give_up_at = time.monotonic() + timeout.total_seconds()

        while True:
            left = max(give_up_at - time.monotonic(), 0)
            wait = math.ceil(min(left, 40))  # what the API may wait; then it answers within 6 seconds
            seconds = min(self.seconds, left + 6) + wait

            view = MessageView(await self.send("GET", self.path, {"wait": wait}, seconds=seconds))
            if view.state == "done":
                return view.result

            sentence = f"{self.kind}:{self.id} is {view.why or view.state}"
            if view.state not in ("active", "running", "paused"):
                raise NoResult(f"{sentence}, so it has no result")
            if not left:
                raise RetryLater(f"{sentence}, and has not ended within {timeout}; wait longer, or look at it")


class AnyClient(Caller[Http]):
    """All messages behind one HTTP API."""

    def __repr__(self) -> str:
        return f"<dormice client of {self.http.base_url}>"

    def message(self, kind: str, id: str | int) -> AnyMessage[Http]:
        """Give a message by its name; nothing is sent."""
        return AnyMessage(self, kind, id)

    @Verb
    async def start(
        self, kind: str, id: str | int, payload: Any = None, **options: Unpack[Options]
    ) -> AnyMessage[Http]:
        """Start a message, also one that has finished; raises MessageAlive and InvalidEnvelope."""
        return await self._bring("POST", kind, id, payload=payload, **options)

    @Verb
    async def upsert(
        self, kind: str, id: str | int, payload: Any = None, **options: Unpack[Options]
    ) -> AnyMessage[Http]:
        """Start a message, or change it if it is alive; a condition that does not hold raises ConditionUnmet."""
        return await self._bring("PUT", kind, id, payload=payload, **options)

    async def _bring(self, method: str, kind: str, message_id: str | int, **given: Any) -> AnyMessage[Http]:
        message = self.message(kind, message_id)
        fields = to_fields("scheduled_at", given, OPTION_TYPES)
        query = {name: fields.pop(name, None) for name in ("if_version", "if_due_before")}
        answer = await self.send(method, message.path, query, {"idempotency_key": uuid.uuid4().hex, **fields})
        message.receipt = Receipt(None, answer["outcome"], answer["note"], is_due_now=answer.get("is_due_now", False))
        return message

    @Verb
    async def start_many(
        self, items: Iterable[Envelope], *, upsert: bool = False, idempotency_key: str = ""
    ) -> AsyncGenerator[Receipt]:
        """Start any number of messages, and give their receipts part by part, as README.md says."""
        check("items", items, Iterable, GiveUp, "a list or generator of dormice.Envelope")
        check("idempotency_key", idempotency_key, str)
        if not re.fullmatch(r"([!-~]([ -~]*[!-~])?)?", idempotency_key):
            flaw = f"is {describe(idempotency_key)}, which no HTTP header may have"
            raise InvalidEnvelope(f"idempotency_key: {flaw}; use ASCII letters and digits", field="idempotency_key")

        key = idempotency_key or uuid.uuid4().hex
        part = list[tuple[Envelope, bytes]]()
        # each item has a key of its own, because a part is no body that comes again; this one asks for no restarts
        headers = {"Content-Type": "application/x-ndjson"} | ({} if upsert else {"Idempotency-Key": key})
        for number, item in enumerate(chain(items, [_END])):
            try:
                line = b"" if item is _END else _read_item(item, f"{key}:{number}")
            except InvalidEnvelope as exc:
                yield Receipt(item, "rejected", str(exc), exc.field)
                continue

            if part and (item is _END or len(part) == PART_LINES):
                body = b"\n".join(line for _, line in part)
                for got in await self.send("POST", "/v1/messages:bulk", {"upsert": upsert}, body, headers=headers):
                    yield _read_receipt(part[int(got["line"]) - 1][0], got)
                part.clear()
            if item is not _END:
                part.append((item, line))


_END: Any = object()
"""Ends the last part of a bulk."""


def _read_item(item: Any, idempotency_key: str) -> bytes:
    """Give the line of an envelope in a bulk; raises InvalidEnvelope."""
    check("item", item, Envelope, advice="a dormice.Envelope(kind, id, payload, …)")
    given: dict[str, Any] = {**vars(item)}
    kind, message_id = read_name(given.pop("kind"), given.pop("id"))
    fields = to_fields("scheduled_at", given, OPTION_TYPES)
    return to_json({"idempotency_key": idempotency_key, "kind": kind, "id": message_id} | fields)


def _read_receipt(item: Envelope, got: Mapping[str, Any]) -> Receipt:
    is_due_now = got.get("is_due_now", False)
    return Receipt(item, got["outcome"], got.get("reason", ""), got.get("field", ""), is_due_now)


Client = AnyClient[httpx.AsyncClient]
Message = AnyMessage[httpx.AsyncClient]


@asynccontextmanager
async def connect(url: str = "", token: str = "", *, timeout: timedelta = MINUTE) -> AsyncGenerator[Client]:
    """Give a client for an `async with` block; a call takes `timeout` with its repeats. Raises Misconfigured."""
    async with httpx.AsyncClient(**_find_options(url, token, timeout)) as http:
        yield Client(http, timeout.total_seconds())


@contextmanager
def connect_sync(url: str = "", token: str = "", *, timeout: timedelta = MINUTE) -> Generator[AnyClient[httpx.Client]]:
    """Give a client that blocks, for a `with` block; all else is as with `connect`."""
    with httpx.Client(**_find_options(url, token, timeout)) as http:
        yield AnyClient(http, timeout.total_seconds())


def _find_options(url: str, token: str, timeout: timedelta) -> dict[str, Any]:
    check("url", url, str, Misconfigured, f"the address of 'dormice serve', such as {DEFAULT_URL!r}")
    check("timeout", timeout, timedelta, Misconfigured)
    check("token", token, str, Misconfigured, is_secret=True)
    url = (url or os.environ.get(URL_VARIABLE, DEFAULT_URL)).rstrip("/")
    path = os.environ.get(TOKEN_FILE_VARIABLE)
    _check_url(url)

    try:
        token = token or os.environ.get(TOKEN_VARIABLE) or (Path(path).read_text("utf-8").strip() if path else "")
    except (OSError, UnicodeDecodeError) as exc:
        raise Misconfigured(f"{TOKEN_FILE_VARIABLE}: {path} can't be read ({exc}); correct it") from exc

    if not re.fullmatch(r"[!-~]*", token):
        raise Misconfigured("token: has characters that no HTTP header may have; check where it comes from")

    authorization = {"Authorization": f"Bearer {token}"} if token else {}
    return {
        "base_url": url,
        "headers": {"User-Agent": "dormice-client", "Content-Type": "application/json"} | authorization,
    }


def _check_url(url: str) -> None:
    shown = re.sub(r"//[^/]*@", "//…@", url)  # a password must not reach a log
    is_address = re.fullmatch(r"https?://([\w.-]+|\[[\da-f:]+\])(:\d+)?(/\S*)?", url) is not None
    try:
        is_address = is_address and (httpx.URL(url).port or 0) <= PORT_MAX
    except httpx.InvalidURL:
        is_address = False
    if not is_address:
        sentence = f"url: is {shown!r}, which is no address of HTTP; write it like {DEFAULT_URL}"
        raise Misconfigured(sentence, field="url")


def _run(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
    made = call(*args, **more)
    if isinstance(made, AsyncGenerator):
        return iter(partial(_run, anext, made, None), None)
    try:
        made.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a method of a client that blocks has waited for an event loop")


def _read(answer: httpx.Response) -> Any:
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    status = answer.status_code
    if answer.is_success and media_type == "application/json":
        return answer.json()

    if answer.is_success and media_type == "application/x-ndjson":
        documents = [json.loads(line) for line in answer.content.splitlines()]
        if documents and "problem" in documents[-1]:
            raise read_problem(documents[-1]["problem"])
        return documents

    if media_type == "application/problem+json" or status in PASSING:
        problem = answer.json() if media_type == "application/problem+json" else {"status": status}
        raise read_problem(problem, answer.headers.get("retry-after", ""))

    where = f"{answer.url.copy_with(query=None)} answers with status {status}, but is no dormice API"
    raise Misconfigured(f"{where}; give the address of 'dormice serve'", status=status)
