"""The `dormice-canary` handler: a message that comes back every minute, so that its lane is seen to be alive."""

from datetime import timedelta

from activities.api.context import Context
from activities.api.handler import handler
from activities.api.outcome import Again, Message

CANARY = "dormice-canary"  # a kind that nobody would give a handler of their own
CANARY_EVERY = timedelta(minutes=1)


@handler(CANARY, lane="short")
async def canary(message: Message, ctx: Context) -> Again:  # noqa: ARG001 — what every handler takes
    """Come back in a minute, and never ahead of time; the setting `canary_lanes` begins one for a lane."""
    return Again(after=CANARY_EVERY, earliest=CANARY_EVERY, tolerance=timedelta(0), reason="seen")
