"""The examples for Temporal's own SDKs: each steers and asks a message of either encoding, and the page shows them."""

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from activities import Again, Context, Message, Pack, handler
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import Serve
from tests.support.subjects import declare

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "examples" / "sdk"
PAGE = ROOT / "docs" / "sdk-examples.md"

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
MANY = Pack(packs=97, size=1000, coalesce=timedelta(0))
PLAIN_IDS = ("ada", "a/b:c d", "x")
OTHER_IDS = ("käfer-🐭",)

Make = Callable[[], Awaitable[list[str]]]


@pytest.fixture
def make(tmp_path: Path) -> dict[str, Make]:
    """For each language, what makes a program of the example; skips without the tools, which fetch the SDK."""
    folder = tmp_path / "sdk"
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("node_modules", "build", "__pycache__"))

    async def make_python() -> list[str]:
        return [sys.executable, str(folder / "python" / "steer.py")]

    async def make_go() -> list[str]:
        await run([find("go"), "build", "-o", "steer", "."], folder / "go", 900)
        return [str(folder / "go" / "steer")]

    async def make_typescript() -> list[str]:
        await run([find("npm"), "install", "--no-audit", "--no-fund"], folder / "typescript", 600)
        await run([find("npm"), "run", "build"], folder / "typescript", 300)
        return [find("node"), str(folder / "typescript" / "build" / "steer.js")]

    return {"python": make_python, "go": make_go, "typescript": make_typescript}


def find(tool: str) -> str:
    """Find a program, or skip the test."""
    if (found := shutil.which(tool)) is None:
        pytest.skip(f"{tool} is not installed")
    return found


async def run(command: list[str], folder: Path, seconds: float, **variables: str) -> str:
    """Run a program to its end and give what it printed; fails with its own words."""
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, **variables}

    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=env, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    assert process.returncode == 0, f"{command}: {out.decode()}{err.decode()}"
    return out.decode()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("language", ["python", "go", "typescript"])
async def test_an_example_steers_and_asks_messages(
    language: str,
    make: dict[str, Make],
    server: EmbeddedServer,
    client: Client,
    settings: Settings,
    *,
    serve: Serve,
    kind: str,
    tmp_path: Path,
) -> None:
    """Whatever workflow they live in, of 97 packs or their own, and whatever characters their ids have.

    The SDK for Go refuses workflow ids beyond ASCII, which those of packs never are.
    """

    def sleeper(kind: str) -> object:
        @handler(kind)
        async def sleep(message: Message, ctx: Context) -> Again:
            return Again(after=timedelta(days=30))

        return sleep

    command = await make[language]()
    kinds = {"solo": f"{kind}-solo", "pack": f"{kind}-pack"}
    starter = BulkStarter(client, settings, encodings=declare("pack", kinds["pack"], MANY))
    async with serve(*map(sleeper, kinds.values())):
        for name in kinds.values():
            for message_id in PLAIN_IDS if (language, name) == ("go", kinds["solo"]) else PLAIN_IDS + OTHER_IDS:
                envelope = Envelope(kind=name, id=message_id, lane="short", scheduled_at=LATER + timedelta(days=9))
                assert (await starter.start(envelope, None)).outcome is StartOutcome.STARTED
                arguments = [*command, name, message_id, f"{LATER:%Y-%m-%dT%H:%M:%SZ}"]
                variables = {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_CONFIG_FILE": os.devnull}
                printed = json.loads(await run(arguments, tmp_path, 60, **variables))

                assert (printed["kind"], printed["id"]) == (name, message_id)
                assert printed["due_at_epoch"] == LATER.timestamp()
                assert re.fullmatch(r"due .* since reschedule \(asked from \w+\)", printed["why"])


def test_the_page_shows_the_files_as_they_are() -> None:
    """Each source, whole, below its name."""
    text = PAGE.read_text("utf-8")
    shown = dict(re.findall(r"^`(examples/sdk/[\w/.]+)`:\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    files = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in (SOURCES / "python" / "steer.py", SOURCES / "go" / "main.go", SOURCES / "typescript" / "steer.ts")
    }

    assert shown == files
