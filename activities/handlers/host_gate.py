"""The gate of a host: what a 429 closes for all messages that need the same site."""

import contextlib
from typing import TYPE_CHECKING

from activities.api.outcome import Message
from shared.errors import GiveUp
from shared.keepers.gates import GATE_MAX_BYTES

if TYPE_CHECKING:
    from yarl import URL

TRANSIENT = frozenset({408, 425, 429})  # the statuses below 500 after which the same request may succeed


def find_host_gate(message: Message) -> str:
    """Name the gate of a URL's host, which a 429 closes; "" for an invalid URL, whose message is rejected later."""
    from activities.http.urls import read_url  # noqa: PLC0415 — a worker may make no requests at all

    with contextlib.suppress(GiveUp, LookupError, TypeError, AttributeError):
        return name_host_gate(read_url(message.payload["url"]))
    return ""


def name_host_gate(url: "URL") -> str:
    """Name the gate of a URL's host, with its port if that is not the scheme's own."""
    from activities.http.urls import name_host  # noqa: PLC0415 — see above

    return f"host:{name_host(url)}"[:GATE_MAX_BYTES]
