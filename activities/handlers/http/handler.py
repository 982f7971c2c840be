"""The `http` handler: visits a URL again and again, as often as it changes, and keeps a digest instead of the body."""

from activities.api.context import Context
from activities.api.handler import handler
from activities.api.outcome import Again, Message, Reject
from activities.handlers.host_gate import find_host_gate
from activities.handlers.host_limit import find_url, per_host
from shared.lanes import LANES


# the setting http_timeout ends a visit, so the handler declares the most that its lane allows
@handler(
    "http", lane="short", timeout=LANES["short"].handler_timeout_max, gate=find_host_gate, limit=per_host(find_url)
)
async def http(message: Message, ctx: Context) -> Again | Reject:
    """Visit a URL with a conditional GET and come back sooner when it changed, later when it did not.

    docs/handlers.md has the fields of its payload, and the outcome of each answer.
    """
    from activities.handlers.http.visit import visit_and_decide  # noqa: PLC0415 — a worker may make no requests at all

    return await visit_and_decide(message, ctx)
