"""The real server on PostgreSQL: made, killed, started again, ended, with its messages; it has to be built before."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.service import RPCError

from activities import Again, Context, Message, Pack, handler
from cluster.cluster import Cluster
from cluster.postgres import CORE, VISIBILITY
from cluster.program import Program
from shared.errors import InvalidSetting, RetryLater
from shared.messages.envelope import Envelope
from shared.settings import Settings
from shared.temporal.search_attributes import REQUIRED
from starter.control import Control
from starter.local.visibility_indexes import TABLE
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import serving, wait_until
from tests.support.processes import ROOT, is_gone, run_to_end

PROGRAM = Program()
SHARDS = 4

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.long,
    pytest.mark.xdist_group("cluster"),
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not PROGRAM.is_built, reason="Temporal's server is not built here; './run cluster up' builds it"
    ),
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL's own user can get to; gone afterwards, with all that runs in it."""
    folder = Path(tempfile.mkdtemp(prefix="dormice-cluster-"))
    yield folder
    Cluster(folder).down(is_deleting=True)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def cluster(folder: Path) -> Cluster:
    """A cluster that these tests share; one that a test has brought down is brought up again."""
    cluster = Cluster(folder)
    await cluster.up(PROGRAM, SHARDS)
    return cluster


@handler("tick")
async def tick(message: Message, ctx: Context) -> Again:
    """Come back in a second."""
    return Again(after=timedelta(seconds=1))


async def test_messages_live_on_postgres_through_a_killed_server(cluster: Cluster, settings: Settings) -> None:
    """They run in both encodings, outlive the server and PostgreSQL, and go on from the version they had."""
    pack = Pack(packs=2, size=50, coalesce=timedelta(0))
    packed = handler("tick-packed", encoding=pack)(tick.function)
    kinds = {"tick": tick, "tick-packed": packed}

    async def read_versions(control: Control) -> list[int]:
        views = [await control.show(kind, str(n)) for kind in kinds for n in range(10)]
        return [each.status["version"] if each.status else -1 for each in views]

    client = await cluster.connect()
    starter = BulkStarter(client, settings, encodings={"tick-packed": pack})
    async with serving(client, settings, tick, packed):
        envelopes = [Envelope(kind=kind, id=str(n), lane="short") for kind in kinds for n in range(10)]
        async for receipt in starter.start_all((None, e) for e in envelopes):
            assert receipt.outcome is StartOutcome.STARTED, receipt
        control = Control(client, settings)
        await wait_until(lambda: _all_at_least(read_versions(control), 2), "all have run twice")
        assert cluster.process is not None
        cluster.process.kill()
        cluster.down()
        assert (cluster.process, cluster.postgres.process_id) == (None, None)
        before = cluster.address
        await cluster.up(PROGRAM, SHARDS)
        assert cluster.address == before  # so that whoever knew it finds it again
        await wait_until(lambda: _all_at_least(read_versions(control), 4), "all go on")


async def _all_at_least(versions: Awaitable[list[int]], minimum: int) -> bool:
    try:
        return min(await versions) >= minimum
    except (RetryLater, RPCError):
        return False


async def test_a_cluster_has_what_messages_need_and_no_more(cluster: Cluster) -> None:
    """Search attributes, a namespace, the shards that were asked for, nine indexes; a second `up` changes nothing."""
    process = cluster.process
    await cluster.up(PROGRAM, SHARDS)

    assert cluster.process == process
    listed = await (await cluster.connect()).operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace="default")
    )
    assert set(listed.custom_attributes) >= REQUIRED.keys()
    indexes = cluster.postgres.run("SELECT tablename FROM pg_indexes", VISIBILITY)
    assert indexes.count(TABLE) == 9
    assert cluster.postgres.run("SELECT count(DISTINCT shard_id) FROM shards", CORE) == [str(SHARDS)]


async def test_the_number_of_shards_is_for_good(cluster: Cluster) -> None:
    """Another number is refused in a sentence, and the cluster goes on as it was."""
    with pytest.raises(InvalidSetting, match=f"--shards: this cluster has {SHARDS} history shards for good"):
        await cluster.up(PROGRAM, SHARDS * 2)

    assert cluster.process is not None


async def test_status_and_down_are_for_people_and_scripts(cluster: Cluster) -> None:
    """`status` shows what runs by its exit code, too; `down` ends exactly that, and twice is no error."""

    async def run(*arguments: str) -> tuple[int, str, str]:
        return await run_to_end(
            *(sys.executable, "-m", "cluster", *arguments, "--data", str(cluster.folder)), cwd=ROOT, env=os.environ
        )

    code, out, _ = await run("status", "--json")
    told = json.loads(out)
    processes = [psutil.Process(told["server"]), psutil.Process(told["postgres"])]
    assert (code, told["address"], told["shards"]) == (0, cluster.address, SHARDS)
    assert (await run("down"))[0] == 0
    assert is_gone(processes)
    assert (await run("down"))[0] == 0
    assert (await run("status"))[0] == 1
