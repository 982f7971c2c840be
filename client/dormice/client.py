"""Clients: what can be asked of messages, written once, to be awaited or to block; and how to connect."""

import asyncio
import dataclasses
import json
import math
import os
import random
import re
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypedDict, TypeVar, Unpack, overload
from urllib.parse import quote

import httpx

from dormice.errors import PASSING, InvalidEnvelope, Misconfigured, NoResult, RetryLater, read_problem

URL_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "DORMICE_API_URL", "DORMICE_API_TOKEN", "DORMICE_API_TOKEN_FILE"
DEFAULT_URL, PART_LINES, MINUTE = "http://127.0.0.1:8235", 2_000, timedelta(minutes=1)
P = ParamSpec("P")
T = TypeVar("T")
Made_co = TypeVar("Made_co", covariant=True)
Http = TypeVar("Http", httpx.AsyncClient, httpx.Client)
Blocking = httpx.Client


class Options(TypedDict, total=False):
    """What may be said of a message beside its name and payload; `if_…` are the conditions of an upsert."""

    at: datetime | None
    after: timedelta | None
    tolerance: timedelta
    expires_at: datetime
    lane: str
    priority: int
    tenant: str
    correlation_id: str
    idempotency_key: str
    if_version: int
    if_due_before: datetime


class Envelope(SimpleNamespace):
    """A message to be started: due `at` a moment or `after` a time, at once without either."""

    def __init__(self, kind: str, id: str, payload: Any = None, **options: Unpack[Options]) -> None:
        super().__init__(kind=kind, id=id, payload=payload, **options)


class Receipt(NamedTuple):
    """What became of a start, an upsert or a signal, see README.md; `item` is the caller's."""

    item: Any
    outcome: str
    reason: str = ""
    field: str = ""


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
        self._method, self.__doc__ = method, method.__doc__

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

    def __init__(self, http: Http, seconds: float) -> None:
        self.http: Http = http
        self.seconds = seconds

    async def send(
        self, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None, **more: Any
    ) -> Any:
        """Ask the API, such as GET /v1/gates, until it answers; gives its document, or those of all lines."""
        pause, give_up_at = 0.1, time.monotonic() + more.pop("seconds", self.seconds)
        is_repeated = more.pop("is_repeated", True)
        more["content"] = body if body is None or isinstance(body, bytes) else _to_json(body)
        more["params"] = _to_fields("due", **(query or {}))
        while True:
            try:
                answer = self.http.request(method, path, timeout=max(give_up_at - time.monotonic(), 0.1), **more)
                return _read(answer if isinstance(answer, httpx.Response) else await answer)
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
        return await message.signal(name, reason=reason)

    return Verb(verb)


class AnyMessage(Caller[Http]):
    """One message, by kind and id; `receipt` says what became of the start or upsert that gave this object."""

    def __init__(self, caller: Caller[Http], kind: str, id: str, receipt: Receipt | None = None) -> None:
        super().__init__(caller.http, caller.seconds)
        self.kind, self.id, self.receipt = kind, id, receipt
        if not (kind and id):
            raise InvalidEnvelope("id: is empty, or kind is; give both", field="id" if kind else "kind")
        self.path = "/v1/messages/" + "/".join(quote(name, safe="").replace(".", "%2E") for name in (kind, id))

    run_now = _make_verb("run_now")  # as soon as a worker is free; a parked message gets fresh attempts
    pause = _make_verb("pause")  # run nothing until `resume`; other signals still change the message
    resume = _make_verb("resume")  # a due time that has passed meanwhile counts as due now
    stop = _make_verb("stop")  # for good; a running handler finishes first

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
        told = await self.send("POST", f"{self.path}/{name}", {}, _to_fields("due_at", **given))
        return Receipt(None, told.get("outcome", "taken"), told["note"])

    @Verb
    async def show(self, *, payload: bool = True) -> MessageView:
        """Show it, alive or finished; raises MessageNotFound."""
        return MessageView(await self.send("GET", self.path, {"payload": payload}))

    @Verb
    async def result(self, timeout: timedelta | None = None) -> Any:
        """Wait until it is done, and give its result; raises NoResult or RetryLater."""
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
                raise NoResult(f"{told}, so it has no result")
            if not left:
                raise RetryLater(f"{told}, and has not ended within {timeout}; wait longer, or look at it")


