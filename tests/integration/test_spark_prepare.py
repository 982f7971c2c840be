"""Prepare on a real Spark: whatever the source, every row is a message, a duplicate or a reject with its reason."""

import asyncio
import csv
import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer

from shared.errors import DiskFull, GiveUp, InvalidSetting
from shared.messages.envelope import EnvelopeRules, parse_envelope
from shared.settings import Settings
from spark.prepare.manifest import Manifest
from spark.prepare.prepare import PrepareOptions, configure, prepare
from spark.prepare.summary import read_summary
from spark.session.faults import translate_spark_errors
from spark.source.source import Source, guess_form
from starter.files.mapping import RowMapping
from starter.files.rows import RowSource
from starter.files.table_options import TableOptions
from starter.local.kafka.broker import EmbeddedBroker
from starter.records.mapping import FormatOptions
from tests.support.databases import jdbc_url, run_postgres
from tests.support.disks import fill
from tests.support.orders import BAD, GOOD, OLD, PRICE, PROBLEM, make_rules
from tests.support.topics import create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

RULES = EnvelopeRules({"feed": "short", "page": "long"})
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
FEEDS = Path(__file__).parents[2] / "examples" / "feeds.csv"

Prepare = Callable[..., Manifest]


@pytest.fixture
def make(spark: "SparkSession", tmp_path: Path) -> Prepare:
    """Prepare a source, with the options named."""

    def make(place: str | Path, target: str = "manifest", **options: Any) -> Manifest:
        about = {
            name: options.pop(name)
            for name in ("table", "spans_lines", "since", "until", "settings")
            if name in options
        }
        form = options.pop("form", None) or guess_form(str(place))
        lane = options.pop("lane", None)
        names = [n for n in options if n == "kind" or n.endswith("_from")]
        table = options.pop("table_options", TableOptions())
        mapping = RowMapping(FormatOptions.read(**{name: options.pop(name) for name in names}), lane, table)
        source = Source(place=str(place), form=form, mapping=mapping, **about)

        with translate_spark_errors():
            return prepare(spark, source, tmp_path / target, PrepareOptions(rules=RULES, **options))

    return make


def messages_of(manifest: Manifest, spark: "SparkSession") -> list[dict[str, Any]]:
    """Give the messages by kind and id."""
    return [row.asDict() for row in manifest.read_messages(spark).orderBy("kind", "id").collect()]


def rejects_of(manifest: Manifest, spark: "SparkSession") -> list[dict[str, Any]]:
    """Give the rejects by row."""
    return [row.asDict() for row in manifest.read_rejects(spark).orderBy("row").collect()]


BREAKS: dict[str, Callable[[dict[str, str]], dict[str, str]]] = {
    "kind": lambda row: {**row, "kind": "Feed!"},
    "id": lambda row: {**row, "id": ""},
    "lane": lambda row: {**row, "lane": "fast"},
    "scheduled_at": lambda row: {**row, "scheduled_at": "2026-12-01 12:00"},
    "tolerance_seconds": lambda row: {**row, "tolerance_seconds": "-1"},
    "priority": lambda row: {**row, "priority": "9"},
    "tenant": lambda row: {**row, "tenant": "t" * 65},
    "payload": lambda row: {**row, "payload": '{"url": '},
    "correlation_id": lambda row: {**row, "correlation_id": "a\x01b"},
    "idempotency_key": lambda row: {**row, "idempotency_key": "k" * 201},
}
COLUMNS: list[str] = ["id", *(name for name in BREAKS if name != "id")]


