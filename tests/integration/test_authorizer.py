"""A server that asks who calls, set up as SECURITY.md says: what each role may do, and how a refusal reads."""

import asyncio
import base64
import http.server
import json
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from temporalio.client import Client

from cluster.cluster import Cluster
from cluster.program import Program
from cluster.server import choose_ports, end_process
from shared.errors import MessageAlive, Misconfigured, RetryLater
from shared.messages.envelope import Envelope
from shared.settings import Settings
from shared.temporal.connect import connect
from starter.control import Control
from starter.insight.doctor.checks import Severity
from starter.insight.doctor.machine import check_machine
from starter.insight.doctor.run_checks import examine
from starter.starting.receipts import StartOutcome
from tests.conftest import wait_until

PROGRAM = Program()
REFUSED = r"the server refuses this client .* check the API key"
PAGE = Path(__file__).parents[2] / "SECURITY.md"

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.long,
    pytest.mark.xdist_group("authorizer"),
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not PROGRAM.is_built, reason="Temporal's server is not built here; './run cluster up' builds it"
    ),
]

Login = Callable[..., dict[str, str]]


class Issuer:
    """Who signs tokens, and shows servers by what key."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        numbers = self._key.public_key().public_numbers()
        shown = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "one"}
        self.keys = {"keys": [{**shown, "n": _number(numbers.n), "e": _number(numbers.e)}]}

    def sign(self, permissions: tuple[str, ...]) -> str:
        """Give a token that lasts for an hour."""
        claims = {"sub": "somebody", "exp": int(time.time()) + 3600, "permissions": permissions}
        parts = ({"alg": "RS256", "kid": "one", "typ": "JWT"}, claims)
        said = ".".join(_text(json.dumps(part).encode()) for part in parts)
        return f"{said}.{_text(self._key.sign(said.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(number: int) -> str:
    return _text(number.to_bytes((number.bit_length() + 7) // 8, "big"))


@pytest.fixture(scope="module")
def issuer() -> Iterator[tuple[Issuer, str]]:
    """An issuer, and the address at which it shows its keys."""
    issuer = Issuer()

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(issuer.keys).encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 — the library's own name
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as site:
        serving = threading.Thread(target=site.serve_forever)
        serving.start()
        yield issuer, f"http://127.0.0.1:{site.server_port}/jwks.json"
        site.shutdown()
        serving.join()


@pytest.fixture
async def login(issuer: tuple[Issuer, str]) -> AsyncIterator[Login]:
    """A server with the authorizer of SECURITY.md; gives the variables by which a user of some permissions connects."""
    folder = Path(tempfile.mkdtemp(prefix="dormice-authorizer-"))
    cluster = Cluster(folder)
    try:
        await cluster.up(PROGRAM, 4)  # its namespace and search attributes are made while it lets everybody in
        assert cluster.process is not None
        end_process(cluster.process)
        asks = _ask_who_calls(folder, issuer[1])
        command = [PROGRAM.folder / "server", "--config-file", asks, "start"]
        for service in ("frontend", "internal-frontend", "history", "matching", "worker"):
            command += ["--service", service]
        with (folder / "asks.log").open("wb") as log:
            server = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
            try:

                def log_in(*permissions: str) -> dict[str, str]:
                    key = issuer[0].sign(permissions)
                    return {"TEMPORAL_ADDRESS": cluster.address, "TEMPORAL_TLS": "false", "TEMPORAL_API_KEY": key}

                await wait_until(lambda: _is_ready(log_in("default:write")), "the server takes calls")
                yield log_in
            finally:
                if server.returncode is None:
                    server.terminate()
                await server.wait()
    finally:
        cluster.down(is_deleting=True)
        shutil.rmtree(folder, ignore_errors=True)


def _ask_who_calls(folder: Path, keys_at: str) -> Path:
    """Write the server's configuration with what SECURITY.md adds to it."""
    (shown,) = (part.split("```")[0] for part in PAGE.read_text().split("```yaml\n")[1:])
    added = yaml.safe_load(shown)["global"]["authorization"]
    added["jwtKeyProvider"]["keySourceURIs"] = [keys_at]
    configuration = json.loads((folder / "server.yaml").read_text())
    configuration["global"]["authorization"] = added
    # the server's own workers have no token: they come by a door of their own
    free = choose_ports()
    door = {"grpcPort": free["frontend-rpc"], "membershipPort": free["frontend-membership"], "bindOnLocalHost": True}
    configuration["services"]["internal-frontend"] = {"rpc": door}
    path = folder / "asks.yaml"
    path.write_text(json.dumps(configuration))

    return path


async def _is_ready(login: dict[str, str]) -> bool:
    try:
        client = await connect(Settings(), login)
        return await _start(client, Settings(), "first") is StartOutcome.STARTED
    except MessageAlive:
        return True
    except RetryLater:
        return False


async def _start(client: Client, settings: Settings, message_id: str) -> StartOutcome:
    return (await Control(client, settings).start(Envelope(kind="echo", id=message_id))).outcome


async def test_each_role_may_do_what_security_md_says(login: Login, settings: Settings) -> None:
    """Who may write starts messages, who may read counts them, everybody else is advised to check the key."""
    assert await _start(await connect(settings, login("default:write")), settings, "one") is StartOutcome.STARTED
    reader = await connect(settings, login("default:read"))
    await reader.count_workflows()
    with pytest.raises(Misconfigured, match=REFUSED):
        await _start(reader, settings, "two")
    for permissions in (("elsewhere:write",), ()):
        with pytest.raises(Misconfigured, match=REFUSED):
            await _start(await connect(settings, login(*permissions)), settings, "two")


async def test_the_doctor_is_told_of_the_cluster_if_it_may_see_it(
    login: Login, settings: Settings, tmp_path: Path
) -> None:
    """With rights to the namespace alone it looks at all the rest."""
    seen: dict[str, tuple[Severity, Severity]] = {}
    for system in ((), ("temporal-system:read",)):

        async def open_client(settings: Settings, permissions: tuple[str, ...] = system) -> Client:
            return await connect(settings, login("default:write", *permissions))

        _, registry = check_machine(settings, tmp_path)
        findings = await examine(settings, registry, open_client, data=tmp_path, seconds=20.0)
        levels = {finding.check: finding.level for finding in findings}
        seen["".join(system)] = levels["server"], levels["limits"]

    assert seen == {"": (Severity.FINE, Severity.UNKNOWN), "temporal-system:read": (Severity.FINE, Severity.WARNING)}
