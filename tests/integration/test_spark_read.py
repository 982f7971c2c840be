"""Messages as a DataFrame: what the server's index says, typed, filtered where it can be."""

import asyncio
import contextlib
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType
from temporalio.client import Client

from activities import Context, Done, Message, Reject, handler
from shared.messages.envelope import Envelope
from shared.messages.placement import pack_index
from shared.settings import Settings
from spark.format.data_source import register_temporal
from spark.format.reader import COLUMNS
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from tests.conftest import Serve, wait_until
from tests.support.subjects import PACK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

NOON = (datetime.now(UTC) + timedelta(days=2)).replace(hour=12, minute=0, second=0, microsecond=0)
COUNT = 60

Read = Callable[..., "DataFrame"]
Fill = Callable[..., Any]


@pytest.fixture
def read(spark: "SparkSession", server: EmbeddedServer) -> Read:
    """Read the session's server, with the options named."""
    register_temporal(spark)

    def read(**options: str) -> "DataFrame":
        return spark.read.format("temporal").options(address=server.address, **options).load()

    return read


@pytest.fixture
def fill(client: Client, settings: Settings, message_id: Callable[[], str]) -> Fill:
    """Start messages of a kind, the n-th due n hours after noon, and wait until the index has them."""

    async def fill(kind: str, count: int = COUNT, **fields: Any) -> list[str]:
        ids = [message_id() for _ in range(count)]
        starter = BulkStarter(client, settings, encodings=fields.pop("encodings", None))
        requests: list[tuple[None, Envelope]] = []
        for number, id_ in enumerate(ids):
            usual: dict[str, Any] = {"lane": "short", "scheduled_at": NOON + timedelta(hours=number)}
            requests.append((None, Envelope(kind=kind, id=id_, **{**usual, **fields})))
        async for receipt in starter.start_all(requests):
            assert receipt.outcome.value == "started", receipt
        return ids

    return fill


async def collect(frame: "DataFrame") -> list[dict[str, Any]]:
    """Give the rows of a frame, while this process goes on."""
    return [row.asDict() for row in await asyncio.to_thread(frame.collect)]


async def test_messages_are_rows_with_types(read: Read, fill: Fill, client: Client, kind: str) -> None:
    """Each message once, over several windows, with what the index says of it."""
    ids = await fill(kind)
    mine = read(partitions="3").filter(f"kind = '{kind}'")
    await wait_until(lambda: is_indexed(client, kind, COUNT), "all are indexed")

    rows = await collect(mine)

    assert mine.schema == StructType.fromDDL(COLUMNS)
    assert sorted(row["id"] for row in rows) == sorted(ids)
    (first,) = [row for row in rows if row["id"] == ids[0]]
    described = await client.get_workflow_handle(f"{kind}:{ids[0]}").describe()
    assert (first["lane"], first["state"], first["due_at"].astimezone(UTC)) == ("short", "active", NOON)
    assert (first["workflow_id"], first["run_id"]) == (described.id, described.run_id)
    assert first["started_at"].astimezone(UTC) == described.start_time
    assert (first["pack"], first["history_length"]) == (None, None)


async def is_indexed(client: Client, kind: str, count: int, query: str = "") -> bool:
    """Say whether the index has `count` workflows of a kind."""
    return (await client.count_workflows(f"Kind = '{kind}'{query}")).count >= count


async def test_conditions_are_the_servers_business_where_it_understands_them(
    read: Read, fill: Fill, client: Client, kind: str
) -> None:
    """The plan names what was pushed down; what was not is checked by Spark, and the result is exact."""
    ids = await fill(kind)
    await wait_until(lambda: is_indexed(client, kind, COUNT), "all are indexed")
    moment = (NOON + timedelta(hours=20)).strftime("%Y-%m-%d %H:%M:%S")
    chosen = read().filter(
        f"kind = '{kind}' AND lane IN ('short', 'long') AND state = 'active' AND due_at > timestamp'{moment}' "
        f"AND id != '{ids[30]}'"
    )

    rows = await collect(chosen)

    assert sorted(row["id"] for row in rows) == sorted({*ids[21:], ids[30]} - {ids[30]})
    (line,) = [part for part in explain(chosen).splitlines() if "PushedFilters" in part]
    assert f"EqualTo(kind,{kind})" in line
    assert "state" in line
    assert "lane" in line


