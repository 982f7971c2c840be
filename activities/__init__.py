"""The plug-in API: what the author of a handler imports."""

from activities.context import Context
from activities.handler import Handler, handler
from activities.outcome import Again, Done, Message, Reject, RetryAfter

__all__ = ["Again", "Context", "Done", "Handler", "Message", "Reject", "RetryAfter", "handler"]
