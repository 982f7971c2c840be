"""Calls: what is sent, and how often, is written once as generators of steps; each client takes the steps its way."""

import asyncio
import functools
import random
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar, overload

import httpx

from dormice.errors import Misconfigured, RetryLater, to_error

P = ParamSpec("P")
T = TypeVar("T")

PAUSE_FIRST_SECONDS, PAUSE_MAX_SECONDS = 0.1, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, which may be repeated: by its method, its key or its meaning the API does nothing twice."""

    method: str
    path: str
    query: Mapping[str, str | int] = field(default_factory=dict[str, str | int])
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    seconds: float = 0.0
    """How long the API may wait before it answers; when it is sent, how long the client does."""

    @property
    def arguments(self) -> dict[str, Any]:
        """What httpx is called with."""
        body = {} if self.content is None else {"Content-Type": "application/json"}
        found = {"method": self.method, "url": self.path, "params": self.query, "content": self.content}
        return found | {"headers": {**body, **self.headers}, "timeout": self.seconds}


Answer: TypeAlias = httpx.Response | httpx.TransportError
Steps: TypeAlias = Generator[Call | float, Any, T]
"""Yields calls, which are answered with an Answer, and pauses in seconds; returns what the caller gets."""


def send(call: Call, patience: float) -> Steps[Any]:
    """Send a call until it is answered, for `patience` seconds and those that the API may wait; gives the document."""
    give_up_at, attempts = time.monotonic() + patience + call.seconds, 0
    while True:
        answer: Answer = yield replace(call, seconds=max(give_up_at - time.monotonic(), PAUSE_FIRST_SECONDS))
        if isinstance(answer, httpx.Response) and answer.is_success:
            return _read(answer)
        attempts += 1
        yield find_pause(answer, attempts, give_up_at)


def find_pause(answer: Answer | Exception | None, attempts: int, give_up_at: float) -> float:
    """Give how many seconds to wait before the next attempt; raises the error if there is to be none."""
    ceiling = min(PAUSE_FIRST_SECONDS * 2 ** min(attempts, 10), PAUSE_MAX_SECONDS)
    pause = ceiling * random.uniform(0.5, 1)  # noqa: S311 — jitter needs no cryptography
    if isinstance(answer, httpx.Response) and (asked := answer.headers.get("retry-after", "")).isdecimal():
        pause += float(asked)
    error = to_error(answer)
    if error is not None and (not isinstance(error, RetryLater) or time.monotonic() + pause > give_up_at):
        raise error from (answer if isinstance(answer, httpx.TransportError) else None)
    return pause


def _read(answer: httpx.Response) -> Any:
    if not answer.headers.get("content-type", "").startswith("application/json"):
        sentence = f"{answer.url.copy_with(query=None)} answers, but is no dormice API"
        raise Misconfigured(f"{sentence}; give the address of 'dormice serve'", status=answer.status_code)
    return answer.json()


class AsyncCaller:
    """Takes steps with an asyncio client of httpx; each call has `patience` seconds in all."""

    def __init__(self, http: httpx.AsyncClient, patience: float) -> None:
        self.http = http
        self.patience = patience

    async def run(self, steps: Steps[T]) -> T:
        """Take all steps."""
        answer: Answer | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = await self._take(step)

    async def _take(self, step: Call | float) -> Answer | None:
        if not isinstance(step, Call):
            return await asyncio.sleep(step)
        try:
            return await self.http.request(**step.arguments)
        except httpx.TransportError as exc:
            return exc


class SyncCaller:
    """Takes steps with a client of httpx that blocks; each call has `patience` seconds in all."""

    def __init__(self, http: httpx.Client, patience: float) -> None:
        self.http = http
        self.patience = patience

    def run(self, steps: Steps[T]) -> T:
        """Take all steps."""
        answer: Answer | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = self._take(step)

    def _take(self, step: Call | float) -> Answer | None:
        if not isinstance(step, Call):
            return time.sleep(step)
        try:
            return self.http.request(**step.arguments)
        except httpx.TransportError as exc:
            return exc


class Verb(Generic[P, T]):
    """Makes a method of a generator of steps: one to await where its owner is an AsyncCaller, else a plain one."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self.__doc__ = steps.__doc__
        self.steps = steps

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: AsyncCaller, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, owner: SyncCaller, kind: type) -> Callable[P, T]: ...
    def __get__(self, owner: AsyncCaller | SyncCaller | None, kind: type) -> Any:
        if owner is None:
            return self

        @functools.wraps(self.steps)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return owner.run(self.steps(owner, *args, **kwargs))

        return call
