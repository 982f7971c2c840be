"""What a connection to Temporal fails for is said in our own words, with the next step; never in those of a library."""

import contextlib
import http.server
import os
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager

import pytest

from shared.errors import DormiceError, Misconfigured, ServerUnreachable
from shared.settings import Settings
from shared.temporal.connect import connect
from shared.temporal.connection_faults import check_address, explain_failure
from starter.local.supervised_process import find_free_port

HUNG_UP = "Failed client connect: `get_system_info` call error after connection: Status { code: Unknown }"


@contextlib.contextmanager
def web_site() -> Generator[int]:
    """Answer in plain HTTP/1."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server.server_port
        server.shutdown()
        serving.join()


@contextlib.contextmanager
def listener(treat: Callable[[socket.socket], object]) -> Generator[int]:
    """Accept connections and do something to each."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    treat(listening.accept()[0])

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join()


@contextlib.contextmanager
def nothing() -> Generator[int]:
    """Listen nowhere."""
    yield find_free_port()


@pytest.mark.parametrize(
    ("there", "error", "sentence"),
    [
        (nothing, ServerUnreachable, "no Temporal server answers at {} (nothing listens there); start one with"),
        (lambda: listener(socket.socket.close), ServerUnreachable, "no Temporal server answers at {} (it hung up)"),
        (web_site, Misconfigured, "what answers at {} is no Temporal server, which speaks gRPC; set TEMPORAL_ADDRESS"),
    ],
    ids=["nothing", "hangs up", "web site"],
)
async def test_who_does_not_answer_as_temporal_does_is_told_in_our_words(
    there: Callable[[], AbstractContextManager[int]], error: type[DormiceError], sentence: str
) -> None:
    """One sentence with the address and the next step, and none of the text of the SDK's core."""
    with there() as port:
        address = f"127.0.0.1:{port}"
        with pytest.raises(error) as caught:
            await connect(Settings(), {"TEMPORAL_ADDRESS": address, "TEMPORAL_CONFIG_FILE": os.devnull})

    told = str(caught.value)
    assert told.startswith(sentence.format(address))
    assert not [mark for mark in ("::", "Status", "Error(", "\n") if mark in told]


def test_who_says_nothing_does_not_want_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS is wanted where somebody answered in TLS; silence is an outage."""
    monkeypatch.setattr("shared.temporal.connection_faults.PROBE_SECONDS", 0.2)
    kept: list[socket.socket] = []
    with listener(kept.append) as port:
        fault = explain_failure(f"127.0.0.1:{port}", HUNG_UP, tls=None)

    assert isinstance(fault, ServerUnreachable)
    for connection in kept:
        connection.close()


@pytest.mark.parametrize("port", ["8233", "8080"])
def test_the_web_ui_is_named_where_its_port_is_given(port: str) -> None:
    """The address that the browser shows is the one most often tried instead of the server's."""
    fault = explain_failure(f"far.example:{port}", "Status { code: Unimplemented, message: 404 }", tls=True)

    assert isinstance(fault, Misconfigured)
    assert f"{port} is usually the port of its Web UI: set TEMPORAL_ADDRESS to the server's own port" in str(fault)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('ConnectError("dns error", Custom { error: "failed to lookup" })', "the name of its host is not known"),
        ('ConnectError("tcp connect error", Os { kind: HostUnreachable })', "its host can't be reached"),
        ("timed out", "it did not answer in time"),
        ("tonic::transport::Error(Transport, of a sort that nobody has seen yet)", "the connection failed"),
    ],
)
def test_what_may_pass_by_itself_says_why(said: str, why: str) -> None:
    """The same command may succeed later, so it is no wrong input."""
    fault = explain_failure("far.example:7233", said, tls=None)

    assert isinstance(fault, ServerUnreachable)
    assert f"at far.example:7233 ({why}); start one" in str(fault)


@pytest.mark.parametrize("address", ["localhost:7233", "[::1]:7233", "10.0.0.1:1", "a-b.c_d.example.:65535", "ä.eu:80"])
def test_a_host_with_a_port_is_an_address(address: str) -> None:
    """By name or number."""
    check_address(address)


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("127.0.0.1:999999", "is '127.0.0.1:999999', which is no HOST:PORT with a port from 1 to 65535; write"),
        ("127.0.0.1:65536", "with a port from 1 to 65535; write for example localhost:7233"),
        ("127.0.0.1:0", "with a port from 1 to 65535; write for example localhost:7233"),
        ("localhost", "is no HOST:PORT"),
        ("localhost:", "is no HOST:PORT"),
        ("localhost:grpc", "is no HOST:PORT"),
        ("localhost:-1", "is no HOST:PORT"),
        (":7233", "is no HOST:PORT"),
        ("local host:7233", "is no HOST:PORT"),
        ("http://localhost:7233", "is no HOST:PORT"),
        ("::1", "write an IPv6 address in brackets before its port, for example [::1]:7233"),
        ("::1:7233", "write an IPv6 address in brackets before its port, for example [::1]:7233"),
        ("", "is empty; write for example localhost:7233, or leave it out"),
    ],
)
async def test_what_is_no_address_is_wrong_input(address: str, remedy: str) -> None:
    """Told before anybody tries to connect, and also where it comes from a variable that is empty."""
    with pytest.raises(Misconfigured) as caught:
        await connect(Settings(), {"TEMPORAL_ADDRESS": address, "TEMPORAL_CONFIG_FILE": os.devnull})

    assert str(caught.value).startswith("TEMPORAL_ADDRESS: is ")
    assert remedy in str(caught.value)
