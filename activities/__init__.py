"""The plug-in API: what the author of a handler imports."""

from activities.context import Context
from activities.handler import handler
from activities.outcome import Again, Done, Message, Reject, RetryAfter
from shared.encoding import Pack

__all__ = ["Again", "Context", "Done", "Message", "Pack", "Reject", "RetryAfter", "handler"]
