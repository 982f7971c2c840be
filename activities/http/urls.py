"""URLs that handlers visit: read as browsers read them, refused where nobody may go, and shown without their keys."""

import re
from functools import lru_cache
from urllib.parse import quote, urljoin, urlsplit

from yarl import URL

from activities.http.address_guard import AddressRefused

SHOWN_MAX = 100  # characters
READ_MAX = 1000  # URLs that are kept as read, because gate, limit and handler each ask for a message's

_HOST = re.compile(r"[._-]*[a-z0-9:][a-z0-9._:-]*")  # names as DNS has them, and addresses; yarl lets more through
_KEPT = "%:/?[]@!$&'()*+,;=~"  # what a URL may hold beside letters, digits and "_.-"; a "%" begins what is escaped


@lru_cache(maxsize=READ_MAX)
def read_url(text: str) -> URL:
    """Read a URL that handlers may visit.

    Names in other scripts become punycode by UTS 46, emoji by the older rules of IDNA; of path and query only that is
    escaped which can't be sent, as in browsers. Raises AddressRefused, with half a sentence, unless it is an http or
    https URL with a host and without credentials.
    """
    return _read(text, "")


def read_redirect(target: str, base: URL) -> URL:
    """Read the target of a redirect from `base`; raises AddressRefused as `read_url` does."""
    where = "redirects to a URL that "
    try:
        joined = urljoin(str(base), target.strip())
    except ValueError as exc:
        raise AddressRefused(f"{where}can't be read ({exc}); correct it") from exc

    return _read(joined, where)


def show_url(url: URL) -> str:
    """Shorten a URL for an error; without its query, which may contain a site's keys."""
    text = str(url.with_query(None).with_fragment(None)) + ("?…" if url.raw_query_string else "")
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"


def name_host(url: URL) -> str:
    """Give a URL's host, with its port where that is not the scheme's own."""
    host = url.host_subcomponent or ""
    return host if url.is_default_port() else f"{host}:{url.port}"


def _read(text: str, where: str) -> URL:
    try:
        parts = urlsplit(text.strip())
        place = URL(f"{parts.scheme}://{parts.netloc}") if parts.netloc else URL(f"{parts.scheme}:")
        host = place.raw_host or ""
        path = _escape(parts.path)
        query = _escape(parts.query)
    except ValueError as exc:  # also what Unicode has no name for
        raise AddressRefused(f"{where}can't be read ({exc}); correct it") from exc

    if parts.scheme not in ("http", "https"):
        raise AddressRefused(f"{where}has the scheme {parts.scheme[:20]!r}; only http and https are visited")

    if not _HOST.fullmatch(host):
        raise AddressRefused(f"{where}names no host; write it like https://example.org/feed")

    port = place.explicit_port
    if port is not None and not 1 <= port <= 65535:
        raise AddressRefused(f"{where}has the port {port}; give one from 1 to 65535")

    if place.raw_user is not None or place.raw_password is not None:
        raise AddressRefused(f"{where}holds credentials; payloads are no place for them, so take them out")

    return URL.build(
        scheme=parts.scheme,
        authority=name_host(place),
        path=path or "/",
        query_string=query,
        encoded=True,
    )


def _escape(text: str) -> str:
    """Escape what can't be sent, and leave what is escaped already: servers may compare a URL byte by byte."""
    # aiohttp reads a header that is no UTF-8 with surrogates, which stand for its very bytes
    return quote(text.encode("utf-8", "surrogateescape"), safe=_KEPT)
