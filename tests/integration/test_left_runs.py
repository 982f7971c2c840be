"""Left runs: the run that a pack continued from is deleted, and no delete waits for a closing to be acknowledged."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from activities import Again, Context, Message, handler
from activities import server_calls as left_runs
from bench.harness import metric_total
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import pack_workflow_id
from shared.settings import Settings
from shared.temporal.connect import is_missing
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from tests.conftest import serving, wait_until

PUT_OFF = "task_dependency_task_not_completed"
"""The server counts here each try of a delete that came before its closing was acknowledged."""

PACKS = 3
MESSAGES = 90
TASKS_MAX = 1_000


@handler("restless")
async def be_restless(message: Message, ctx: Context) -> Again:
    """Come back at once, so that its pack continues as new at each wake."""
    return Again(after=timedelta(seconds=0.5), tolerance=timedelta(0))


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server whose metrics count nobody else's deletes."""
    options = EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None)
    async with run_embedded(options) as server:
        yield server


async def start_packs(client: Client, settings: Settings) -> dict[str, str]:
    """Start packs that never rest; gives the first run of each."""
    pack = Pack(packs=PACKS, coalesce=timedelta(0))
    starter = BulkStarter(client, settings, encodings={"restless": pack})
    envelopes = (Envelope(kind="restless", id=f"r{n}", lane="short") for n in range(MESSAGES))
    assert [r async for r in starter.start_all((None, e) for e in envelopes)]
    names = [pack_workflow_id("restless", n) for n in range(PACKS)]
    return {name: (await client.get_workflow_handle(name).describe()).run_id for name in names}


async def are_deleted(client: Client, runs: dict[str, str]) -> bool:
    """Tell whether the server knows none of the runs any more."""
    for name, run_id in runs.items():
        try:
            await client.get_workflow_handle(name, run_id=run_id).describe()
        except RPCError as exc:
            if is_missing(exc):
                continue
            raise
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("wait", [12.0, 0.0])
async def test_a_left_run_is_deleted_once_its_closing_is_long_acknowledged(
    own_server: EmbeddedServer, settings: Settings, monkeypatch: pytest.MonkeyPatch, wait: float
) -> None:
    """So the server never puts a delete off, as it does with those that come at once."""
    monkeypatch.setattr(left_runs, "DELETE_AFTER", timedelta(seconds=wait))
    client = await own_server.connect()
    async with serving(client, settings, be_restless, lanes=("short",)):
        first = await start_packs(client, settings)
        await wait_until(lambda: are_deleted(client, first), "the first runs are deleted")

        async def is_one_put_off() -> bool:
            return await metric_total(own_server, PUT_OFF) > 0

        if not wait:
            await wait_until(is_one_put_off, "a delete that came at once is put off")
            return
        assert not await is_one_put_off()
        await wait_until(lambda: count_tasks(own_server) < TASKS_MAX, "the transfer queue is short")


def count_tasks(server: EmbeddedServer) -> int:
    """Give how many transfer tasks the server keeps."""
    with closing(sqlite3.connect(f"file:{server.options.database}?mode=ro", uri=True)) as database:
        return database.execute("SELECT count(*) FROM transfer_tasks").fetchone()[0]
