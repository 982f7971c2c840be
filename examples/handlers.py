"""The demonstration's handler: visits a page as the built-in `http` handler does, and keeps the ledger."""

from activities import Again, Context, Done, Message, Reject, handler
from activities.handlers.http import http
from examples.ledger import ledgered


@handler("feed", lane="short")
@ledgered
async def visit(message: Message, ctx: Context) -> Again | Done | Reject:
    """Visit the page and come back when it has probably changed."""
    return await http(message, ctx)