def write_feeds(path: Path, rows: int) -> Counter[str]:
    """Repeat the real feeds as envelopes, every twentieth row broken; gives what each field was broken how often."""
    with FEEDS.open(encoding="utf-8", newline="") as file:
        feeds = list(csv.DictReader(file))

    broken: Counter[str] = Counter()
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()

        for number in range(rows):
            feed = feeds[number % len(feeds)]
            turn = number // len(feeds)
            row = {
                "id": f"{feed['url']}#{turn}"[:190],
                "kind": "feed" if number % 3 else "page",
                "scheduled_at": f"2026-12-{1 + number % 28:02d}T20:00:00Z",
                "payload": json.dumps({"url": feed["url"], "title": feed["title"]}, ensure_ascii=False),
            }

            if number % 20 == 7:
                name = list(BREAKS)[number // 20 % len(BREAKS)]
                row = BREAKS[name](row)
                broken[name] += 1

            table.writerow(row)

    return broken


ROWS = 100_000


@pytest.fixture(scope="module")
def feeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counter[str]]:
    """A hundred thousand rows, five per cent of them broken in ten ways."""
    path = tmp_path_factory.mktemp("feeds") / "feeds.csv"
    return path, write_feeds(path, ROWS)


@pytest.fixture(scope="module")
def prepared(
    spark: "SparkSession", feeds: tuple[Path, Counter[str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Manifest, Manifest]:
    """The manifests of these rows, made by one task and by seven."""
    source = Source(place=str(feeds[0]), form="csv")
    folder = tmp_path_factory.mktemp("prepared")
    first, second = (
        prepare(spark, source, folder / str(tasks), PrepareOptions(rules=RULES, partitions=tasks)) for tasks in (1, 7)
    )
    return first, second


def test_every_row_is_a_message_a_duplicate_or_a_reject(
    spark: "SparkSession", feeds: tuple[Path, Counter[str]], prepared: tuple[Manifest, Manifest]
) -> None:
    """100,000 real rows add up; each reject names row, field and reason; the number of tasks changes nothing."""
    path, broken = feeds
    first, second = prepared

    assert first.rows == ROWS
    assert first.messages + first.duplicates + first.rejects == ROWS
    assert first.rejects == ROWS // 20
    rejects = rejects_of(first, spark)
    assert Counter(reject["field"] for reject in rejects) == broken
    assert all(reject["reason"] and (reject["row"] - 2) % 20 == 7 for reject in rejects)  # the header is line 1
    lines = path.read_text("utf-8").splitlines()
    assert [json.loads(reject["original"]) for reject in rejects] == [lines[reject["row"] - 1] for reject in rejects]
    assert _distinct_ids(path, {reject["row"] for reject in rejects}) == first.messages
    assert (first.source_digest, first.content_digest) == (second.source_digest, second.content_digest)
    assert messages_of(first, spark) == messages_of(second, spark)
    assert rejects == rejects_of(second, spark)
    assert first.id != second.id
    assert {path.name for path in (first.folder / "messages").glob("*=*")} == {"lane=short", "lane=long"}


def _distinct_ids(path: Path, rejected: set[int]) -> int:
    with path.open(encoding="utf-8", newline="") as file:
        named = ((number, row) for number, row in enumerate(csv.DictReader(file), start=2) if number not in rejected)
        return len({(row["kind"], row["id"]) for _, row in named})


def test_the_summary_tells_kinds_reasons_and_when_what_is_due(
    feeds: tuple[Path, Counter[str]], prepared: tuple[Manifest, Manifest]
) -> None:
    """Counts by kind and lane, by field and flaw with an example, and the due curve as a table and as a picture."""
    manifest, _ = prepared
    summary = read_summary(manifest)

    assert sum(row["messages"] for row in summary["by_kind_and_lane"]) == manifest.messages
    assert {(row["kind"], row["lane"]) for row in summary["by_kind_and_lane"]} == {("feed", "short"), ("page", "long")}
    assert {row["field"]: row["rows"] for row in summary["reject_reasons"]} == feeds[1]
    with (manifest.folder / "due.csv").open(newline="") as file:
        curve = list(csv.DictReader(file))
    assert sum(int(row["messages"]) for row in curve) == int(curve[-1]["messages_so_far"]) == manifest.messages
    assert (manifest.folder / "due.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("rule", "payloads", "digest"),
    [("newest", {"a": 2, "b": 5}, "562e28e4487e9df5"), ("first", {"a": 0, "b": 3}, "2ecfc0600c7cddbc")],
)
def test_one_of_several_rows_with_one_name_counts(  # noqa: PLR0917 — three of them are fixtures
    make: Prepare, spark: "SparkSession", tmp_path: Path, rule: str, payloads: dict[str, int], digest: str
) -> None:
    """The newest scheduled_at and of equals the last row, or the first row; the others are counted."""
    moments = ("2026-12-01T00:00:00Z", "2026-12-03T00:00:00Z", "2026-12-03T01:00:00+01:00", None, None, None)
    rows = [{"kind": "feed", "id": "aaabbb"[n], "scheduled_at": moments[n], "payload": n} for n in range(6)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, {"kind": "page", "id": "a"}])), "utf-8")
    manifest = make(path, duplicates=rule)

    kept = {m["id"]: json.loads(m["payload"]) for m in messages_of(manifest, spark) if m["kind"] == "feed"}
    assert kept == payloads
    assert (manifest.rows, manifest.messages, manifest.duplicates, manifest.rejects) == (7, 3, 4, 0)
    # what earlier versions have written into manifests
    assert (manifest.source_digest, manifest.content_digest) == ("02cd1d6f99084333", digest)


