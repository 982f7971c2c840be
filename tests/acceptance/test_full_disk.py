"""A full disk under the server of a folder: board and commands say so, in place of waiting without a word."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from starter.local.disk import DEFAULT_DATA
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from tests.acceptance.conftest import PROGRAM
from tests.conftest import wait_until
from tests.support.disks import fill
from tests.support.processes import run_to_end

pytestmark = pytest.mark.timeout(180)


@pytest.mark.long
async def test_a_full_disk_is_told_by_the_board_and_by_commands(small_disk: Path, environment: dict[str, str]) -> None:
    """Each names the folder and what to do, also once the server has gone; before, none of them says a word of it."""
    running = EmbeddedOptions(data=small_disk / DEFAULT_DATA, port=find_free_port(), ui_port=None, slim=False)
    board = small_disk.parent / "board.txt"
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    start = (str(PROGRAM), "start", "echo", "1", "--scheduled-at", later)
    problem = f"the disk that holds {small_disk / DEFAULT_DATA} is full: the server can't write"
    async with run_embedded(running) as server:
        variables = {**environment, "TEMPORAL_ADDRESS": server.address, "DORMICE_PATIENCE": "5s"}
        before = await run_to_end(*start, cwd=small_disk, env=variables)
        with board.open("wb") as output:
            watching = await asyncio.create_subprocess_exec(
                *(str(PROGRAM), "watch", "--interval", "500ms"), cwd=small_disk, env=variables, stdout=output
            )
        try:
            await wait_until(lambda: board.read_text("utf-8"), "the board is there")
            seen = board.read_text("utf-8")
            filling = fill(small_disk)
            after = await run_to_end(*start, cwd=small_disk, env=variables)
            await wait_until(lambda: problem in board.read_text("utf-8"), "the board says so")
        finally:
            watching.kill()
            await watching.wait()
        filling.unlink()

    assert (before[0], before[2]) == (0, "")
    assert "is full" not in seen
    assert f"dormice: {problem}, and messages stand still; free some space, nothing that has" in after[2]
