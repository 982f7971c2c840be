"""The gRPC server of a frontier: where it listens, and how it begins and ends."""

import asyncio
import contextlib
import socket
from datetime import timedelta

from grpc import aio

from shared.errors import InvalidSetting
from starter.extras.frontier.frontier import Frontier
from starter.extras.frontier.server.call_guard import CallGuard
from starter.extras.frontier.server.put_stream import PutPool
from starter.extras.frontier.server.service import FrontierService
from starter.extras.frontier.wire.urlfrontier_pb2_grpc import add_URLFrontierServicer_to_server

OPTIONS = (("grpc.so_reuseport", 0),)
"""Two processes at one address would share the calls in secret."""


class FrontierServer:
    """Listens for crawlers from the beginning, and answers them once it is started; raises InvalidSetting."""

    def __init__(self, frontier: Frontier, host: str, port: int) -> None:
        self._stopping = asyncio.Event()
        self._pool = PutPool(frontier, self._stopping)
        self._server: aio.Server = aio.server(interceptors=[CallGuard()], options=OPTIONS)
        service = FrontierService(frontier, self._pool)
        add_URLFrontierServicer_to_server(service, self._server)
        shown = f"[{host}]" if ":" in host else host
        _check_address(host, port)
        self.address = service.address = f"{shown}:{self._server.add_insecure_port(f'{shown}:{port}')}"

    async def start(self) -> None:
        """Answer calls from now on."""
        await self._server.start()

    async def drain(self, limit: timedelta) -> None:
        """Take no new calls, acknowledge the puts under way, and end the others after a time."""
        self._stopping.set()
        await self._server.stop(limit.total_seconds())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pool.drain(), limit.total_seconds())


def _check_address(host: str, port: int) -> None:
    """Try the address first, because gRPC does not say why it can't be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trying:
            trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trying.bind(address)
            trying.listen()
    except OSError as exc:
        flaw = f"--listen: {host}:{port} can't be opened ({exc.strerror})"
        raise InvalidSetting(f"{flaw}; give another HOST:PORT of this machine") from exc