def test_first_runs_that_are_due_at_once_are_spread(make: Prepare, spark: "SparkSession", tmp_path: Path) -> None:
    """Evenly, by a hash of the name and so the same each time; what is due later keeps its moment."""
    path = tmp_path / "rows.csv"
    later = "2026-12-24T20:00:00Z"
    rows = [f"feed,{n},{later if n == 0 else '2020-01-01T00:00:00Z' if n == 1 else ''}" for n in range(1000)]
    path.write_text("\n".join(["kind,id,scheduled_at", *rows]), "utf-8")
    spread = {"spread": timedelta(hours=10), "begin": NOON}
    first, second = (messages_of(make(path, name, **spread), spark) for name in ("first", "second"))

    assert first == second
    moments = {message["id"]: message["scheduled_at"].replace(tzinfo=UTC) for message in first}
    assert moments.pop("0") == datetime.fromisoformat(later)
    hours = Counter((moment - NOON) // timedelta(hours=1) for moment in moments.values())
    assert sorted(hours) == list(range(10))
    assert max(hours.values()) < 2 * min(hours.values())


def test_files_of_a_folder_are_numbered_through(make: Prepare, spark: "SparkSession", tmp_path: Path) -> None:
    """By their paths and lines, packed or not; each has the same names in its header, however they are quoted."""
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "a.csv").write_bytes(b"kind,id\r\nfeed,1\r\n\r\nfeed,\xff\r\n")
    (folder / "b.csv.gz").write_bytes(gzip.compress(b'"kind", id\nfeed,3,4\nfeed,5\nfeed'))
    manifest = make(folder, form="csv")

    assert [(m["row"], m["id"]) for m in messages_of(manifest, spark)] == [(2, "1"), (7, "5")]
    assert [(r["row"], r["field"], r["reason"]) for r in rejects_of(manifest, spark)] == [
        (4, "envelope", "is not UTF-8 text (byte 6); save the file as UTF-8"),
        (6, "envelope", "has 3 cells for 2 columns; quote its commas"),
        (
            8,
            "envelope",
            "has 1 cell for 2 columns; restore what is missing, or add --fill-rows if its last cells are empty",
        ),
    ]
    (folder / "c.csv").write_bytes(b"id,kind\n1,feed\n")
    with pytest.raises(GiveUp, match=r"c\.csv: has the columns 'id', 'kind', and the first file of .* 'kind', 'id'"):
        make(folder, "again", form="csv")
    assert not (tmp_path / "again").exists()


def test_a_first_line_is_never_lost_in_silence(make: Prepare, spark: "SparkSession", tmp_path: Path) -> None:
    """It is asked about, and with names for the columns the first line of each file is a row."""
    folder = tmp_path / "top"
    folder.mkdir()
    (folder / "a.csv").write_bytes(b"1,google.com\n2,facebook.com\n")
    (folder / "b.csv").write_bytes(b"3,bing.com\n")
    with pytest.raises(GiveUp, match="its first line looks like a row and not like a header"):
        make(folder, "asked", form="csv", kind="feed", id_from="/google.com")
    manifest = make(folder, form="csv", kind="feed", table_options=TableOptions(("rank", "id")))

    assert {(m["row"], m["id"]) for m in messages_of(manifest, spark)} == {
        (1, "google.com"),
        (2, "facebook.com"),
        (3, "bing.com"),
    }


