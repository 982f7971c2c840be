"""`dormice codec-server`: who has the token, and comes from an allowed page, reads and writes what is encrypted."""

import asyncio
import base64
import json
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.settings import Secret, Settings
from shared.temporal.connect import to_raw
from shared.temporal.encryption import build_converter
from starter.local.embedded import EmbeddedServer, find_program
from tests.acceptance.conftest import Run, Spawn

KEYS = f"k:{base64.b64encode(bytes(range(32))).decode()}"
TOKEN = "0123456789abcdef-token"  # noqa: S105 — of a server that lives as long as its test
PAGE = "http://127.0.0.1:8233"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def url(spawn: Spawn, environment: dict[str, str]) -> AsyncIterator[str]:
    """A running codec server; it ends by SIGTERM with code 0 and has not told its secrets."""
    secrets = {"DORMICE_ENCRYPTION_KEYS": KEYS, "DORMICE_CODEC_TOKEN": TOKEN}
    process = await spawn("codec-server", "--port", "0", env={**environment, **secrets})
    assert process.stderr is not None
    told = (await process.stderr.readline()).decode()
    found = re.search(r"http://127\.0\.0\.1:\d+", told)
    assert found, told
    yield found[0]
    process.send_signal(signal.SIGTERM)
    _, rest = await process.communicate()
    assert process.returncode == 0
    assert not any(secret in told + rest.decode() for secret in (TOKEN, KEYS[2:]))


async def payloads_of(value: Any, *, is_sealed: bool = True) -> dict[str, Any]:
    """Give a value as Temporal's clients send it to a codec server."""
    keys = Secret(KEYS) if is_sealed else Secret()
    payloads = await build_converter(Settings(encryption_keys=keys)).encode([value])
    return {
        "payloads": [
            {
                "metadata": {name: base64.b64encode(text).decode() for name, text in payload.metadata.items()},
                "data": base64.b64encode(payload.data).decode(),
            }
            for payload in payloads
        ]
    }


async def test_a_page_that_is_allowed_reads_and_writes(url: str) -> None:
    """It asks beforehand, as browsers do; the token comes as a bearer token or in the path."""
    sealed = await payloads_of("a secret")
    plain = await payloads_of("a secret", is_sealed=False)
    asks = {"Origin": PAGE, "X-Namespace": "default"}
    async with httpx.AsyncClient(base_url=url, timeout=30) as page:
        wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-namespace"}
        before = await page.options("/decode", headers={**asks, **wanted})
        by_header = await page.post("/decode", json=sealed, headers=asks | BEARER)
        by_path = await page.post(f"/{TOKEN}/decode", json=sealed, headers=asks)
        again = await page.post("/encode", json=plain, headers=asks | BEARER)
        back = await page.post("/decode", json=again.json(), headers=BEARER)

    assert (before.status_code, before.headers["Access-Control-Allow-Origin"]) == (204, PAGE)
    assert {"Authorization", "Content-Type", "X-Namespace"} <= set(
        before.headers["Access-Control-Allow-Headers"].split(", ")
    )
    assert by_header.json() == by_path.json() == back.json() == plain
    assert by_header.headers["Access-Control-Allow-Origin"] == PAGE
    assert again.json() != plain


async def test_what_is_compressed_is_expanded_also_inside_what_is_encrypted(url: str) -> None:
    """The Web UI shows the JSON of a pack's state; what only looks compressed is refused with a sentence."""
    value = {"entries": ["x" * 100] * 100}
    plain = await payloads_of(value, is_sealed=False)
    compressed = to_raw(value)
    broken = {"payloads": [{"metadata": {"encoding": base64.b64encode(b"binary/zlib").decode()}, "data": "AAAA"}]}
    async with httpx.AsyncClient(base_url=url, headers=BEARER, timeout=30) as page:
        expanded = await page.post("/decode", json=await payloads_of(compressed, is_sealed=False))
        opened = await page.post("/decode", json=await payloads_of(compressed))
        refused = await page.post("/decode", json=broken)

    assert expanded.json() == opened.json() == plain
    assert (refused.status_code, "can't be read" in refused.text) == (400, True)


