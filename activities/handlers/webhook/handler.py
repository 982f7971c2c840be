"""The `webhook` handler: posts a message to a URL, and does what the answer says."""

from datetime import timedelta

from activities.api.context import Context
from activities.api.handler import handler
from activities.api.outcome import Again, Done, Message, Reject
from activities.handlers.host_gate import find_host_gate
from activities.handlers.host_limit import find_url, per_host

# some two hours in all, which a receiver may take to come back
ATTEMPTS = 12
BACKOFF = timedelta(seconds=5)


@handler("webhook", lane="short", max_attempts=ATTEMPTS, backoff=BACKOFF, gate=find_host_gate, limit=per_host(find_url))
async def webhook(message: Message, ctx: Context) -> Again | Done | Reject:
    """Post the message to a URL and do what the answer says: again, done, reject or retry later.

    docs/webhook.md has the fields of the payload, the request, and the outcome of each answer.
    """
    from activities.handlers.webhook.delivery import post_and_decide  # noqa: PLC0415 — a worker may make no requests

    return await post_and_decide(message, ctx)
