"""The plug-in API: what the author of a handler imports."""

from activities.api.calendar import cron, daily
from activities.api.context import Context
from activities.api.handler import handler
from activities.api.outcome import Again, Done, Message, Reject, RetryAfter
from shared.messages.encoding import Pack

__all__ = ["Again", "Context", "Done", "Message", "Pack", "Reject", "RetryAfter", "cron", "daily", "handler"]
