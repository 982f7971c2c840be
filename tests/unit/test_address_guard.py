"""Which addresses and URLs handlers may reach, and that a connection goes where the check looked."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, ip_address, ip_network

import httpcore
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.http.address_guard import (
    Address,
    AddressGuard,
    AddressRefused,
    GuardedBackend,
    is_any,
    is_public,
    read_url,
    resolve_host,
    show_url,
)

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
        ("http://example.org:abc/", "can't be read (Invalid port: 'abc'); correct it"),
        ("http://example.org:99999/", "has the port 99999; give one from 1 to 65535"),
        ("http://example.org:0/", "has the port 0"),
        ("http://[/", "names no host"),
        ("http://a b/", "names no host"),
        ("http://[fe80::1%25eth0]/", "names no host"),
        ("http://\u2024\u2024/", "can't be read"),
        ("http://[::1/", "can't be read"),
        ("http://exa\nmple.org/", "can't be read"),
    ],
)
def test_urls_that_handlers_do_not_visit_are_refused(text: str, sentence: str) -> None:
    """What is no http or https URL with a host and without credentials is refused, and no secret is repeated."""
    with pytest.raises(AddressRefused) as caught:
        read_url(text)

    assert str(caught.value).startswith(sentence)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/b", "http://one.example/b"),
        ("b?x=1", "http://one.example/a/b?x=1"),
        ("//two.example/c", "http://two.example/c"),
        ("//b\u00fccher.example/c", "http://xn--bcher-kva.example/c"),
        ("http://[2001:4860::1]:8080/c", "http://[2001:4860::1]:8080/c"),
        ("https://two.example/", "https://two.example/"),
    ],
)
def test_a_redirect_is_read_from_where_it_was_met(target: str, expected: str) -> None:
    """A relative target is completed by the URL that redirected."""
    actual = str(read_url(target, base=httpx.URL("http://one.example/a/a")))

    assert expected == actual


@pytest.mark.parametrize(
    "target", ["ftp://two.example/", "http://me:secret@two.example/", "http://[bad]/", "http://[/", "mailto:a@b.c"]
)
def test_a_redirect_is_held_to_the_same_rules(target: str) -> None:
    """A target that could not stand in a payload is refused too, and the sentence says it was a redirect."""
    with pytest.raises(AddressRefused, match=r"^redirects to a URL that "):
        read_url(target, base=httpx.URL("http://one.example/"))


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
    actual = show_url(httpx.URL(text))

    assert expected == actual


async def test_one_forbidden_address_among_many_closes_a_name() -> None:
    """A name is refused when any of its addresses is forbidden, and the sentence names both and the setting."""
    guard = AddressGuard(is_public, Answers([["1.1.1.1", "10.0.0.7"]]))

    with pytest.raises(AddressRefused) as caught:
        await guard.find_addresses("mixed.example", 80)

    expected = (
        "mixed.example leads to 10.0.0.7, a private or reserved address; "
        "set DORMICE_HTTP_ALLOW_PRIVATE=true if handlers may go there"
    )
    assert expected == str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "017700000001", "::1"])
async def test_loopback_is_recognised_however_it_is_written(host: str) -> None:
    """The check sees the address that the system makes of a name, so no spelling of loopback gets by."""
    with pytest.raises(AddressRefused, match="DORMICE_HTTP_ALLOW_PRIVATE"):
        await GuardedBackend(AddressGuard()).connect_tcp(host, 9, 5)


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """A name is looked up once; an answer that changes after the check is never connected to."""
    answers = Answers([["127.0.0.1"], ["127.0.0.2"]])
    backend = GuardedBackend(AddressGuard(lambda address: str(address) == "127.0.0.1", answers))
    async with listen() as port:
        stream = await backend.connect_tcp("changing.example", port, 5)
        peer = stream.get_extra_info("server_addr")[0]
        await stream.aclose()

        with pytest.raises(AddressRefused, match=r"changing\.example leads to 127\.0\.0\.2"):
            await backend.connect_tcp("changing.example", port, 5)

    assert peer == "127.0.0.1"
    assert answers.asked == ["changing.example", "changing.example"]


async def test_an_address_that_does_not_answer_leaves_the_next_one() -> None:
    """All addresses of a name are tried in their order until one answers."""
    async with listen() as port:
        backend = GuardedBackend(AddressGuard(is_any, Answers([["127.0.0.2", "127.0.0.1"]])))
        stream = await backend.connect_tcp("two.example", port, 5)
        peer = stream.get_extra_info("server_addr")[0]
        await stream.aclose()

    assert peer == "127.0.0.1"


@pytest.mark.parametrize("addresses", [["127.0.0.1"], []])
async def test_no_address_that_answers_is_a_connect_error(addresses: list[str]) -> None:
    """When no address of a name answers, or it has none, the caller gets what httpx calls a connect error."""
    async with listen() as port:
        pass

    with pytest.raises(httpcore.ConnectError):
        await GuardedBackend(AddressGuard(is_any, Answers([addresses]))).connect_tcp("gone.example", port, 5)


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example"])
async def test_a_name_that_can_not_be_is_a_connect_error(host: str) -> None:
    """A name that the system's resolver can't even ask for is a connect error that names it."""
    with pytest.raises(httpcore.ConnectError, match=rf"^{host} can't be resolved"):
        await GuardedBackend(AddressGuard()).connect_tcp(host, 80, 5)


async def test_a_name_without_addresses_is_a_connect_error() -> None:
    """A name that the system's resolver does not know is a connect error that names it."""

    async def resolve_numbers_only(host: str, port: int) -> Sequence[Address]:
        await asyncio.get_running_loop().getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)
        return []

    with pytest.raises(httpcore.ConnectError, match=r"^unknown\.example can't be resolved"):
        await GuardedBackend(AddressGuard(is_any, resolve_numbers_only)).connect_tcp("unknown.example", 80, 5)


async def test_looking_a_name_up_counts_against_the_connect_timeout() -> None:
    """A resolver that does not answer ends in a connect timeout."""

    async def resolve_never(host: str, port: int) -> Sequence[Address]:
        await asyncio.Event().wait()
        return await resolve_host(host, port)

    with pytest.raises(httpcore.ConnectTimeout, match=r"slow\.example did not answer in time"):
        await GuardedBackend(AddressGuard(is_any, resolve_never)).connect_tcp("slow.example", 80, 0.01)


class Answers:
    """A name server in one object: gives the next of its answers each time it is asked."""

    def __init__(self, answers: list[list[str]]) -> None:
        self._answers = iter(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[Address]:  # noqa: ARG002 — the shape of a resolver
        """Give the next answer, whatever the name."""
        self.asked.append(host)
        return [ip_address(text) for text in next(self._answers)]


@asynccontextmanager
async def listen() -> AsyncGenerator[int]:
    """Accept connections on a free port of 127.0.0.1, and give the port."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
