"""TLS and client certificates: the right ones reach the server, each wrong one is reported in one sentence."""

import asyncio
import contextlib
import os
import socket
import socketserver
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.errors import Misconfigured, ServerUnreachable
from shared.settings import Settings
from shared.temporal.connect import check_server, connect
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import find_free_port

Variables = dict[str, str]


@dataclass(frozen=True, slots=True)
class Front:
    """Doors before the server that want TLS and a client certificate, and the files to show them."""

    folder: Path
    plain: int
    good: int
    elsewhere: int
    """Shows a certificate for another host."""

    def file(self, variable: str, name: str) -> Variables:
        """Name a file of the folder in one of Temporal's variables."""
        return {f"TEMPORAL_TLS_{variable}_PATH": str(self.folder / name)}

    def show(self, name: str, key: str = "") -> Variables:
        """Show a client certificate, with its own key or another one."""
        return self.file("CLIENT_CERT", f"{name}.pem") | self.file("CLIENT_KEY", f"{key or name}.key")

    def trust(self, name: str) -> Variables:
        """Trust a CA."""
        return self.file("SERVER_CA_CERT", f"{name}.pem")


@pytest.fixture(scope="module")
async def front(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    """A TLS proxy for each certificate of a server."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ca", "other"):
        request = ("req", "-x509", *NEW_KEY, "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign")
        await _openssl(folder, *request, *_files(name, "-out", "pem"))

    await _make_leaf(folder, "server", "ca", "subjectAltName=IP:127.0.0.1")
    await _make_leaf(folder, "elsewhere", "ca", "subjectAltName=DNS:elsewhere.example")
    await _make_leaf(folder, "client", "ca", "extendedKeyUsage=clientAuth")
    await _make_leaf(folder, "stranger", "other", "extendedKeyUsage=clientAuth")

    port = server.options.port
    with open_door(folder, "server", port) as good, open_door(folder, "elsewhere", port) as elsewhere:
        yield Front(folder, port, good, elsewhere)


NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _files(name: str, option: str, suffix: str) -> tuple[str, ...]:
    return ("-keyout", f"{name}.key", option, f"{name}.{suffix}")


async def _make_leaf(folder: Path, name: str, ca: str, extension: str) -> None:
    await _openssl(folder, "req", *NEW_KEY, "-subj", f"/CN={name}", *_files(name, "-out", "csr"))
    # since 3.13, Python's own contexts want to know by which key of a CA
    (folder / f"{name}.ext").write_text(f"{extension}\nauthorityKeyIdentifier=keyid\n")
    signed = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "1", "-extfile", f"{name}.ext")
    await _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)


async def _openssl(folder: Path, *arguments: str) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("openssl", *arguments, cwd=folder, stdout=pipe, stderr=pipe)
    _, said = await process.communicate()
    assert process.returncode == 0, said


@contextlib.contextmanager
def open_door(folder: Path, name: str, port: int) -> Generator[int]:
    """Pass on to a port whoever shows a certificate of our CA; asyncio's own TLS would hang up without an alert."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    context.set_alpn_protocols(["h2"])

    class Door(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), context.wrap_socket(self.request, server_side=True) as outer:
                outer.settimeout(0.05)  # a channel of TLS is no one's to read and to write at once
                with socket.create_connection(("127.0.0.1", port)) as inner:
                    inner.settimeout(0.01)
                    while not is_over.is_set():
                        if not (_pass_on(outer, inner) and _pass_on(inner, outer)):
                            return

    is_over = threading.Event()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Door) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server.server_address[1]
        is_over.set()
        server.shutdown()
        serving.join()


def _pass_on(source: socket.socket, target: socket.socket) -> bool:
    try:
        content = source.recv(65536)
    except TimeoutError:
        return True
    target.sendall(content)
    return bool(content)


def at(port: int, *variables: Variables) -> Variables:
    """Give an environment that names a server and nothing else of anybody's own."""
    given = {"TEMPORAL_ADDRESS": f"127.0.0.1:{port}", "TEMPORAL_CONFIG_FILE": os.devnull}
    for more in variables:
        given |= more
    return given


async def test_the_right_certificate_reaches_the_server(front: Front) -> None:
    """By TEMPORAL_TLS_… variables, also where the certificate has another name than the address."""
    named = {"TEMPORAL_TLS_SERVER_NAME": "elsewhere.example"}
    for variables in (at(front.good), at(front.elsewhere, named)):
        client = await connect(Settings(), at(0, front.trust("ca"), front.show("client")) | variables)
        await check_server(client)


async def test_a_profile_says_the_same(front: Front, tmp_path: Path) -> None:
    """In Temporal's own configuration file."""
    folder = front.folder
    file = tmp_path / "temporal.toml"
    file.write_text(
        f'[profile.far]\naddress = "127.0.0.1:{front.good}"\n[profile.far.tls]\n'
        f'server_ca_cert_path = "{folder}/ca.pem"\nclient_cert_path = "{folder}/client.pem"\n'
        f'client_key_path = "{folder}/client.key"\n'
    )

    await check_server(await connect(Settings(), {"TEMPORAL_CONFIG_FILE": str(file), "TEMPORAL_PROFILE": "far"}))


WRONG: dict[str, tuple[Callable[[Front], Variables], str]] = {
    "no client certificate": (lambda f: at(f.good, f.trust("ca")), "wants a client certificate, and none is set"),
    "another CA's": (lambda f: at(f.good, f.trust("ca"), f.show("stranger")), "refuses the client certificate ("),
    "another key": (lambda f: at(f.good, f.trust("ca"), f.show("client", "stranger")), "the key is not that of"),
    "no key": (lambda f: at(f.good, f.trust("ca"), f.file("CLIENT_CERT", "client.pem")), "needs its key; set both"),
    "another CA": (lambda f: at(f.good, f.trust("other"), f.show("client")), "of no CA that is trusted"),
    "no CA": (lambda f: at(f.good, {"TEMPORAL_TLS": "true"}, f.show("client")), "of no CA that is trusted"),
    "another host": (lambda f: at(f.elsewhere, f.trust("ca"), f.show("client")), "a certificate for another host"),
    "no TLS": (lambda f: at(f.good), "wants TLS; set TEMPORAL_TLS=true"),
    "TLS where there is none": (lambda f: at(f.plain, f.trust("ca")), "does not speak TLS"),
    "a key where there is no TLS": (lambda f: at(f.plain, {"TEMPORAL_API_KEY": "hush-hush"}), "does not speak TLS"),
    "no such file": (lambda f: at(f.good, f.trust("nowhere")), "nowhere.pem"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_wrong_one_is_told_in_one_sentence(front: Front, what: str) -> None:
    """Each with its own next step; trying again would not help, so it is no outage."""
    make, sentence = WRONG[what]
    with pytest.raises(Misconfigured) as caught:
        await connect(Settings(), make(front))

    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hush-hush" not in f"{caught.value} {caught.value.__cause__}"


async def test_a_server_that_is_gone_is_an_outage_with_certificates_too(front: Front) -> None:
    """Whoever is supervised tries again."""
    with pytest.raises(ServerUnreachable):
        await connect(Settings(), at(find_free_port(), front.trust("ca"), front.show("client")))
