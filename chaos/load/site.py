"""The site: a web server of the run itself that answers as real ones do: mostly soon, sometimes late, rarely never."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator

HOST = "127.0.0.1"
SITE_VARIABLE = "CHAOS_SITE"
"""Environment variable with the site's address, because handlers run in other processes."""

ANSWER_SECONDS = (0.1, 0.3)
LONG_ANSWER_SECONDS = 10.0
LONG_SHARE = 0.01
SILENT_SHARE = 0.0005
"""Share of calls that are never answered, so that they last until their handler's timeout."""

SILENCE_SECONDS = 3600.0
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def draw_seconds() -> float:
    """Draw after how many seconds a call of the site is answered."""
    share = random.random()
    if share < SILENT_SHARE:
        return SILENCE_SECONDS
    if share < SILENT_SHARE + LONG_SHARE:
        return LONG_ANSWER_SECONDS
    return random.uniform(*ANSWER_SECONDS)


@contextlib.asynccontextmanager
async def run_site() -> AsyncGenerator[str]:
    """Run the site for a `with` block, and give its address; a request's path says after how long it is answered."""
    server = await asyncio.start_server(_serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://{HOST}:{port}"
    finally:
        server.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection, one after the other, until its client closes it."""
    # at the end of the run asyncio would report each connection that is cancelled as an error
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            _, path, _ = head.split(b" ", 2)
            await asyncio.sleep(float(path.removeprefix(b"/")))
            writer.write(_ANSWER)
            await writer.drain()
    writer.close()