def test_cells_may_span_lines_where_that_is_said(make: Prepare, spark: "SparkSession", tmp_path: Path) -> None:
    """With --multi-line, where a file is read by one task."""
    path = tmp_path / "rows.csv"
    path.write_text('kind,id,title\nfeed,1,"two\nlines"\nfeed,2,one\n', "utf-8")
    manifest = make(path, spans_lines=True)

    assert [(m["row"], json.loads(m["payload"])) for m in messages_of(manifest, spark)] == [
        (2, {"title": "two\nlines"}),
        (4, {"title": "one"}),
    ]


@pytest.mark.parametrize("partitions", [1, 7])
def test_a_cell_that_spans_lines_makes_no_message_of_its_rest(make: Prepare, tmp_path: Path, partitions: int) -> None:
    """Wherever tasks begin in the file: it is refused as a whole, and the option that reads it is named."""
    path = tmp_path / "rows.csv"
    rows = [f"plain-{number},feed" for number in range(500)]
    rows[250] = 'a,"feed\nsecond line,feed\nthird line"'
    path.write_text("\n".join(["id,kind", *rows]), "utf-8")

    what_to_do = "a quoted cell of row 252 does not end on its line; add --multi-line if cells span lines"
    with pytest.raises(GiveUp, match=what_to_do):
        make(path, partitions=partitions)
    assert not (tmp_path / "manifest").exists()


def test_a_large_file_whose_cells_span_lines_is_not_cut(spark: "SparkSession", tmp_path: Path) -> None:
    """Also one of more bytes than Spark gives to a task: the second task would begin in the midst of a cell."""
    path = tmp_path / "rows.csv"
    path.touch()
    os.truncate(path, 2**30)  # takes no room on the disk, and nothing reads it
    options = PrepareOptions(rules=RULES, partitions=4)

    def count_tasks(*, spans_lines: bool) -> int:
        source = Source(place=str(path), form="csv", spans_lines=spans_lines)
        return configure(spark, source, options).read.text(str(path)).rdd.getNumPartitions()

    assert count_tasks(spans_lines=False) > 4
    assert count_tasks(spans_lines=True) == 1


def test_parquet_rows_are_mapped_and_numbered(make: Prepare, spark: "SparkSession", tmp_path: Path) -> None:
    """Whole numbers are good ids, moments and decimals good payloads; a row's number is its place in the files."""
    table = spark.range(100).selectExpr(
        "id % 50 key", "struct(id as number, cast(id / 4 as decimal(10,2)) as price) inner",
        "timestamp'2026-12-01 12:00:00' + make_interval(0,0,0,0,id) at", "if(id = 99, 9, 1) urgency",
    )  # fmt: skip
    table.repartition(3).write.parquet(str(tmp_path / "table"))
    options = {"kind": "feed", "id_from": "/key", "scheduled_at_from": "/at", "priority_from": "/urgency"}
    manifest = make(tmp_path / "table", form="parquet", payload_from="/inner", **options)

    kept = messages_of(manifest, spark)
    assert [m["id"] for m in kept] == sorted(map(str, range(50)))
    for message in kept:
        number = json.loads(message["payload"])["number"]
        assert number == int(message["id"]) + (50 if message["id"] != "49" else 0)
        assert json.loads(message["payload"])["price"] == number / 4
        assert message["scheduled_at"].replace(tzinfo=UTC) == NOON + timedelta(hours=number)
    (reject,) = rejects_of(manifest, spark)
    assert (reject["field"], json.loads(reject["original"])["key"]) == ("priority", 49)
    assert (manifest.messages, manifest.duplicates, manifest.rejects) == (50, 49, 1)


