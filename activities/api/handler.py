"""The `handler` decorator: ties an async function to a kind and says how its cycles are run."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from activities.api.context import Context
from activities.api.limit import Limit
from activities.api.outcome import Again, Done, Message, Reject, read_gate
from activities.api.payload import PayloadModel, make_model
from shared.errors import InvalidHandler
from shared.keepers.gates import check_gate
from shared.lanes import LANES
from shared.messages.encoding import Pack
from shared.messages.envelope import KIND_MAX_BYTES, KIND_PATTERN
from shared.messages.timespan import HORIZON

Gate = str | Callable[[Message], str | None] | None
HandlerFunction = Callable[[Message, Context], Awaitable[Again | Done | Reject]]
ExpiryFunction = Callable[[Message, Context], Awaitable[None]]
ParkedHook = Callable[[Message, Context, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler function with what it declares for its kind; calling the object calls the function."""

    kind: str
    function: HandlerFunction
    lane: str
    max_attempts: int
    timeout: timedelta | None
    backoff: timedelta
    backoff_max: timedelta
    encoding: Pack | None = None  # how messages of the kind become workflows: a workflow each, or packs of many
    gate: Gate = None  # the gate that its messages need, which may be closed for all of them; None if there is none
    payload: PayloadModel | None = None  # what its payloads are; None: any JSON
    limit: Limit | None = None  # how many calls may begin in a period, or be at work at once
    expires_after: timedelta | None = None  # counted from the first due time, for messages that give no expiry
    on_expiry: ExpiryFunction | None = None  # called before a message ends as expired
    keeps_age: bool = False  # whether its messages keep when they were first due
    on_parked: ParkedHook | None = None  # called with the reason when a call parks its message

    def __call__(self, message: Message, ctx: Context) -> Awaitable[Again | Done | Reject]:
        """Call the function itself, as tests of a handler do."""
        return self.function(message, ctx)

    def gate_of(self, message: Message) -> str:
        """Name the gate that a message needs, or "" for none. Raises InvalidOutcome for an invalid name."""
        gate = self.gate(message) if callable(self.gate) else self.gate
        return read_gate("handler", gate)

    def timeout_on(self, lane: str) -> timedelta:
        """Return how long one call may take on a lane: as declared, up to the lane's maximum, or the lane's own."""
        bucket = LANES[lane]
        return min(self.timeout or bucket.handler_timeout, bucket.handler_timeout_max)

    @property
    def summary(self) -> str:
        """First line of the function's docstring, for `dormice handlers`."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


def handler(
    kind: str,
    *,
    lane: str = "short",
    max_attempts: int = 5,
    timeout: timedelta | None = None,
    backoff: timedelta = timedelta(seconds=2),
    backoff_max: timedelta = timedelta(hours=1),
    encoding: Pack | None = None,
    gate: Gate = None,
    payload: Any = None,
    before: Callable[[Any], Any] | None = None,
    limit: Limit | None = None,
    expires_after: timedelta | None = None,
    on_expiry: ExpiryFunction | None = None,
    keeps_age: bool = False,
    on_parked: ParkedHook | None = None,
) -> Callable[[HandlerFunction], Handler]:
    """Make an async function the handler of a kind.

    The function is called at least once per version with (Message, Context) and returns `Again`, `Done` or
    `Reject`. An exception is retried `max_attempts` times with exponential backoff and jitter between `backoff`
    and `backoff_max`, then the message is parked. `timeout` (the lane's own when left out) bounds one call.
    `encoding=Pack(…)` keeps many messages in one workflow; left out, each has a workflow of its own.
    `gate` names what its messages need, or is a function of the message that names it: while that gate is closed, see
    `RetryAfter`, they wait without a call. The function must be quick, because it runs before each call.
    `payload` is a pydantic model, dataclass or TypedDict: payloads are checked by it where messages enter, and
    `message.payload` is one. `before` gets JSON that the model can't read and gives JSON that it can.
    `limit` says how many calls of a key may begin in a period, or be at work at once, see `Limit`.
    A message ends as expired at `expires_after` from its first due time, unless it gives an expiry of its own;
    `on_expiry`, an async function of (Message, Context), is called before. `keeps_age` fills `message.started_at`.
    `on_parked`, an async function, is called with (Message, Context, reason) when a call parks its message: at least
    once, for three seconds at most; whatever it raises is only logged.
    Raises InvalidHandler at import when a value is unusable.

        @handler("feed", lane="short", max_attempts=5)
        async def poll(message: Message, ctx: Context) -> Again:
            async with ctx.http.get(message.payload["url"]) as answer:
                await answer.read()
            return Again(after=timedelta(hours=6), reason=f"status {answer.status}")
    """
    where = f"handler {kind!r}"
    _check_places(where, kind, lane, gate)
    if max_attempts < 1:
        raise InvalidHandler(f"{where}: max_attempts is {max_attempts}; give at least 1")
    _check_timeout(where, timeout, lane)
    _check_expiry(where, expires_after, on_expiry)
    _check_hook(where, on_parked)
    if not timedelta(0) < backoff <= backoff_max:
        raise InvalidHandler(f"{where}: backoff {backoff} must be above 0 and at most backoff_max {backoff_max}")
    model = make_model(where, payload, before)

    def decorate(function: HandlerFunction) -> Handler:
        if not inspect.iscoroutinefunction(function):
            raise InvalidHandler(f"{where}: {function!r} is no 'async def'; handlers run on one event loop")
        numbers = (lane, max_attempts, timeout, backoff, backoff_max)
        age = (expires_after, on_expiry, keeps_age)
        return Handler(kind, function, *numbers, encoding, gate, model, limit, *age, on_parked)

    return decorate


def _check_places(where: str, kind: str, lane: str, gate: Gate) -> None:
    if not KIND_PATTERN.fullmatch(kind) or len(kind) > KIND_MAX_BYTES:
        raise InvalidHandler(f"{where}: a kind is 1 to {KIND_MAX_BYTES} of a-z 0-9 _ . -, letter or digit first")
    if lane not in LANES:
        raise InvalidHandler(f"{where}: there is no lane {lane!r}; use one of {', '.join(LANES)}")
    if isinstance(gate, str):
        try:
            check_gate(gate)
        except ValueError as exc:
            raise InvalidHandler(f"{where}: {exc}") from exc


def _check_timeout(where: str, timeout: timedelta | None, lane: str) -> None:
    if timeout is not None and not timedelta(0) < timeout <= LANES[lane].handler_timeout_max:
        raise InvalidHandler(
            f"{where}: a timeout of {timeout} is not between 0 and {LANES[lane].handler_timeout_max} on lane {lane}; "
            "use a longer lane"
        )


def _check_hook(where: str, hook: object) -> None:
    if hook is not None and not inspect.iscoroutinefunction(hook):
        raise InvalidHandler(f"{where}: on_parked={hook!r} is no 'async def'; write one that takes three arguments")


def _check_expiry(where: str, expires_after: timedelta | None, on_expiry: object) -> None:
    if expires_after is not None and not timedelta(0) < expires_after <= HORIZON:
        raise InvalidHandler(f"{where}: expires_after {expires_after} is not between 0 and ten years; correct it")
    if on_expiry is not None and not inspect.iscoroutinefunction(on_expiry):
        raise InvalidHandler(f"{where}: on_expiry {on_expiry!r} is no 'async def'; it runs on the handlers' event loop")
