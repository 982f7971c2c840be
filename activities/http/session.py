"""aiohttp's session as handlers get it, with the guard at its two seams: where names are looked up and sockets made."""

import socket
import ssl
import warnings
from collections.abc import Callable
from typing import Any

import aiohttp
import certifi
from aiohttp.abc import AbstractResolver, ResolveResult

from activities.http.address_guard import AddressGuard
from activities.http.names import Names
from shared.settings import Settings

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""As `socket.getaddrinfo` gives it."""

USER_AGENT = "dormice"

# some sites send 64 KB of cookies, also as one; a hostile answer may fill all fields, 17 MB
FIELD_MAX_BYTES = 68 * 1024
FIELDS_MAX = 250

# a batch visits a site within seconds; connections to thousands of others must not stay open for longer
KEEP_ALIVE_SECONDS = 2.0


class GuardedResolver(AbstractResolver):
    """Gives the addresses of a name only if the guard allows each of them."""

    def __init__(self, names: Names, guard: AddressGuard) -> None:
        self._names = names
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Look a name up; raises AddressRefused, or OSError when it has no address."""
        addresses = await self._names.find(host)
        for address in addresses:
            self._guard.check(host, address)

        if not addresses:
            raise OSError(None, "the name has no address")

        return [_result(host, port, address) for address in addresses if family in (0, _family(address))]

    async def close(self) -> None:
        """Leave the names open: whoever opened them closes them."""


# aiohttp 3.14 warns of classes made from its own; it is pinned below 4
with warnings.catch_warnings(action="ignore", category=DeprecationWarning):

    class SharedSession(aiohttp.ClientSession):
        """A session that no handler can close, because all others use it too."""

        async def close(self) -> None:
            """Leave it open."""

        async def shut(self) -> None:
            """Close it."""
            await super().close()


def open_connector(guard: AddressGuard, names: Names) -> aiohttp.TCPConnector:
    """Open what all sessions of a process connect by; call it in a running loop.

    It limits nothing: the number of handlers at work is limited already, and waiting for a connection would use up a
    handler's own time. It trusts no certificates of the environment.
    """
    return aiohttp.TCPConnector(
        resolver=GuardedResolver(names, guard),
        use_dns_cache=False,  # it keeps a name for ten seconds, whatever its records say
        socket_factory=_open_sockets(guard),
        ssl=ssl.create_default_context(cafile=certifi.where()),
        limit=0,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
    )


def open_session(settings: Settings, connector: aiohttp.TCPConnector) -> SharedSession:
    """Open a session that keeps no cookies, so that a site's cookies never reach another message."""
    return SharedSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": USER_AGENT},
        timeout=aiohttp.ClientTimeout(total=settings.http_timeout.total_seconds()),
        max_field_size=FIELD_MAX_BYTES,
        max_headers=FIELDS_MAX,
    )


def _open_sockets(guard: AddressGuard) -> Callable[[AddressInfo], socket.socket]:
    def open_socket(info: AddressInfo) -> socket.socket:
        family, kind, protocol, _, where = info
        host = str(where[0])
        guard.check(host, host)  # for an address in a URL no name is looked up
        return socket.socket(family, kind, protocol)

    return open_socket


def _result(host: str, port: int, address: str) -> ResolveResult:
    return ResolveResult(
        hostname=host, host=address, port=port, family=_family(address), proto=0, flags=socket.AI_NUMERICHOST
    )


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