TYPED: dict[str, tuple[Any, list[Any]]] = {
    "id": (pa.uuid(), [bytes([number] * 16) for number in range(4)]),
    "scheduled_at": (pa.timestamp("ns", "UTC"), [NOON, None, None, NOON]),
    "price": (pa.decimal128(38, 2), [Decimal("12345678901234567.89"), Decimal("1.50"), None, None]),
    "part": (
        pa.struct({"price": pa.decimal128(38, 2)}),
        [{"price": Decimal("12345678901234567.89")}, None, None, None],
    ),
    "seen": (pa.timestamp("us"), [None, 253402300800000000, None, None]),
    "day": (pa.date32(), [0, None, -719163, None]),
    "nanoseconds": (pa.timestamp("ns"), [1, None, None, None]),
    "noon": (pa.time64("us"), [43_200_000_000, None, None, None]),
    "span": (pa.duration("ms"), [1500, None, None, 2**62]),
    "spans": (pa.list_(pa.duration("s")), [[60], None, None, None]),
    "count": (pa.uint64(), [2**64 - 1, None, None, None]),
    "small": (pa.uint8(), [255, None, None, None]),
    "raw": (pa.binary(), ["ä".encode(), None, None, None]),
    "labels": (pa.map_(pa.string(), pa.string()), [[("a", "1")], None, None, None]),
    "sort": (pa.dictionary(pa.int8(), pa.string()), ["a", None, None, None]),
    "share": (pa.float32(), [0.1, None, None, None]),
}
"""Columns of rows 1 to 4, of which 1 is good; 2, 3 and 4 hold what no calendar has."""


@pytest.mark.parametrize("left_out", [(), ("id", "scheduled_at", "nanoseconds", "noon", "span", "spans", "count")])
def test_typed_columns_give_the_messages_that_load_gives(
    make: Prepare, spark: "SparkSession", tmp_path: Path, left_out: Sequence[str]
) -> None:
    """Also in types that Spark refuses or takes for numbers; one bad value refuses its row in both."""
    columns = {name: pa.array(values, kind) for name, (kind, values) in TYPED.items() if name not in left_out}
    columns = {"id": pa.array([b"a", b"b", b"c", b"d"])} | columns
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), path, store_schema=not left_out)
    with RowSource(str(path)) as source:
        rows = list(source)
    loaded = [parse_envelope({**row.fields, "kind": "feed"}, RULES) for row in rows if row.flaw is None]  # pyright: ignore — objects
    manifest = make(path, kind="feed")

    assert [(row.number, row.flaw.field) for row in rows if row.flaw is not None] == [
        *[(2, "seen"), (3, "day")],
        *([] if left_out else [(4, "span")]),
    ]
    assert [(each["row"], each["field"]) for each in rejects_of(manifest, spark)] == [
        (row.number, row.flaw.field) for row in rows if row.flaw is not None
    ]
    kept = messages_of(manifest, spark)
    found = [(each["id"], each["scheduled_at"], json.loads(each["payload"])) for each in kept]
    assert [(name, at and at.replace(tzinfo=UTC), payload) for name, at, payload in found] == [
        (each.id, each.scheduled_at, each.payload) for each in loaded
    ]
    assert found[0][2]["price"] == found[0][2]["part"]["price"] == "12345678901234567.89"


def test_names_of_folders_are_text(make: Prepare, spark: "SparkSession", tmp_path: Path) -> None:
    """By their names, and by a mapping: no zero in front is lost, and nothing becomes a moment."""
    for tenant, message_id in (("0042", "007"), ("42", "1e3")):
        folder = tmp_path / "rows" / f"tenant={tenant}" / f"id={message_id}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"day": ["2026-12-01"]}), folder / "part.parquet")
    named = make(tmp_path / "rows", form="parquet", kind="feed")
    options = {"kind": "feed", "id_from": "/id", "tenant_from": "/tenant", "payload_from": "/day"}
    mapped = make(tmp_path / "rows", "mapped", form="parquet", **options)

    for manifest in (named, mapped):
        assert {(each["id"], each["tenant"]) for each in messages_of(manifest, spark)} == {
            ("007", "0042"),
            ("1e3", "42"),
        }


