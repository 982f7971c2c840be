"""The HTTP client that all handlers of one process share, and how its answers are read within limits."""

import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Self

import httpcore
import httpx

from activities.http.address_guard import AddressGuard, GuardedBackend, is_any, is_public
from shared.errors import GiveUp, RetryLater
from shared.settings import Settings

USER_AGENT = "dormice"
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=50)
"""The number of handlers at work is limited already; waiting for a connection would use up a handler's own time."""
PIECE_BYTES = 64 * 1024
GZIP_FIRST_BYTE = b"\x1f"
SECONDS_MAX = 2**31  # RFC 9111 §1.2.2: a number of seconds too large to represent counts as 2^31


class BodyTooLarge(GiveUp):
    """An answer's body is longer than the installation allows."""


class GuardedTransport(httpx.AsyncHTTPTransport):
    """httpx's own transport with an address guard under it; it uses no proxies and certificates of the environment."""

    def __init__(self, guard: AddressGuard) -> None:
        context = httpx.create_ssl_context(trust_env=False)
        super().__init__(verify=context, trust_env=False)
        # httpx 0.28 has no argument for the network backend; the pool replaced here has opened nothing
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=LIMITS.max_connections,
            max_keepalive_connections=LIMITS.max_keepalive_connections,
            keepalive_expiry=LIMITS.keepalive_expiry,
            network_backend=GuardedBackend(guard),
        )


class SharedClient(httpx.AsyncClient):
    """A client that no handler can close, because all others use it too."""

    async def aclose(self) -> None:
        """Leave it open."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object, **__: object) -> None:
        """Leave it open."""


class HttpClient:
    """Owns one `httpx.AsyncClient`, which follows no redirects; handlers that follow them check each hop.

    It reaches public addresses only, unless the settings or a `guard` say otherwise, and keeps no cookies, so that a
    site's cookies never reach another message.
    """

    def __init__(
        self, settings: Settings, guard: AddressGuard | None = None, client: httpx.AsyncClient | None = None
    ) -> None:
        self._settings = settings
        self._guard = guard or AddressGuard(is_any if settings.http_allow_private else is_public)
        self._given = client

    @cached_property
    def client(self) -> httpx.AsyncClient:
        """The client: the given one, or one made at the first use."""
        return self._given or SharedClient(
            transport=GuardedTransport(self._guard),
            timeout=self._settings.http_timeout.total_seconds(),
            headers={"User-Agent": USER_AGENT},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if "client" in vars(self) and self._given is None:  # it was made
            await httpx.AsyncClient.aclose(self.client)


async def iterate_body(response: httpx.Response, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Give the body of a streamed answer piece by piece, gzip decoded; other codings stay as they are.

    Raises BodyTooLarge before more than `max_bytes` are in memory, and RetryLater for a broken body.
    """
    is_gzip = response.headers.get("content-encoding", "").strip().lower() in ("gzip", "x-gzip")
    gunzip = _Gunzip()
    size = 0
    async for raw in response.aiter_raw():
        for piece in gunzip.decode(raw) if is_gzip else (raw,):
            size += len(piece)
            if size > max_bytes:
                raise BodyTooLarge(
                    f"the body is longer than {max_bytes} bytes; raise DORMICE_HTTP_MAX_BYTES to read it"
                )
            yield piece
    if is_gzip and not gunzip.is_complete:
        raise RetryLater("the gzip body broke off; it will be asked for again")


class _Gunzip:
    """Decodes gzip in small pieces: one read of a hostile answer can make httpx's own decoder produce 64 MiB."""

    def __init__(self) -> None:
        self._member = _begin_member()
        self.is_complete = True

    def decode(self, raw: bytes) -> Iterator[bytes]:
        try:
            while raw:
                if self._member.eof:
                    if not raw.startswith(GZIP_FIRST_BYTE):
                        return  # some servers pad the end; gzip programs ignore that too
                    self._member = _begin_member()
                yield self._member.decompress(raw, PIECE_BYTES)
                self.is_complete = self._member.eof
                raw = self._member.unused_data if self.is_complete else self._member.unconsumed_tail
        except zlib.error as exc:
            raise RetryLater(f"the body is no gzip though it says so ({exc}); it will be asked for again") from exc


def _begin_member() -> "zlib._Decompress":  # pyright: ignore[reportPrivateUsage] — the type has no other name
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


def freshness(headers: Mapping[str, str], now: datetime) -> timedelta:
    """Return how long an answer stays fresh by its own headers; zero when they don't say, or say that it is stale.

    s-maxage counts before max-age, and that before Expires - Date, less Age. Source: RFC 9111 §4.2 and §5.
    """
    directives = _read_directives(headers.get("cache-control", ""))
    if "no-store" in directives or directives.get("no-cache") == "":
        return timedelta(0)
    stated = directives.get("s-maxage", directives.get("max-age"))
    lifetime = None if stated is None else _read_seconds(stated)
    if stated is None and (expires := _read_http_date(headers.get("expires", ""))) is not None:
        lifetime = expires - (_read_http_date(headers.get("date", "")) or now)
    age = _read_seconds(headers.get("age", "")) or timedelta(0)
    return max((lifetime or timedelta(0)) - age, timedelta(0))


def read_retry_after(value: str, now: datetime) -> timedelta | None:
    """Read Retry-After, seconds or a date; None if neither, zero for a past date. Source: RFC 9110 §10.2.3."""
    if (seconds := _read_seconds(value)) is not None:
        return seconds
    moment = _read_http_date(value)
    return None if moment is None else max(moment - now, timedelta(0))


def _read_directives(value: str) -> dict[str, str]:
    directives: dict[str, str] = {}
    for part in value.split(","):
        name, _, argument = part.partition("=")
        directives.setdefault(name.strip().lower(), argument.strip().strip('"'))
    return directives


def _read_seconds(value: str) -> timedelta | None:
    digits = value.strip()
    if not (digits.isascii() and digits.isdigit()):
        return None
    return timedelta(seconds=min(int(digits), SECONDS_MAX) if len(digits) <= 10 else SECONDS_MAX)


def _read_http_date(value: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
