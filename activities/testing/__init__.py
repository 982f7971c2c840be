"""Tests of handlers, without a server: messages and contexts to call one with, and whole lives in virtual time."""

from typing import TYPE_CHECKING, Any

from activities.testing.context import make_context, make_message
from activities.testing.life import BEGIN, Cycle, EndlessLife, Life, live

__all__ = ["BEGIN", "Cycle", "EndlessLife", "Life", "live", "make_context", "make_message", "open_site"]

if TYPE_CHECKING:
    from activities.testing.site import open_site


def __getattr__(name: str) -> Any:
    """Load what stands on aiohttp only for tests that need it."""
    if name == "open_site":
        from activities.testing.site import open_site  # noqa: PLC0415 — see above

        return open_site
    raise AttributeError(name)