def test_a_parquet_file_that_spark_cannot_read_is_told_in_one_sentence(make: Prepare, tmp_path: Path) -> None:
    """One that is none, one of a type that Spark lacks, and one of another type than the first."""
    good = tmp_path / "a.parquet"
    bad = tmp_path / "b.parquet"
    lacking = tmp_path / "c.parquet"
    pq.write_table(pa.table({"id": pa.array([b"0" * 16], pa.uuid())}), good)
    bad.write_bytes(b"PAR1 and nothing behind it PAR1")
    pq.write_table(pa.table({"id": ["1"], "cell": pa.array([0.5], pa.float16())}), lacking)

    with pytest.raises(GiveUp, match=r"/b.parquet: can't be read as Parquet; give a Parquet file"):
        make(bad)
    with pytest.raises(GiveUp, match=r"Spark can't read a column \(Illegal Parquet type: [^\n]* \(FLOAT16\)\)"):
        make(lacking)
    with pytest.raises(
        GiveUp, match=r"/c.parquet: has columns of other types than file:///[^ ]*/a.parquet; prepare it"
    ):
        make(str(tmp_path / "[ac].parquet"))


def test_a_table_of_postgres_is_read_in_the_order_of_its_query(
    make: Prepare, spark: "SparkSession", tmp_path: Path
) -> None:
    """Rows are numbered as they come; what the database refuses is one sentence."""
    with run_postgres() as database:
        sql = """
            CREATE TABLE orders (id bigint, due timestamptz, total numeric(10,2), note text);
            INSERT INTO orders SELECT n, timestamptz '2026-12-01 12:00Z' + n * interval '1 minute', n / 8.0, 'n' || n
            FROM generate_series(1, 2000) n;
            UPDATE orders SET id = NULL WHERE id = 1000;
            CREATE TABLE typed (id uuid, tenant integer, price numeric(38,2), priority numeric(1), raw bytea);
            INSERT INTO typed VALUES
                ('0b4e3a52-98d7-4f42-8f0b-9f1d2c3b4a59', 7, 12345678901234567.89, 2, 'a'),
                ('1b4e3a52-98d7-4f42-8f0b-9f1d2c3b4a59', 7, 1.5, 9, NULL);
        """
        database.run(sql)
        options: dict[str, Any] = {"kind": "feed", "id_from": "/id", "scheduled_at_from": "/due"}
        manifest = make(jdbc_url(database), table="SELECT * FROM orders ORDER BY due", **options)
        with pytest.raises(GiveUp, match="nowhere"):
            make(jdbc_url(database), "again", table="nowhere", **options)
        typed = make(jdbc_url(database), "typed", table="typed", kind="feed")
    kept = messages_of(manifest, spark)
    (one,) = messages_of(typed, spark)

    assert (one["id"], one["tenant"], one["priority"]) == ("0b4e3a52-98d7-4f42-8f0b-9f1d2c3b4a59", "7", 2)
    assert json.loads(one["payload"]) == {"price": "12345678901234567.89", "raw": "a"}
    assert [each["field"] for each in rejects_of(typed, spark)] == ["priority"]
    assert len(kept) == 1999
    assert all(m["row"] == int(m["id"]) for m in kept)
    assert {json.loads(m["payload"])["total"] * 8 for m in kept if int(m["id"]) % 8 == 0} == set(range(8, 2001, 8)) - {
        1000
    }
    (reject,) = rejects_of(manifest, spark)
    assert (reject["row"], reject["field"]) == (1000, "id")