Asking = tuple[str, str, dict[str, str], bytes]
REFUSALS: dict[str, tuple[int, Asking]] = {
    "another origin": (403, ("POST", "/decode", {"Origin": "https://evil.example", **BEARER}, b"{}")),
    "another port": (403, ("POST", "/decode", {"Origin": "http://127.0.0.1:8234", **BEARER}, b"{}")),
    "no origin at all": (403, ("POST", "/decode", {"Origin": "null", **BEARER}, b"{}")),
    "another origin beforehand": (403, ("OPTIONS", "/decode", {"Origin": "https://evil.example"}, b"")),
    "no token": (401, ("POST", "/decode", {"Origin": PAGE}, b"{}")),
    "another token": (401, ("POST", "/decode", {"Authorization": f"Bearer {TOKEN}x"}, b"{}")),
    "half the token": (401, ("POST", f"/{TOKEN[:8]}/decode", {}, b"{}")),
    "a token that is no text": (401, ("POST", "/decode", {"Authorization": "Bearer \u00fc"}, b"{}")),
    "another path": (404, ("POST", f"/{TOKEN}/read", {}, b"{}")),
    "another method": (501, ("GET", f"/{TOKEN}/decode", {}, b"")),
    "no JSON": (400, ("POST", "/decode", BEARER, b"\xff")),
    "no payloads": (400, ("POST", "/decode", BEARER, b'{"other": 1}')),
}


async def test_who_may_not_ask_is_refused(url: str) -> None:
    """A wrong origin with 403, a wrong token with 401, and no page of another origin may read why."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        answers = {
            name: await client.request(
                method, path, headers=[(k.encode(), v.encode()) for k, v in headers.items()], content=body
            )
            for name, (_, (method, path, headers, body)) in REFUSALS.items()
        }

    assert {name: answer.status_code for name, answer in answers.items()} == {
        name: status for name, (status, _) in REFUSALS.items()
    }
    allowed = {name: answer.headers.get("Access-Control-Allow-Origin") for name, answer in answers.items()}
    assert {origin for origin in allowed.values() if origin} == {PAGE}


@pytest.mark.parametrize("length", ["16777217", "-1", "9" * 5000, "many"])
async def test_a_body_that_is_too_large_is_refused_before_it_is_read(url: str, length: str) -> None:
    """By what it says of its length, with 413."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(f"POST /{TOKEN}/decode HTTP/1.1\r\nHost: here\r\nContent-Length: {length}\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()

    assert b" 413 " in answer.partition(b"\r\n")[0]


async def test_temporals_own_cli_reads_through_it(
    url: str, server: EmbeddedServer, settings: Settings, message_id: Callable[[], str]
) -> None:
    """With --codec-endpoint and --codec-auth; without them it shows nothing that can be read."""
    name = message_id()
    word = f"secret-{message_id()}"
    keyed = Settings(encryption_keys=Secret(KEYS))
    client = await server.connect(keyed)
    await client.start_workflow("nobody", word, id=name, task_queue=settings.task_queue_prefix)
    shows = [find_program(), "workflow", "show", "-w", name, "--address", server.address, "-o", "json"]

    sealed = await _ask(*shows)
    opened = await _ask(*shows, "--codec-endpoint", url, "--codec-auth", f"Bearer {TOKEN}")

    written = base64.b64encode(json.dumps(word).encode()).decode()
    assert (written in sealed, written in opened) == (False, True)


async def _ask(*command: str) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    assert process.returncode == 0, err
    return out.decode()


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({}, "codec_token: is missing"),
        ({"DORMICE_ENCRYPTION_KEYS": "k", "DORMICE_CODEC_TOKEN": TOKEN}, "encryption_keys: key 1 has no id"),
        ({"DORMICE_ENCRYPTION_KEYS": KEYS, "DORMICE_CODEC_TOKEN": "short"}, "codec_token: has fewer than 16"),
    ],
)
async def test_it_does_not_begin_without_a_token_and_keys_that_can_be_read(
    run: Run, variables: dict[str, str], sentence: str
) -> None:
    """One sentence, exit code 2."""
    ran = await run("codec-server", "--port", "0", **variables)

    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert sentence in ran.err


async def test_a_token_may_come_from_a_file(run: Run, tmp_path: Path) -> None:
    """As all secrets may."""
    (tmp_path / "token").write_text("short\n")

    ran = await run("codec-server", DORMICE_ENCRYPTION_KEYS=KEYS, DORMICE_CODEC_TOKEN_FILE=str(tmp_path / "token"))

    assert (ran.code, "codec_token: has fewer than 16" in ran.err) == (2, True)
