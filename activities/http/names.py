"""Host names: looked up without blocking anybody, each once at a time, and kept as long as its records allow."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import aiodns

KEPT_MAX = 10_000
KEPT_SECONDS_MAX = 3600.0  # a record may say a year, and a line of /etc/hosts says for ever
# c-ares doubles the first with each further try: 7 s in all
QUERY_SECONDS = 1.0
QUERY_TRIES = 3


class HostAddresses(NamedTuple):
    """The addresses of a name, and for how many seconds its records say so."""

    addresses: Sequence[str]
    seconds: float


LookUp = Callable[[str], Awaitable[HostAddresses]]
"""Finds the addresses of a name; raises OSError when it has none."""


class Resolver:
    """Asks the name servers that the system names, through c-ares, without a thread for each question."""

    def __init__(self) -> None:
        """Call it in a running loop."""
        self._dns = aiodns.DNSResolver(timeout=QUERY_SECONDS, tries=QUERY_TRIES)

    async def __call__(self, host: str) -> HostAddresses:
        """See `LookUp`."""
        try:
            answer = await self._dns.getaddrinfo(host, family=socket.AF_UNSPEC, type=socket.SOCK_STREAM)
        except aiodns.error.DNSError as exc:
            raise OSError(None, f"the name can't be resolved: {exc.args[-1]}") from exc

        nodes: list[Any] = list(answer.nodes)  # pycares says little of its types
        addresses = [node.addr[0].decode() for node in nodes]
        # an alias may be made to lead elsewhere sooner than what it leads to now
        seconds = min((record.ttl for record in (*nodes, *answer.cnames)), default=0)
        return HostAddresses(list(dict.fromkeys(addresses)), seconds)

    async def close(self) -> None:
        """End what is being asked."""
        await self._dns.close()


class Names:
    """What names lead to, kept for all handlers of a process.

    A name that is asked for by many is looked up once, so a name server that hangs keeps nobody but those that need
    its names.
    """

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._kept: OrderedDict[str, tuple[Sequence[str], float]] = OrderedDict()
        self._asked: dict[str, asyncio.Task[Sequence[str]]] = {}

    async def find(self, host: str) -> Sequence[str]:
        """Give the addresses of a name; raises OSError when it has none."""
        addresses, good_until = self._kept.get(host, ((), 0.0))
        if good_until > asyncio.get_running_loop().time():
            self._kept.move_to_end(host)
            return addresses

        asking = self._asked.get(host)
        if asking is None:
            asking = self._asked[host] = asyncio.create_task(self._ask(host))
            asking.add_done_callback(_retrieve_failure)

        return await asyncio.shield(asking)  # one that gives up leaves the question to the others

    async def close(self) -> None:
        """End all questions."""
        asking = list(self._asked.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, host: str) -> Sequence[str]:
        try:
            found = await self._look_up(host)
            self._keep(host, found)
            return found.addresses
        finally:
            del self._asked[host]

    def _keep(self, host: str, found: HostAddresses) -> None:
        seconds = min(found.seconds, KEPT_SECONDS_MAX)
        if seconds <= 0:
            self._kept.pop(host, None)
            return

        self._kept[host] = (found.addresses, asyncio.get_running_loop().time() + seconds)
        self._kept.move_to_end(host)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)


def _retrieve_failure(asking: asyncio.Task[Sequence[str]]) -> None:
    """Take note of a failure that nobody waits for any more."""
    if not asking.cancelled():
        asking.exception()