@pytest.mark.long
async def test_a_topic_is_read_between_two_moments(
    make: Prepare, spark: "SparkSession", broker: EmbeddedBroker, settings: Settings
) -> None:
    """Records are numbered by partition and offset, decoded as the bridge does it, and cut at the moments given."""
    topic = settings.task_queue_prefix
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    await create_topic(broker.address, topic, 2)
    producer: Any = AIOKafkaProducer(bootstrap_servers=broker.address)
    await producer.start()
    try:
        at = round(begin.timestamp() * 1000)
        for n in range(200):
            value = b"{" if n == 60 else None if n == 61 else json.dumps({"kind": "feed", "id": str(n)}).encode()
            await producer.send_and_wait(topic, value, b"feed:%d" % n, n % 2, at + n * 1000)
    finally:
        await producer.stop()
    changes: dict[str, Any] = {"settings": Settings(kafka_servers=broker.address)}
    bounds = {"since": begin + timedelta(seconds=50), "until": begin + timedelta(seconds=150)}
    whole = await asyncio.to_thread(make, f"kafka:{topic}", "whole", **changes)
    some = await asyncio.to_thread(make, f"kafka:{topic}", "some", **changes, **bounds)
    with pytest.raises(InvalidSetting, match="there is no topic 'nowhere'"):
        await asyncio.to_thread(make, "kafka:nowhere", "again", **changes)

    assert (whole.rows, whole.messages, whole.rejects) == (200, 198, 2)
    assert (some.rows, some.messages, some.rejects) == (100, 98, 2)
    assert {int(m["id"]) for m in messages_of(some, spark)} == set(range(50, 150)) - {60, 61}
    assert all(m["row"] == int(m["id"]) % 2 * 10**12 + int(m["id"]) // 2 for m in messages_of(whole, spark))
    assert [(r["row"], r["field"], r["flaw"]) for r in rejects_of(some, spark)] == [
        (30, "value", "NotJson"),
        (10**12 + 30, "value", "InvalidField"),
    ]


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        ("", {}, "is empty; there is nothing to start"),
        ("name,kind\n", {}, "has no column 'id'; its columns are 'name', 'kind'"),
        ("id,kind\n", {}, "holds no rows; there is nothing to start"),
        (
            '[{"id": "1"}]',
            {"form": "jsonl"},
            "looks like one JSON document; write an object a line, for example with: jq",
        ),
        ("id,kind\n", {"id_from": "key"}, "--id-from: is the key, but rows have no key; write a JSON pointer like /id"),
        ("id\n", {"kind": "header:a"}, "--kind: is header 'a', but rows have no headers; write a JSON pointer"),
    ],
)
def test_a_source_of_which_nothing_can_come_is_refused(
    make: Prepare, tmp_path: Path, content: str, options: dict[str, str], sentence: str
) -> None:
    """In one sentence, and nothing is left behind."""
    path = tmp_path / "rows.csv"
    path.write_text(content, "utf-8")

    with pytest.raises((GiveUp, InvalidSetting)) as told:
        make(path, **options)
    assert sentence in str(told.value)
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_is_not_there_and_a_target_that_is_are_refused(make: Prepare, tmp_path: Path) -> None:
    """A manifest is never written over: receipts may be in it."""
    with pytest.raises(GiveUp, match=r"absent\.csv: there is no such file or folder"):
        make(tmp_path / "absent.csv")
    (tmp_path / "manifest").mkdir()
    with pytest.raises(InvalidSetting, match="is there already; give another path, or delete it"):
        make(tmp_path / "absent.csv")


def test_a_manifest_that_finds_no_room_is_told_as_that(make: Prepare, tmp_path: Path, small_disk: Path) -> None:
    """And nothing is left of it."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"kind": "feed", "id": f"{n}"}) + "\n" for n in range(1000)), "utf-8")
    fill(small_disk)

    with pytest.raises(DiskFull, match="disk"):
        make(path, "disk/manifest")

    assert [path.name for path in small_disk.iterdir()] == ["filling"]


@pytest.mark.long
def test_payloads_are_checked_by_the_models_of_their_kinds(spark: "SparkSession", tmp_path: Path) -> None:
    """By the handlers' modules, which the tasks import; the reject names the field."""
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps({"kind": "order", "id": str(n), "payload": p}) for n, p in enumerate((GOOD, BAD, OLD)))
    )
    source = Source(place=str(tmp_path / "a.jsonl"), form="jsonl", mapping=RowMapping())
    manifest = prepare(spark, source, tmp_path / "manifest", PrepareOptions(rules=make_rules()))

    assert [(row["id"], json.loads(row["payload"])) for row in messages_of(manifest, spark)] == [
        ("0", GOOD),
        ("2", OLD),
    ]
    assert [(row["row"], row["field"], row["reason"]) for row in rejects_of(manifest, spark)] == [
        (2, PRICE, f"{PROBLEM}; correct it")
    ]
