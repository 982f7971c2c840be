"""A full disk is reported as that, wherever something is to be written."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shared.errors import DiskFull
from shared.messages.envelope import Envelope, EnvelopeRules
from shared.settings import Settings
from starter.files.load import Load, LoadOptions
from starter.files.rows import RowSource
from starter.local.disk import watch_disk
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import wait_until
from tests.support.disks import fill

LATER = datetime.now(UTC) + timedelta(days=1)


def options(disk: Path) -> EmbeddedOptions:
    """Keep a server's messages on a disk."""
    return EmbeddedOptions(data=disk / "server", port=find_free_port(), ui_port=None, slim=False)


async def test_a_server_does_not_start_on_a_full_disk(small_disk: Path) -> None:
    """The sentence names the folder and what to do, and nothing is begun."""
    fill(small_disk)

    with pytest.raises(DiskFull) as caught:
        async with run_embedded(options(small_disk)):
            pass

    assert str(caught.value) == (
        f"--data: the disk that holds {small_disk}/server is full (0.0 MB left, 8 are needed); free some space, or "
        "choose a folder on another disk"
    )
    assert not (small_disk / "server" / "temporal.db").exists()


async def test_a_disk_that_fills_up_under_a_running_server_is_told_and_so_is_its_end(
    small_disk: Path, settings: Settings
) -> None:
    """What was started before is there afterwards; whether the server outlives it is the server's own business."""
    told: list[str] = []
    running = options(small_disk)
    envelope = Envelope(kind="sleeper", id="1", lane="short", scheduled_at=LATER)
    async with run_embedded(running) as server, watch_disk(running.data, running.log, told.append):
        first = await BulkStarter(await server.connect(), settings).start(envelope, "")
        filling = fill(small_disk)
        await wait_until(lambda: len(told) == 1, "the disk is told to be full")
        filling.unlink()
        await wait_until(lambda: len(told) == 2, "the disk is told to have room")
    async with run_embedded(running) as server:
        second = await BulkStarter(await server.connect(), settings).start(envelope, "")

    assert told[0].startswith(f"the disk that holds {running.data} is full: the server can't write, and messages stand")
    assert told[1] == f"the disk that holds {running.data} has room again; messages go on"
    assert (first.outcome, second.outcome) == (StartOutcome.STARTED, StartOutcome.ALREADY_RUNNING)


async def test_rejects_that_find_no_room_end_the_load(small_disk: Path, tmp_path: Path) -> None:
    """With no half of them left behind."""
    fill(small_disk)
    (tmp_path / "rows.jsonl").write_text("bad\n" * 100)

    with RowSource(str(tmp_path / "rows.jsonl")) as source:
        load = Load(source, LoadOptions(rules=EnvelopeRules({}), rejects=small_disk / "rejects"))
        with pytest.raises(
            DiskFull, match=r"^--rejects: the disk that holds .*/rejects is full; free some space, or give"
        ):
            await load.run(None)

    assert not (small_disk / "rejects.part").exists()
