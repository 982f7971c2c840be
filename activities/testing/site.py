"""A site for tests: it answers whatever URL a handler asks for, from loopback."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from yarl import URL

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_SCHEME = "X-Forwarded-Proto"


@asynccontextmanager
async def open_site(answer: Answer) -> AsyncGenerator[aiohttp.ClientSession]:
    """Give a session whose requests are all answered by `answer`, whatever their host; none leaves this machine.

    What `answer` gets has the URL that was asked for, also of https, and the headers and the body of the request.
    """

    async def receive(request: web.BaseRequest) -> web.StreamResponse:
        return await answer(request.clone(scheme=request.headers[_SCHEME]))

    runner = web.ServerRunner(web.Server(receive))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        jar = aiohttp.DummyCookieJar()
        async with (
            aiohttp.ClientSession(auto_decompress=False, cookie_jar=jar) as loopback,
            aiohttp.ClientSession(middlewares=[_deliver_to(loopback, port)], cookie_jar=jar) as session,
        ):
            yield session
    finally:
        await runner.cleanup()


def _deliver_to(loopback: aiohttp.ClientSession, port: int) -> aiohttp.ClientMiddlewareType:
    async def deliver(request: aiohttp.ClientRequest, _: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        target = URL(f"http://127.0.0.1:{port}{request.url.raw_path_qs}", encoded=True)
        body = b"" if isinstance(request.body, bytes) else await request.body.as_bytes()
        return await loopback.request(
            request.method,
            target,
            headers={**request.headers, "Host": request.headers["Host"], _SCHEME: request.url.scheme},
            data=body or None,
            allow_redirects=False,
        )

    return deliver
