"""Where the `http` handler goes: redirects, addresses and names, on a real site on loopback."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from activities.http.address_guard import AddressGuard
from activities.http.names import HostAddresses
from shared.settings import Settings
from tests.integration.web_site import (
    Reply,
    Visitor,
    WebSite,
    conditional,
    open_visitor,
)


@pytest.fixture
def site() -> Iterator[WebSite]:
    """A site of the test's own."""
    with WebSite() as site:
        yield site


@pytest.fixture
async def visitor(site: WebSite) -> AsyncIterator[Visitor]:
    """A visitor who may go to loopback, and leaves before the site closes."""
    async with open_visitor() as visitor:
        yield visitor


async def test_redirects_are_followed(site: WebSite, visitor: Visitor) -> None:
    """Up to five redirects of any kind lead to the page, each visit anew; the payload keeps the sender's URL."""
    targets = {"/1": (301, "/2"), "/2": (302, "3"), "/3": (303, site.url("/4")), "/4": (307, "/5"), "/5": (308, "/a")}
    for path, (status, target) in targets.items():
        site.pages[path] = Reply(status, b"this way", {"Location": target})
    site.pages["/a"] = conditional('"one"', b"words")

    first = await visitor.come_back({"url": site.url("/1")})
    second = await visitor.come_back(first.payload)

    assert [visit.path for visit in site.visits] == ["/1", "/2", "/3", "/4", "/5", "/a"] * 2
    assert (first.reason, second.reason) == ("first, 200", "unchanged, 304")
    assert second.payload["url"] == site.url("/1")


async def test_validators_go_to_the_page_they_came_from_only(site: WebSite, visitor: Visitor) -> None:
    """A redirect that turns to another page asks that page without the old one's validators."""
    site.pages["/a"] = Reply(302, headers={"Location": "/old"})
    site.pages["/old"] = site.pages["/new"] = conditional('"1"', b"words")
    first = await visitor.come_back({"url": site.url("/a")})
    site.pages["/a"] = Reply(302, headers={"Location": "/new"})

    second = await visitor.come_back(first.payload)

    asked = {visit.path: visit.headers.get("if-none-match") for visit in site.visits}
    assert asked == {"/a": None, "/old": None, "/new": None}
    assert second.reason == "unchanged, 200"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_without_end_are_refused(site: WebSite, visitor: Visitor, status: int) -> None:
    """A circle of redirects, like any chain of more than five, is rejected after the sixth request."""
    site.pages["/a"] = Reply(status, headers={"Location": "/b"})
    site.pages["/b"] = Reply(status, headers={"Location": "/a"})

    expected = f"payload.url: {site.url('/a')} redirects more than 5 times; give its last address"
    assert expected == await visitor.refuse({"url": site.url("/a")})
    assert len(site.visits) == 6


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("ftp://127.0.0.1/b", "has the scheme 'ftp'; only http and https are visited"),
        ("file:///etc/passwd", "has the scheme 'file'"),
        ("http://me:secret@127.0.0.1/", "holds credentials"),
        ("http://[/", "can't be read"),
        ("http://a:b/", "can't be read"),
    ],
)
async def test_a_redirect_is_held_to_the_rules_of_a_payload(
    site: WebSite, visitor: Visitor, target: str, problem: str
) -> None:
    """A redirect to what could not stand in a payload is rejected."""
    site.pages["/a"] = Reply(302, headers={"Location": target})

    actual = await visitor.refuse({"url": site.url("/a")})

    assert actual.startswith(f"payload.url: redirects to a URL that {problem}")
    assert "secret" not in actual


