"""Messages and contexts for one call of a handler in a test."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from activities.api.context import CallContext, Context, build_context, no_heartbeat
from activities.api.handler import Handler
from activities.api.outcome import Message
from activities.api.resources import Resources
from shared.messages.message import HandlerCall
from shared.settings import Settings
from shared.telemetry.spans import NO_SPAN

if TYPE_CHECKING:
    import aiohttp


def make_message(
    handler: Handler,
    payload: Any = None,
    *,
    id: str = "1",  # noqa: A002 — the message's own word
    version: int = 0,
    lane: str | None = None,
    priority: int = 3,
    tenant: str = "",
    correlation_id: str = "",
) -> Message:
    """Make a message of a handler's kind, on the handler's lane if no other is given."""
    return Message(
        kind=handler.kind,
        id=id,
        version=version,
        lane=lane or handler.lane,
        payload=payload,
        priority=priority,
        tenant=tenant,
        correlation_id=correlation_id,
    )


def make_context(
    message: Message | None = None,
    *,
    attempt: int = 1,
    due_at: datetime | None = None,
    started_at: datetime | None = None,
    settings: Settings | None = None,
    http: "aiohttp.ClientSession | None" = None,
    resources: Resources | None = None,
) -> Context:
    """Make the context of one call; its idempotency key is that of `message`.

    `started_at` is now when left out, and `due_at` is `started_at`. Without `http`, every request raises
    `aiohttp.ClientConnectionError`, so that no test reaches a network by accident; `open_site` gives one. `resources`
    are what `ctx.shared` opens.
    """
    started = (started_at or due_at or datetime.now(UTC)).timestamp()
    due = due_at.timestamp() if due_at else started
    about = message or Message(kind="test", id="1", version=0, lane="short", payload=None)
    call = HandlerCall(
        kind=about.kind,
        id=about.id,
        lane=about.lane,
        version=about.version,
        attempt=attempt,
        payload=None,
        due_at=due,
        correlation_id=about.correlation_id,
    )
    around = CallContext(call, no_heartbeat, NO_SPAN)
    shared = Resources() if resources is None else resources

    return build_context(around, started, settings or Settings(), give_or_refuse(http), shared)


def give_or_refuse(session: "aiohttp.ClientSession | None") -> Callable[[], "aiohttp.ClientSession"]:
    """Give what finds a session for a handler; without one, each use of it fails with a sentence that says what to do.

    It raises what aiohttp raises where nothing answers.
    """

    def get_session() -> "aiohttp.ClientSession":
        if session is not None:
            return session

        import aiohttp  # noqa: PLC0415 — loads for a quarter of a second, and few handlers' tests need it

        raise aiohttp.ClientConnectionError("no site answers in this test; give http=, a session of open_site")

    return get_session
