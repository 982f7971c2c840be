"""A frontier's counts, of URLs that are not at hand: each counts once, whatever becomes of its puts."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shared.settings import Settings
from starter.extras.frontier import url_store
from starter.extras.frontier.frontier import PutStatus, QueueCounts
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from tests.conftest import wait_until
from tests.integration.test_frontier import DAY, make_url, put_known, read, running
from tests.support.processes import kill


@pytest.mark.long
async def test_a_url_whose_put_failed_is_counted_once(
    settings: Settings, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though this process has never seen it, and does not know what became of its put; then it can be deleted."""
    monkeypatch.setattr(url_store, "PATIENCE", timedelta(seconds=1))
    later = int(time.time()) + DAY
    urls = [make_url(f"http://a.org/{number}", later) for number in range(5)]
    options = EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None)
    async with run_embedded(options) as server:
        client = await server.connect()
        async with running(client, settings, kind) as frontier:
            await put_known(frontier, *urls)
        async with running(client, settings, kind) as frontier:
            await wait_until(lambda: frontier.count("", "").active == 5, "all are counted")
            counted_at = int(time.time())
            await wait_until(lambda: int(time.time()) > counted_at, "a put is younger than what is stored")
            await kill(server)
            statuses = await asyncio.gather(*(frontier.put(url, is_discovered=False) for url in urls))
            assert statuses == [PutStatus.FAIL] * 5
            await server.start()
            puts = frontier._buffer._puts  # pyright: ignore[reportPrivateUsage] — no other sign
            under_way: dict[str, Any] = puts._under_way  # pyright: ignore[reportPrivateUsage]
            await wait_until(lambda: not under_way, "it is known what became of them")

            assert frontier.count("", "") == QueueCounts(1, 5, 0, 0, 1)
            assert len(await read(frontier)) == 5

            assert await frontier.delete("", "") == 5
            assert frontier.count("", "") == QueueCounts()