class AnyClient(Caller[Http]):
    """All messages behind one HTTP API."""

    def message(self, kind: str, id: str) -> AnyMessage[Http]:
        """Give a message by its name; nothing is sent."""
        return AnyMessage(self, kind, id)

    @Verb
    async def start(self, kind: str, id: str, payload: Any = None, **options: Unpack[Options]) -> AnyMessage[Http]:
        """Start a message, also one that has finished; raises MessageAlive and InvalidEnvelope."""
        return await self._bring("POST", kind, id, payload=payload, **options)

    @Verb
    async def upsert(self, kind: str, id: str, payload: Any = None, **options: Unpack[Options]) -> AnyMessage[Http]:
        """Start a message, or change it if it is alive; a condition that does not hold raises ConditionUnmet."""
        return await self._bring("PUT", kind, id, payload=payload, **options)

    async def _bring(self, method: str, kind: str, message_id: str, **given: Any) -> AnyMessage[Http]:
        message = self.message(kind, message_id)
        query = {name: given.pop(name, None) for name in ("if_version", "if_due_before")}
        body = {"idempotency_key": uuid.uuid4().hex, **_to_fields("scheduled_at", **given)}
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
                    part[name] = item, _to_json(own_key | _to_fields("scheduled_at", **vars(item)))
            except InvalidEnvelope as exc:
                yield Receipt(item, "rejected", str(exc), exc.field)


Client = AnyClient[httpx.AsyncClient]
Message = AnyMessage[httpx.AsyncClient]


@asynccontextmanager
async def connect(url: str = "", token: str = "", *, timeout: timedelta = MINUTE) -> AsyncGenerator[Client]:
    """Give a client for an `async with` block; a call takes `timeout` with its repeats. Raises Misconfigured."""
    async with httpx.AsyncClient(**_find_options(url, token)) as http:
        yield Client(http, timeout.total_seconds())


@contextmanager
def connect_sync(url: str = "", token: str = "", *, timeout: timedelta = MINUTE) -> Generator[AnyClient[httpx.Client]]:
    """Give a client that blocks, for a `with` block; all else is as with `connect`."""
    with httpx.Client(**_find_options(url, token)) as http:
        yield AnyClient(http, timeout.total_seconds())


def _find_options(url: str, token: str) -> dict[str, Any]:
    url = (url or os.environ.get(URL_VARIABLE, DEFAULT_URL)).rstrip("/")
    path = os.environ.get(TOKEN_FILE_VARIABLE)
    if not re.fullmatch(r"https?://([\w.-]+|\[[\da-f:]+\])(:\d+)?(/\S*)?", url):
        raise Misconfigured(f"url: is {url!r}, which is no address of HTTP; write it like {DEFAULT_URL}")
    try:
        token = token or os.environ.get(TOKEN_VARIABLE) or (Path(path).read_text("utf-8").strip() if path else "")
    except (OSError, UnicodeDecodeError) as exc:
        raise Misconfigured(f"{TOKEN_FILE_VARIABLE}: {path} can't be read ({exc}); correct it") from exc
    if not re.fullmatch(r"[!-~]*", token):
        raise Misconfigured("token: has characters that no HTTP header may have; check where it comes from")
    told = {"Authorization": f"Bearer {token}"} if token else {}
    return {"base_url": url, "headers": {"User-Agent": "dormice-client", "Content-Type": "application/json"} | told}


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
    media_type, status = answer.headers.get("content-type", "").partition(";")[0], answer.status_code
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


def _to_fields(due: str, at: datetime | None = None, after: timedelta | None = None, **given: Any) -> dict[str, Any]:
    """Give arguments as the API takes them, `due` being its name for the moment; raises InvalidEnvelope."""
    if at is not None and after is not None:
        raise InvalidEnvelope("at: is given beside after; leave one of them out", field="at")
    if tolerance := given.pop("tolerance", None):
        given["tolerance_seconds"] = tolerance.total_seconds()
    given[due] = at if after is None else datetime.now(UTC) + after
    said = {name: value for name, value in given.items() if name == "payload" or value not in (None, "")}
    return {name: _to_moment(value, name) if isinstance(value, datetime) else value for name, value in said.items()}


def _to_json(document: Any) -> bytes:
    """Write JSON; dataclasses, pydantic models and datetimes in it are translated; raises InvalidEnvelope."""
    try:
        return json.dumps(document, default=_translate, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidEnvelope(f"payload: can't be written as JSON ({exc}); use plain values", field="payload") from exc


def _to_moment(moment: datetime, field: str = "payload") -> str:
    if moment.tzinfo is None:
        raise InvalidEnvelope(f"{field}: {moment.isoformat()} has no time zone; add one, for example UTC", field=field)
    return moment.isoformat()


def _translate(value: Any) -> Any:
    if isinstance(value, datetime):
        return _to_moment(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is none of its types")
