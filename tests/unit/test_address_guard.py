"""Which addresses and URLs handlers may reach, and that a connection goes where the check looked."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, ip_address, ip_network

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from activities.http.address_guard import Address, AddressGuard, AddressRefused, is_any, is_public
from activities.http.client import HttpClient
from activities.http.names import HostAddresses, LookUp
from activities.http.urls import read_redirect, read_url, show_url
from shared.settings import Settings

CLOSED = [
    "0.0.0.0",  # noqa: S104 — an address to check, nothing listens there
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]
OPEN = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "223.255.255.255",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2a00:1450::1",
]


@pytest.mark.parametrize("text", CLOSED)
def test_special_purpose_addresses_are_not_public(text: str) -> None:
    """Private, loopback, link-local, shared, multicast and reserved space, and IPv6 forms around IPv4, are closed."""
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", OPEN)
def test_plain_unicast_addresses_are_public(text: str) -> None:
    """Addresses right beside a closed block, and well-known public ones, are open."""
    assert is_public(ip_address(text))


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_inside_ipv6_is_never_public(address: IPv4Address) -> None:
    """Mapped, compatible, 6to4 and NAT64 forms are closed whatever they carry."""
    number = int(address)
    forms = [0xFFFF << 32 | number, number, 0x2002 << 112 | number << 80, 0x64FF9B << 96 | number]

    still_open = [str(form) for form in map(_to_v6, forms) if is_public(form)]

    assert not still_open


@given(st.ip_addresses())
def test_nothing_that_python_calls_private_is_public(address: Address) -> None:
    """The rule is at least as strict as the standard library's own idea of private addresses."""
    is_closed_by_python = address.is_private or address.is_multicast or address.is_reserved or address.is_link_local

    assert not (is_closed_by_python and is_public(address))


def _to_v6(number: int) -> Address:
    return ip_network((number, 128)).network_address


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ftp://example.org/", "has the scheme 'ftp'; only http and https are visited"),
        ("file:///etc/passwd", "has the scheme 'file'"),
        ("javascript:alert(1)", "has the scheme 'javascript'"),
        ("example.org/feed", "has the scheme ''"),
        ("", "has the scheme ''"),
        ("http:///path", "names no host; write it like https://example.org/feed"),
        ("http://", "names no host"),
        ("https://me:secret@example.org/", "holds credentials; payloads are no place for them, so take them out"),
        ("https://me@example.org/", "holds credentials"),
        ("http://example.org:abc/", "can't be read (Invalid URL: port can't be converted to integer); correct it"),
        ("http://example.org:99999/", "can't be read (Port out of range 0-65535); correct it"),
        ("http://example.org:0/", "has the port 0"),
        ("http://[/", "can't be read"),
        ("http://a b/", "names no host"),
        ("http://[fe80::1%25eth0]/", "names no host"),
        ("http://\u2024\u2024/", "names no host"),
        ("http://[::1/", "can't be read"),
        ("http://a.example/\ud800", "can't be read"),
    ],
)
def test_urls_that_handlers_do_not_visit_are_refused(text: str, sentence: str) -> None:
    """What is no http or https URL with a host and without credentials is refused, and no secret is repeated."""
    with pytest.raises(AddressRefused) as caught:
        read_url(text)

    assert str(caught.value).startswith(sentence)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://b\u00fccher.example/", "xn--bcher-kva.example"),
        ("https://fa\u00df.de/", "xn--fa-hia.de"),
        ("https://\uff45\uff58\uff41\uff4d\uff50\uff4c\uff45\u3002org/", "example.org"),
        ("https://i\u2764.ws/", "xn--i-7iq.ws"),
        ("https://\U0001f4a9.la/", "xn--ls8h.la"),
        ("https://a_b.example/", "a_b.example"),
        ("https://exa\nmple.org/", "example.org"),
        (" https://EXAMPLE.org ", "example.org"),
    ],
)
def test_hosts_are_read_as_browsers_read_them(text: str, host: str) -> None:
    """Names in other scripts and full-width letters by UTS 46, emoji by their punycode; line breaks are left out."""
    assert read_url(text).raw_host == host


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://a.example/a%2Fb%7E%28c%29?x=1%2C2&y=a+b#part", "https://a.example/a%2Fb%7E%28c%29?x=1%2C2&y=a+b"),
        ("https://a.example/a b|c/\u00e4?q=\u00fc", "https://a.example/a%20b%7Cc/%C3%A4?q=%C3%BC"),
        ("https://A.example:443", "https://a.example/"),
    ],
)
def test_path_and_query_stay_as_they_are_written(text: str, expected: str) -> None:
    """Only what can't be sent is escaped: a signed query is compared byte by byte."""
    assert str(read_url(text)) == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/b", "http://one.example/b"),
        ("b?x=1", "http://one.example/a/b?x=1"),
        ("//two.example/c", "http://two.example/c"),
        ("//b\u00fccher.example/c", "http://xn--bcher-kva.example/c"),
        ("http://[2001:4860::1]:8080/c", "http://[2001:4860::1]:8080/c"),
        ("https://two.example/", "https://two.example/"),
        ("/a%28b%29?x=1%2C2#part", "http://one.example/a%28b%29?x=1%2C2"),
        ("/caf\udce9", "http://one.example/caf%E9"),  # Latin-1, as aiohttp reads it
    ],
)
def test_a_redirect_is_read_from_where_it_was_met(target: str, expected: str) -> None:
    """A relative target is completed by the URL that redirected."""
    actual = str(read_redirect(target, URL("http://one.example/a/a")))

    assert expected == actual


