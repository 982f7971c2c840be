"""The limit of a host: how many calls a worker process makes to it at once."""

from collections.abc import Callable

from activities.api.limit import Limit
from activities.api.outcome import Message
from shared.errors import GiveUp
from shared.keepers.limits import check_key


def per_host(url_of: Callable[[Message], str], at_once: int = 0) -> Limit:
    """Limit how many calls of one worker process are at one host at once; without a number, the setting `http_at_once`.

    `url_of` gives a message's URL; a message for which it raises, or gives no URL, has no limit. All handlers that are
    limited so share the count of a host.
    """

    def find_host(message: Message) -> str:
        from activities.http.urls import read_url  # noqa: PLC0415 — a worker may make no requests at all

        try:
            return check_key(f"host:{read_url(url_of(message)).raw_host}")
        except (GiveUp, LookupError, TypeError, ValueError, AttributeError):
            return ""  # its handler says what is wrong

    return Limit(key=find_host, at_once=at_once, is_per_process=True)


def find_url(message: Message) -> str:
    """Give the URL that a message is for."""
    return message.payload["url"]
