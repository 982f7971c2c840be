"""The example of a receiver: it takes signed requests of a real worker only, and the page shows it as it is."""

import asyncio
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from activities.handlers.webhook.handler import webhook
from tests.conftest import Begin, Serve, wait_until

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "examples" / "webhook" / "receiver.mjs"
KEY = secrets.token_hex(32)


@pytest.fixture
async def receiver() -> AsyncIterator[str]:
    """The example as a process of its own; gives its URL, and skips without Node."""
    if (node := shutil.which("node")) is None:
        pytest.skip("node is not installed")

    process = await asyncio.create_subprocess_exec(
        node, str(SOURCE), env={**os.environ, "WEBHOOK_KEY": KEY}, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        found = re.fullmatch(rb"port (\d+)\n", await process.stdout.readline())
        assert found is not None
        yield f"http://127.0.0.1:{int(found[1])}/"
    finally:
        process.kill()
        await process.wait()


async def test_the_receiver_decides_over_the_life_of_a_message(
    receiver: str, serve: Serve, begin: Begin, kind: str, *, tmp_path: Path
) -> None:
    """In either encoding, and also while the sender signs with two keys; what it can't do it rejects."""
    keys = tmp_path / "keys"
    keys.write_text(f"{secrets.token_hex(32)}\n{KEY}\n")
    changes = {"http_allow_private": True, "webhook_key_file": str(keys)}
    async with serve(replace(webhook, kind=kind), lanes=("short",), **changes):
        message = await begin(kind, payload={"url": receiver, "data": {"invoice": "7", "left": 1}})
        bad = await begin(kind, payload={"url": receiver, "data": {}})
        ended = await message.wait_ended()
        await wait_until(lambda: bad.has(state="parked"), "the other one is parked")

    assert (ended["state"], ended["version"], ended["result"]) == ("done", 2, {"invoice": "7", "state": "paid"})


async def test_the_receiver_takes_nothing_that_is_not_signed(receiver: str) -> None:
    """Neither without a signature, nor with one that is made up."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        for header in ({}, {"Dormice-Signature": "t=1,v1=00"}, {"Dormice-Signature": "v1=00"}):
            answer = await client.post(receiver, json={}, headers=header)
            assert answer.status_code == 401


def test_the_page_shows_the_receiver_as_it_is() -> None:
    """The whole file, below its name."""
    page = (ROOT / "docs" / "webhook.md").read_text("utf-8")

    assert f"`examples/webhook/receiver.mjs`:\n\n```javascript\n{SOURCE.read_text('utf-8')}```\n" in page
