"""The address guard: a host name is resolved once, checked, and connected to at the checked address."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import cast

import httpcore
import httpx

from shared.errors import GiveUp

Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], Awaitable[Sequence[Address]]]

_HOST = re.compile(r"[a-z0-9._:-]+")  # names as DNS has them, and addresses; httpx lets more through, escaped
URL_SHOWN = 100  # characters

# Outside global unicast are loopback, link-local, private, multicast, and forms that carry an IPv4 address.
_GLOBAL_V6 = IPv6Network("2000::/3")

# What Python's `is_global` lets through, in this or an older version; also from the IANA special-purpose registries
_CLOSED = tuple(
    ip_network(block)
    for block in (
        "192.0.0.0/24",  # IETF protocol assignments
        "192.88.99.0/24",  # 6to4 relays, withdrawn
        "224.0.0.0/4",  # multicast
        "2001::/23",  # IETF protocol assignments, Teredo among them
        "2002::/16",  # 6to4: carries an IPv4 address inside
        "3fff::/20",  # documentation
    )
)


class AddressRefused(GiveUp):
    """Handlers may not visit a URL, or the address that it leads to."""


def is_public(address: Address) -> bool:
    """Return whether an address is public unicast; IPv6 forms that carry an IPv4 address never are."""
    is_unicast = address.version == 4 or address in _GLOBAL_V6
    return is_unicast and address.is_global and not any(address in block for block in _CLOSED)


def is_any(address: Address) -> bool:  # noqa: ARG001 — the shape of a rule
    """Let every address pass."""
    return True


def read_url(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """Read a URL that handlers may visit, or with `base` the target of a redirect from there.

    Raises AddressRefused, with half a sentence, unless it is an http or https URL with a host and without credentials.
    """
    where = "" if base is None else "redirects to a URL that "
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        host = url.raw_host.decode()
    except (httpx.InvalidURL, ValueError) as exc:
        raise AddressRefused(f"{where}can't be read ({exc}); correct it") from exc
    if url.scheme not in ("http", "https"):
        raise AddressRefused(f"{where}has the scheme {url.scheme[:20]!r}; only http and https are visited")
    if not _HOST.fullmatch(host):
        raise AddressRefused(f"{where}names no host; write it like https://example.org/feed")
    if not 1 <= (80 if url.port is None else url.port) <= 65535:
        raise AddressRefused(f"{where}has the port {url.port}; give one from 1 to 65535")
    if url.userinfo:
        raise AddressRefused(f"{where}holds credentials; payloads are no place for them, so take them out")
    return url


def show_url(url: httpx.URL) -> str:
    """Shorten a URL for an error; without its query, which may contain a site's keys."""
    text = str(url.copy_with(query=None, fragment=None)) + ("?…" if url.query else "")
    return text if len(text) <= URL_SHOWN else text[: URL_SHOWN - 1] + "…"


async def resolve_host(host: str, port: int) -> Sequence[Address]:
    """Ask the system's resolver for the TCP addresses of a name; raises OSError or UnicodeError when it has none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """An installation's rule for addresses, and where names are looked up."""

    is_allowed: Callable[[Address], bool] = is_public
    resolve: Resolver = resolve_host

    async def find_addresses(self, host: str, port: int) -> Sequence[Address]:
        """Resolve a name and give its addresses; raises AddressRefused when the rule forbids any one of them."""
        addresses = await self.resolve(host, port)
        for address in addresses:
            if not self.is_allowed(address):
                raise AddressRefused(
                    f"{host} leads to {address}, a private or reserved address; "
                    "set DORMICE_HTTP_ALLOW_PRIVATE=true if handlers may go there"
                )
        return addresses


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to the very address that was checked, whatever DNS says next; the caller keeps the name."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        # without anyio, which httpx itself needs, httpcore has another class of that name
        self._network = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 — the shape of a network backend
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve, check and connect in time; raises AddressRefused, or httpcore's ConnectError or ConnectTimeout."""
        failure: Exception = httpcore.ConnectError("the name has no address")
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._guard.find_addresses(host, port)
                for address in addresses:
                    # an equal share each, so that one address that does not answer leaves time for the others
                    share = None if timeout is None else timeout / len(addresses)
                    try:
                        return await self._network.connect_tcp(str(address), port, share, local_address, socket_options)
                    except (httpcore.ConnectError, httpcore.ConnectTimeout) as exc:
                        failure = exc
        except TimeoutError as exc:
            raise httpcore.ConnectTimeout(f"{host} did not answer in time") from exc
        except (OSError, UnicodeError) as exc:
            raise httpcore.ConnectError(f"{host} can't be resolved ({exc})") from exc
        raise failure

    async def sleep(self, seconds: float) -> None:
        """Wait, as httpcore does between its own retries."""
        await self._network.sleep(seconds)