@pytest.mark.parametrize(
    ("headers", "wish"), [({}, "as it is"), ({"Set-Cookie": "seen=1"}, "and sets a cookie, which no visit sends")]
)
async def test_a_redirect_to_itself_fails_the_attempt(
    site: WebSite, visitor: Visitor, headers: dict[str, str], wish: str
) -> None:
    """Sites that want a cookie do so, and may want none the next time; it is asked once an attempt."""
    site.pages["/a"] = Reply(302, headers={"Location": "/a", **headers})

    expected = f"{site.url('/a')} redirects to itself {wish}; it will be asked again"
    assert expected == await visitor.fail({"url": site.url("/a")})
    assert len(site.visits) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_private_addresses_are_refused_unless_allowed(site: WebSite, host: str) -> None:
    """With the setting off, as it is by default, a URL that leads to loopback is rejected before any request."""
    site.pages["/a"] = Reply(200, b"words")

    async with open_visitor(http_allow_private=Settings().http_allow_private) as visitor:
        actual = await visitor.refuse({"url": site.url("/a", host)})

    expected = (
        f"payload.url: {site.url('/a', host)}: {host} leads to 127.0.0.1, a private or reserved address; "
        "set DORMICE_HTTP_ALLOW_PRIVATE=true if handlers may go there"
    )
    assert expected in (actual, actual.replace("::1", "127.0.0.1"))
    assert not site.visits


async def test_a_redirect_to_a_private_address_is_refused(site: WebSite) -> None:
    """Every hop is checked: an allowed site can't lead the handler to an address that is not."""
    site.pages["/a"] = Reply(302, headers={"Location": site.url("/inner?key=1", "127.0.0.2")})
    site.pages["/inner"] = Reply(200, b"secrets")

    async with open_visitor(AddressGuard(lambda address: str(address) == "127.0.0.1")) as visitor:
        actual = await visitor.refuse({"url": site.url("/a")})

    inner = site.url("/inner?…", "127.0.0.2")
    assert actual.startswith(f"payload.url: {inner}: 127.0.0.2 leads to 127.0.0.2, a private or reserved address; set")
    assert [visit.path for visit in site.visits] == ["/a"]


async def test_a_name_that_turns_to_another_address_is_caught_at_its_next_connection(site: WebSite) -> None:
    """The address that was checked is the one connected to, under the name's own Host header."""
    site.pages["/a"] = Reply(200, b"words", {"Connection": "close"})
    answers = iter(["127.0.0.1", "127.0.0.2"])
    asked: list[str] = []

    async def look_up(host: str) -> HostAddresses:
        asked.append(host)
        return HostAddresses([next(answers)], 0)

    async with open_visitor(AddressGuard(lambda address: str(address) == "127.0.0.1"), look_up) as visitor:
        first = await visitor.come_back({"url": site.url("/a", "changing.example")})
        second = await visitor.refuse(first.payload)

    assert asked == ["changing.example"] * 2
    assert [f"changing.example:{site.port}"] == [visit.headers["host"] for visit in site.visits]
    assert "changing.example leads to 127.0.0.2" in second


async def test_tls_is_asked_for_by_name() -> None:
    """Over https the server is asked for, and so checked, by the URL's name and not by the address connected to."""
    hello = asyncio.get_running_loop().create_future()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello.set_result(await reader.read(4096))
        writer.close()
        await writer.wait_closed()

    async def look_up(host: str) -> HostAddresses:
        assert host == "named.example"
        return HostAddresses(["127.0.0.1"], 60)

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    bound = server.sockets[0].getsockname()[1]
    async with server, open_visitor(AddressGuard(lambda _: True), look_up) as visitor:
        reason = await visitor.fail({"url": f"https://named.example:{bound}/"})

    assert reason.startswith("no whole answer (ClientConnectorError")
    assert b"named.example" in await hello


async def test_a_proxy_of_the_environment_is_not_used(
    site: WebSite, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A visit goes straight to its site: a proxy would look names up behind the guard's back."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    site.pages["/a"] = Reply(200, b"words")

    again = await visitor.come_back({"url": site.url("/a")})

    assert again.reason == "first, 200"


async def test_no_cookie_outlives_its_answer(site: WebSite, visitor: Visitor) -> None:
    """What one message's site sets is not sent with another message's visit, nor kept in memory."""
    site.pages["/a"] = Reply(200, b"words", {"Set-Cookie": "who=you; Path=/"})

    await visitor.come_back({"url": site.url("/a")})
    await visitor.come_back({"url": site.url("/a")})

    assert not ["cookie" for visit in site.visits if "cookie" in visit.headers]
