"""The token guard of `dormice serve` with the oldest starlette allowed: no header and no spelling gets past it."""

import asyncio
import os
import re
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle

from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from tests.conftest import Start, wait_until
from tests.support.wheels import ROOT, build_wheel, make_environment

pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.long, pytest.mark.timeout(180)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WEB = " ".join(PROJECT["optional-dependencies"]["web"])
OLDEST = re.findall(r"starlette>=([0-9.]+)", WEB)
MADE_WITH_HOST = "1.0.0"
"""Not allowed any more: its `request.url` has the path that a Host header says."""

TOKENS = """[crawler]
token = "{token}"
write = true
"""
TOKEN = "a-token-of-this-test-alone"  # noqa: S105

REQUESTS = (
    ("DELETE", "{path}", "x/healthz?"),
    ("DELETE", "{path}", "x/static/?"),
    ("DELETE", "{path}", "x/healthz#"),
    ("GET", "{path}", "x/openapi.json?"),
    ("GET", "/messages", "x/static/?"),
    ("GET", "/messages", "x/sign-in?"),
    ("GET", "/messages", "x/healthz?"),
    ("DELETE", "/healthz/..{path}", "x"),
    ("DELETE", "/healthz%3F/..{path}", "x"),
    ("DELETE", "/static/%2E%2E{path}", "x"),
    ("DELETE", "/static%2F..{path}", "x"),
    ("DELETE", "/%76%31{rest}", "x"),
    ("DELETE", "http://x/healthz?{path}", "x"),
    ("DELETE", "//x/healthz?{path}", "x"),
    ("DELETE", "{path}", "x:99999999/healthz?"),
)
"""Without a token, and each of them meant to look as if it needed none: method, target and Host."""


@pytest.fixture(scope="module", params=[*OLDEST, MADE_WITH_HOST])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the extra `web` and that version of starlette."""
    folder = tmp_path_factory.mktemp("oldest")
    (folder / "overrides.txt").write_text(f"starlette=={request.param}\n")
    wheel = f"dormice[web] @ {build_wheel(folder).as_uri()}"
    return make_environment(folder, wheel, "--overrides", str(folder / "overrides.txt"))


@pytest.fixture
async def port(programs: Path, server: EmbeddedServer, settings: Settings, tmp_path: Path) -> AsyncIterator[int]:
    """Where `dormice serve` answers, with tokens."""
    tokens = tmp_path / "tokens.toml"
    log = tmp_path / "serve.log"
    tokens.write_text(TOKENS.format(token=TOKEN))
    tokens.chmod(0o600)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(str(programs / "dormice"), "serve", "--port", "0", "--page-writes"),
            cwd=tmp_path,
            env={
                **inherited,
                "TEMPORAL_ADDRESS": server.address,
                "TEMPORAL_CONFIG_FILE": os.devnull,
                "DORMICE_TASK_QUEUE_PREFIX": settings.task_queue_prefix,
                "DORMICE_API_TOKENS_FILE": str(tokens),
            },
            stdout=output,
            stderr=output,
        )

    try:
        pattern = re.compile(r"HTTP API at http://127\.0\.0\.1:(\d+)")
        await wait_until(lambda: pattern.search(log.read_text()) or process.returncode is not None, "it listens", 90)
        found = pattern.search(log.read_text())
        assert found, log.read_text()
        yield int(found[1])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_nobody_without_a_token_gets_past(port: int, start: Start) -> None:
    """The message is neither shown nor told to stop; with the token it is."""
    assert OLDEST
    handle = await start(payload={"delay": 86400})
    kind, _, message_id = handle.id.partition(":")
    rest = f"/messages/{kind}/{message_id}"
    for method, target, host in REQUESTS:
        status, body = await ask(port, method, target.format(path=f"/v1{rest}", rest=rest), host)

        assert status in (303, 400, 401, 404, 405), (method, target, host, body)
        if method == "GET":
            assert message_id not in body.partition("\r\n\r\n")[2], (target, host)
    assert await count_signals(handle) == 0

    await ask(port, "DELETE", f"/v1{rest}", "x", f"Authorization: Bearer {TOKEN}\r\n")
    assert await count_signals(handle) == 1
    assert (await ask(port, "GET", "/healthz", "x"))[0] == 200


async def count_signals(handle: WorkflowHandle[Any, Any]) -> int:
    """Count what a message was told, whether or not a worker has seen it."""
    signaled = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    return len([event async for event in handle.fetch_history_events() if event.event_type == signaled])


async def ask(port: int, method: str, target: str, host: str, more: str = "") -> tuple[int, str]:
    """Send a request as it is; gives the status and all that is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split(maxsplit=2)[1]), answer