@pytest.mark.parametrize(
    "target", ["ftp://two.example/", "http://me:secret@two.example/", "http://[bad]/", "http://[/", "mailto:a@b.c"]
)
def test_a_redirect_is_held_to_the_same_rules(target: str) -> None:
    """A target that could not stand in a payload is refused too, and the sentence says it was a redirect."""
    with pytest.raises(AddressRefused, match=r"^redirects to a URL that "):
        read_redirect(target, URL("http://one.example/"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://example.org/a", "http://example.org/a"),
        ("http://example.org/a?key=secret#part", "http://example.org/a?…"),
        ("http://example.org/" + "a" * 200, "http://example.org/" + "a" * 80 + "…"),
    ],
)
def test_a_url_is_named_short_and_without_its_query(text: str, expected: str) -> None:
    """Sentences show where a URL leads, not the keys that may stand in its query."""
    actual = show_url(URL(text))

    assert expected == actual


async def test_one_forbidden_address_among_many_closes_a_name() -> None:
    """A name is refused when any of its addresses is forbidden, and the sentence names both and the setting."""
    with pytest.raises(AddressRefused) as caught:
        await visit("mixed.example", 80, AddressGuard(is_public), Answers([["1.1.1.1", "10.0.0.7"]]))

    expected = (
        "mixed.example leads to 10.0.0.7, a private or reserved address; "
        "set DORMICE_HTTP_ALLOW_PRIVATE=true if handlers may go there"
    )
    assert expected == str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "\u2460\u2461\u2466.0.0.1"])
async def test_loopback_is_recognised_however_it_is_written(host: str) -> None:
    """The check sees the address itself, of a name or in a URL, so no spelling of loopback gets by."""
    with pytest.raises(AddressRefused, match="DORMICE_HTTP_ALLOW_PRIVATE"):
        await visit(host, 9, AddressGuard())


@pytest.mark.parametrize("host", ["127.1", "2130706433", "017700000001", "0x7f000001"])
async def test_numbers_that_old_programs_take_for_an_address_lead_nowhere(host: str) -> None:
    """Neither is there a name like that, nor is it an address here."""
    with pytest.raises((aiohttp.InvalidURL, aiohttp.ClientConnectorError)):
        await visit(host, 9, AddressGuard(is_any))


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """What a name leads to is looked up once for a connection; another answer is checked anew."""
    answers = Answers([["127.0.0.1"], ["127.0.0.2"]])
    guard = AddressGuard(lambda address: str(address) == "127.0.0.1")
    async with listen() as port, HttpClient(Settings(), guard, answers) as client:
        url = f"http://changing.example:{port}/"
        async with client.get_session().get(url) as response:
            assert response.status == 204

        with pytest.raises(AddressRefused, match=r"changing\.example leads to 127\.0\.0\.2"):
            await client.get_session().get(url)

    assert answers.asked == ["changing.example", "changing.example"]


async def test_an_address_that_does_not_answer_leaves_the_next_one() -> None:
    """All addresses of a name are tried until one answers."""
    async with listen() as port:
        assert await visit("two.example", port, AddressGuard(is_any), Answers([["127.0.0.2", "127.0.0.1"]])) == 204


@pytest.mark.parametrize("addresses", [["127.0.0.1"], []])
async def test_no_address_that_answers_is_a_connect_error(addresses: list[str]) -> None:
    """When no address of a name answers, or it has none, the caller gets what aiohttp calls a connector error."""
    async with listen() as port:
        pass

    with pytest.raises(aiohttp.ClientConnectorError):
        await visit("gone.example", port, AddressGuard(is_any), Answers([addresses]))


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example"])
async def test_a_name_that_can_not_be_is_a_connect_error(host: str) -> None:
    """A name that no name server can even be asked for is a connector error that says so."""
    with pytest.raises(aiohttp.ClientConnectorDNSError, match="the name can't be resolved"):
        await visit(host, 80, AddressGuard())


async def visit(host: str, port: int, guard: AddressGuard, look_up: LookUp | None = None) -> int:
    """Make one request with a client of its own, and give the status of the answer."""
    async with (
        HttpClient(Settings(), guard, look_up) as client,
        client.get_session().get(f"http://{host}:{port}/") as r,
    ):
        return r.status


class Answers:
    """A name server in one object: gives the next of its answers each time it is asked, for the present moment."""

    def __init__(self, answers: list[list[str]]) -> None:
        self._answers = iter(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> HostAddresses:
        """Give the next answer, whatever the name."""
        self.asked.append(host)
        return HostAddresses(next(self._answers), 0)


@asynccontextmanager
async def listen() -> AsyncGenerator[int]:
    """Answer one request of each connection on a free port of 127.0.0.1, and give the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
