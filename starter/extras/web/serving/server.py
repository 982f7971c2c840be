"""The server: lets uvicorn serve the application at an address until it is told to end."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Generator

import uvicorn
from starlette.applications import Starlette

from shared.errors import InvalidSetting

BACKLOG = 1024
DRAIN_SECONDS = 25


class _QuietServer(uvicorn.Server):
    """uvicorn without its own signal handling: whoever runs it decides when it ends, and with which exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(application: Starlette, host: str, port: int) -> AsyncGenerator[str]:
    """Serve for the length of an `async with` block, then let requests under way finish; gives the address.

    Raises InvalidSetting when the address can't be had.
    """
    with contextlib.closing(_listen(host, port)) as listener:
        config = uvicorn.Config(
            application,
            access_log=False,  # addresses hold ids, which may say whom a message is about
            log_config=None,
            log_level="warning",  # the command says itself where it serves and when it ends
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        server = _QuietServer(config)
        running = asyncio.create_task(server.serve([listener]))

        bound: tuple[str, int] = listener.getsockname()[:2]
        try:
            name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
            yield f"http://{name}:{bound[1]}"
        finally:
            server.should_exit = True
            await running


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as exc:
        flaw = f"--port: {host}:{port} can't be opened ({exc.strerror})"
        raise InvalidSetting(f"{flaw}; choose another --port or --host") from exc
    return listener