def explain(frame: "DataFrame") -> str:
    """Give the plan, which pyspark only prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        frame.explain("formatted")
    return printed.getvalue()


async def test_states_are_those_that_people_see(
    read: Read, fill: Fill, serve: Serve, client: Client, kind: str
) -> None:
    """Done and parked are attributes; what was terminated still has the one from before, and has a state of its own."""

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Done | Reject:
        return Done() if message.payload == "good" else Reject("bad")

    past = datetime.now(UTC) - timedelta(hours=1)
    async with serve(work, lanes=("short",)):
        (done,) = await fill(kind, 1, payload="good", scheduled_at=past)
        (parked,) = await fill(kind, 1, payload="bad", scheduled_at=past)
        await wait_until(lambda: is_indexed(client, kind, 2, " AND State IN ('done', 'parked')"), "both are decided")
    (ended,) = await fill(kind, 1)
    await client.get_workflow_handle(f"{kind}:{ended}").terminate()
    await wait_until(lambda: is_indexed(client, kind, 1, " AND ExecutionStatus = 'Terminated'"), "it has ended")
    mine = read().filter(f"kind = '{kind}'")

    for state, id_ in (("done", done), ("parked", parked), ("terminated", ended)):
        assert [row["id"] for row in await collect(mine.filter(f"state = '{state}'"))] == [id_]
    assert await collect(mine.filter("state = 'active'")) == []
    (row,) = await collect(mine.filter("state = 'done'"))
    assert row["history_length"] > 0


async def test_packed_messages_are_rows_too(read: Read, fill: Fill, client: Client, kind: str) -> None:
    """Each once, from ranges of packs; conditions count for them as for others, and no worker is needed."""
    ids = await fill(kind, encodings={kind: PACK})
    await wait_until(lambda: is_indexed(client, kind, PACK.packs), "all packs are indexed")
    mine = read(partitions="2").filter(f"kind = '{kind}'")

    rows = await collect(mine)

    assert sorted(row["id"] for row in rows) == sorted(ids)
    assert {(row["workflow_id"], row["pack"]) for row in rows} == {
        (f"{kind}:{id_}", pack_index(id_, PACK.packs)) for id_ in ids
    }
    (first,) = [row for row in rows if row["id"] == ids[0]]
    assert (first["lane"], first["state"], first["due_at"].astimezone(UTC)) == ("short", "active", NOON)
    assert (first["started_at"], first["run_id"]) == (None, None)
    moment = (NOON + timedelta(hours=20)).strftime("%Y-%m-%d %H:%M:%S")
    later = mine.filter(f"state IN ('active', 'done') AND lane = 'short' AND due_at > timestamp'{moment}'")
    assert sorted(row["id"] for row in await collect(later)) == sorted(ids[21:])
    assert await collect(read(packed="none").filter(f"kind = '{kind}'")) == []


async def test_a_pack_is_one_row_with_its_number_if_that_is_asked_for(
    read: Read, fill: Fill, client: Client, kind: str
) -> None:
    """Its messages are its own business; no worker is asked."""
    await fill(kind, encodings={kind: PACK})
    await wait_until(lambda: is_indexed(client, kind, PACK.packs), "all packs are indexed")

    rows = await collect(read(packed="packs").filter(f"kind = '{kind}'"))

    assert sorted((row["workflow_id"], row["pack"], row["id"]) for row in rows) == [
        (f"{kind}~0", 0, None),
        (f"{kind}~1", 1, None),
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"address": "127.0.0.1:9"}, "no Temporal server answers at 127.0.0.1:9"),
        ({"packed": "maybe"}, "packed: is 'maybe'; write messages, packs or none"),
        ({"partition": "2"}, "partition: there is no such option; known: address, callsPerSecond"),
    ],
)
async def test_what_can_not_be_read_is_told_in_a_sentence(
    spark: "SparkSession", options: dict[str, str], sentence: str
) -> None:
    """Before any task begins."""
    register_temporal(spark)
    with pytest.raises(PySparkException) as refused:
        await asyncio.to_thread(lambda: spark.read.format("temporal").options(**options).load().collect())

    assert sentence in str(refused.value)
