"""`python -m bench.slow.site PORT`: a site on loopback that answers `GET /SECONDS` after as long, with keep-alive."""

import asyncio
import contextlib
import os
import sys

import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n"
BACKLOG = 4096


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(float(head.split(b" ", 2)[1].lstrip(b"/")))
            writer.write(ANSWER)
            await writer.drain()
    writer.close()


async def _serve(port: int) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", port, backlog=BACKLOG)
    print("serving", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1])))
    os._exit(0)
