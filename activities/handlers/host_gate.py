"""The gate of a host: what a 429 closes for all messages that need the same site."""

import contextlib

import httpx

from activities.api.outcome import Message
from activities.http.address_guard import read_url
from shared.errors import GiveUp
from shared.keepers.gates import GATE_MAX_BYTES

TRANSIENT = frozenset({408, 425, 429})  # the statuses below 500 after which the same request may succeed


def find_host_gate(message: Message) -> str:
    """Name the gate of a URL's host, which a 429 closes; "" for an invalid URL, whose message is rejected later."""
    with contextlib.suppress(GiveUp, KeyError, TypeError):
        return name_host_gate(read_url(message.payload["url"]))
    return ""


def name_host_gate(url: httpx.URL) -> str:
    """Name the gate of a URL's host, with its port if the URL names one."""
    return f"host:{url.netloc.decode()}"[:GATE_MAX_BYTES]
