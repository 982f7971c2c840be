"""Calls: requests that are sent again while that may help, written once, to be awaited or to block."""

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from httpx import AsyncClient, Client, Response, TransportError

from dormice.documents import to_fields, to_json
from dormice.errors import PASSING, Misconfigured, RetryLater, read_problem

P = ParamSpec("P")
T = TypeVar("T")
Made_co = TypeVar("Made_co", covariant=True)
Http = TypeVar("Http", AsyncClient, Client)


class Verb(Generic[P, Made_co]):
    """Makes a method block where its owner's client of httpx blocks: it never waits then, and is run to its end."""

    def __init__(self, method: Callable[Concatenate[Any, P], Made_co]) -> None:
        self._method, self.__doc__ = method, method.__doc__

    @overload
    def __get__(self: "Verb[P, Coroutine[Any, Any, T]]", owner: "Caller[Client]", _: type) -> Callable[P, T]: ...
    @overload
    def __get__(self: "Verb[P, AsyncGenerator[T]]", owner: "Caller[Client]", _: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, owner: "Caller[AsyncClient]", _: type) -> Callable[P, Made_co]: ...
    def __get__(self, owner: "Caller[Any]", _: type) -> Any:
        def call(*args: P.args, **more: P.kwargs) -> Any:
            made = self._method(owner, *args, **more)
            return _run(made) if isinstance(owner.http, Client) else made

        return call


class Caller(Generic[Http]):
    """What speaks to the API, awaited or blocking as its client of httpx; a call takes `seconds` with its repeats."""

    def __init__(self, http: Http, seconds: float) -> None:
        self.http: Http = http
        self.seconds = seconds

    async def send(self, method: str, path: str, query: Any = None, body: Any = None, **more: Any) -> Any:
        """Ask the API, such as GET /v1/gates, until it answers; gives its document, or those of all lines."""
        pause, give_up_at = 0.1, time.monotonic() + more.pop("seconds", self.seconds)
        more["content"] = body if body is None or isinstance(body, bytes) else to_json(body)
        more["params"] = to_fields("due", **cast("dict[str, Any]", query or {}))
        while True:
            try:
                answer = self.http.request(method, path, timeout=max(give_up_at - time.monotonic(), 0.1), **more)
                return _read(answer if isinstance(answer, Response) else await answer)
            except (TransportError, RetryLater) as exc:
                why = f"the HTTP API at {self.http.base_url} does not answer ({str(exc) or type(exc).__name__})"
                error = exc if isinstance(exc, RetryLater) else RetryLater(f"{why}; try again later")
            wait = error.pause_seconds + pause * random.uniform(0.5, 1)  # noqa: S311 — jitter needs no cryptography
            if time.monotonic() + wait > give_up_at:
                raise error
            _ = time.sleep(wait) if isinstance(self.http, Client) else await asyncio.sleep(wait)
            pause = min(2 * pause, 5.0)

    call = Verb(send)


def _run(made: Any) -> Any:
    if isinstance(made, AsyncGenerator):
        return iter(lambda: _run(anext(cast("Any", made), None)), None)
    try:
        made.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a method of a client that blocks has waited for an event loop")


def _read(answer: Response) -> Any:
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
