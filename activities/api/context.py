"""What a handler may use besides its message: attempt, idempotency key, heartbeat, HTTP client, logger, lateness."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from activities.api.resources import Opener, Resources
from shared.messages.message import HandlerCall
from shared.messages.placement import workflow_id
from shared.settings import Settings
from shared.telemetry.spans import Span

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")


def no_heartbeat() -> None:
    """Do nothing: local activities have no heartbeat, and a batch sends those of all its messages."""


@dataclass(frozen=True, kw_only=True)  # without slots, because `build_context` fills its dictionary
class Context:
    """What a handler gets for one call, besides the message.

    `attempt` is 1 for the first try of a version and counts failed tries. `idempotency_key` is the same for every
    try of one version: pass it to every call that has a side effect. `started_at` is when this try began.
    """

    attempt: int
    idempotency_key: str
    due_at: datetime
    started_at: datetime
    settings: Settings
    get_session: Callable[[], "aiohttp.ClientSession"] = field(repr=False)
    logger: logging.LoggerAdapter[logging.Logger]
    beat: Callable[[], None] = field(default=no_heartbeat, repr=False)
    resources: Resources = field(default_factory=Resources, repr=False)

    @property
    def lateness(self) -> timedelta:
        """How long after its due time this call began; zero when idle capacity ran it early."""
        return max(self.started_at - self.due_at, timedelta(0))

    @property
    def http(self) -> "aiohttp.ClientSession":
        """The session that all handlers of the process share, which reaches public addresses only."""
        return self.get_session()

    def heartbeat(self) -> None:
        """Say that the handler is alive, on medium and long lanes; raises nothing and may be called often."""
        self.beat()

    def shared(self, opener: Opener[T]) -> Awaitable[T]:
        """Give what all handlers of the process share: opened at the first use, closed when the process ends.

        `opener` is a function from the settings to an async context manager, at the level of a module: it is the key.
        """
        return self.resources.get(opener, self.settings)


def build_context(
    around: "CallContext",
    started_at: float,
    settings: Settings,
    get_session: Callable[[], "aiohttp.ClientSession"],
    resources: Resources,
) -> Context:
    """Make the context of a call; filled at once, in half of the time that the constructor of a frozen class takes."""
    call = around.call
    context = object.__new__(Context)
    vars(context).update(
        attempt=call.attempt,
        idempotency_key=f"{call.kind}:{call.id}:{call.version}",
        due_at=datetime.fromtimestamp(call.due_at, UTC),
        started_at=datetime.fromtimestamp(started_at, UTC),
        settings=settings,
        get_session=get_session,
        logger=HandlerLogger(around),
        beat=around.beat,
        resources=resources,
    )

    return context


class CallContext(NamedTuple):
    """The data of one handler call: its heartbeat, its span, and the fields of its log lines."""

    call: HandlerCall
    beat: Callable[[], None]
    span: Span

    @property
    def identity(self) -> dict[str, str]:
        """See `shared.telemetry.logs.About`."""
        return {"workflow_id": workflow_id(self.call.kind, self.call.id), "correlation_id": self.call.correlation_id}

    @property
    def fields(self) -> dict[str, object]:
        """See `shared.telemetry.logs.About`."""
        of_call = {name: getattr(self.call, name) for name in ("kind", "lane", "version", "attempt")}
        return {**self.identity, **of_call, **self.span.ids}


class HandlerLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the message's ids to every line that a handler logs."""

    extra = None  # set here, because the base's own set-up, which looks a logger up, is left to the first line

    def __init__(self, around: CallContext) -> None:
        self._around = around

    @cached_property
    def logger(self) -> logging.Logger:  # pyright: ignore[reportIncompatibleVariableOverride] — most calls log nothing
        """The logger of the message's kind."""
        return logging.getLogger(f"dormice.handler.{self._around.call.kind}")

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the ids into the record's fields."""
        return msg, {**kwargs, "extra": {**self._around.fields, **kwargs.get("extra", {})}}
