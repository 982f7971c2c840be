"""The commands about dead letters, as people type them."""

import importlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from starter.local.kafka.broker import EmbeddedBroker
from starter.records.dead_letter_topic import LetterSelection, open_box
from starter.records.dead_letters import DeadLetterWriter
from starter.records.record import Record
from tests.acceptance.conftest import Ran, Run
from tests.support.topics import create_topic

pytestmark = pytest.mark.timeout(120)

NO_BROKER = "127.0.0.1:9"


@pytest.fixture
async def topic(broker: EmbeddedBroker, message_id: Callable[[], str]) -> AsyncIterator[str]:
    """A topic with three dead letters: two that are no JSON, one with a key that is no text."""
    name = f"topic-{message_id()}"
    await create_topic(broker.address, name)

    writer = DeadLetterWriter({"bootstrap_servers": broker.address})
    try:
        await writer.start()
        record = Record(name, 0, 10, 1_700_000_000_000, b"a", b"{", (("trace", b"1"),))
        await writer.write(record, "NotJson", "value: is no JSON")
        await writer.write(record._replace(offset=11, key=b"b"), "NotJson", "value: is no JSON")
        await writer.write(record._replace(offset=12, key=b"\xff", value=None), "NotUtf8", "key: is no UTF-8")
        yield name
    finally:
        await writer.stop()


@pytest.fixture
def ask(run: Run, broker: EmbeddedBroker, topic: str) -> Callable[..., Any]:
    """Run a command about the dead letters of the topic."""

    async def ask(verb: str, *arguments: str) -> Ran:
        return await run("dead-letters", verb, topic, *arguments, "--servers", broker.address)

    return ask


async def count_records(broker: EmbeddedBroker, topic: str) -> int:
    """Say how many records the topic itself has taken."""
    kafka: Any = importlib.import_module("aiokafka")
    consumer = kafka.AIOKafkaConsumer(bootstrap_servers=broker.address)
    try:
        await consumer.start()
        return sum((await consumer.end_offsets([kafka.TopicPartition(topic, 0)])).values())
    finally:
        await consumer.stop()


async def count_waiting(broker: EmbeddedBroker, topic: str) -> int:
    """Say how many dead letters wait."""
    async with open_box({"bootstrap_servers": broker.address}, topic) as box:
        return len([letter async for letter in box.find(LetterSelection())])


async def test_list_shows_a_table_or_json_lines_and_says_when_there_is_more(
    ask: Callable[..., Any], topic: str
) -> None:
    """Data on standard output, the hint on standard error."""
    table = await ask("list")
    cut = await ask("list", "--limit", "1", "--json")
    none = await ask("list", "--error-class", "TooLarge")

    lines = [line.split() for line in table.out.splitlines()]
    assert (table.code, table.err) == (0, "")
    assert lines[0] == ["LETTER", "STATE", "SOURCE", "FAILED", "CLASS", "KEY", "REASON"]
    assert lines[1][:6] == ["0/0", "waiting", f"{topic}/0/10", "1", "NotJson", "a"]
    assert [line[0] for line in lines[1:]] == ["0/0", "0/1", "0/2"]
    assert cut.document == {
        "letter": "0/0",
        "state": "waiting",
        "topic": topic,
        "partition": 0,
        "offset": 10,
        "produced_at": "2023-11-14T22:13:20Z",
        "attempts": 1,
        "error_class": "NotJson",
        "stage": "decode",
        "reason": "value: is no JSON",
        "key": "a",
    }
    assert cut.err == "the first 1 of more; --limit N lists more\n"
    assert (none.code, none.out, none.err) == (0, "", "no dead letter matches\n")


async def test_show_tells_all_of_a_letter(ask: Callable[..., Any]) -> None:
    """Bytes that are no text are Base64 in JSON; a letter that is not there is reported."""
    shown = await ask("show", "0/0")
    as_data = await ask("show", "0/2", "0/77", "--json")

    fields = dict(line.split(maxsplit=1) for line in shown.out.splitlines() if line.split()[0] in ("key", "value"))
    assert (shown.code, fields) == (0, {"key": "a", "value": "{"})
    assert "header trace  1" in shown.out
    assert (as_data.document["key"], as_data.document["key_base64"], as_data.document["value"]) == (None, "/w==", None)
    assert as_data.document["headers"] == [{"name": "trace", "value": "1"}]
    assert as_data.code == 1
    assert as_data.err.startswith("dormice: no dead letter 0/77 lies in ")


async def test_a_filter_only_counts_until_it_is_confirmed(
    ask: Callable[..., Any], broker: EmbeddedBroker, topic: str
) -> None:
    """Exit code 2 and what to add; a dry run lists what is meant; with --yes it is done, and that once."""
    asked = await ask("replay", "--error-class", "NotJson")
    as_data = await ask("drop", "--limit", "2", "--json")
    dry = await ask("replay", "--error-class", "NotJson", "--dry-run", "--yes", "--json")
    untouched = await count_records(broker, topic), await count_waiting(broker, topic)
    done = await ask("replay", "--error-class", "NotJson", "--yes", "--json")
    again = await ask("replay", "--error-class", "NotJson", "--yes")

    assert (asked.code, asked.out) == (2, "")
    assert asked.err == "replay: 2 dead letters would be meant; nothing was replayed, add --yes to do it\n"
    assert (as_data.code, as_data.document) == (2, {"verb": "drop", "matched": 2, "dropped": 0})
    assert (dry.code, [line["letter"] for line in dry.lines]) == (0, ["0/0", "0/1"])
    assert untouched == (0, 3)
    assert (done.code, done.document) == (0, {"verb": "replay", "replayed": 2})
    assert (again.code, again.err) == (0, "replay: 0 dead letters replayed\n")
    assert await count_records(broker, topic) == 2


FILTERS: list[tuple[list[str], list[str]]] = [
    (["--key", "b"], ["0/1"]),
    (["--partition", "1"], []),
    (["--from-offset", "11"], ["0/1", "0/2"]),
    (["--from-offset", "11", "--to-offset", "11"], ["0/1"]),
    (["--before", "2023-11-14T22:13:20Z"], []),
    (["--since", "2023-11-14T22:13:20Z", "--limit", "2"], ["0/0", "0/1"]),
]


async def test_filters_select(ask: Callable[..., Any]) -> None:
    """Each by itself and together."""
    for given, expected in FILTERS:
        ran = await ask("drop", "--dry-run", "--json", *given)
        assert [line["letter"] for line in ran.lines] == expected, given


async def test_named_letters_are_replayed_and_dropped(
    ask: Callable[..., Any], broker: EmbeddedBroker, topic: str
) -> None:
    """A letter that was handled already is reported and left alone; --all still lists it."""
    dry = await ask("drop", "0/0", "--dry-run")
    dropped = await ask("drop", "0/0")
    replayed = await ask("replay", "0/0", "0/1", "0/9")
    listed = await ask("list", "--all", "--json")

    assert dry.out.splitlines()[1].startswith("0/0 ")
    assert (dropped.code, dropped.out, dropped.err) == (0, "", "drop: 1 dead letter dropped\n")
    assert replayed.code == 1
    assert replayed.err.splitlines() == [
        "dormice: dead letter 0/0 is dropped already; nothing was done to it",
        f"dormice: no dead letter 0/9 lies in {topic}.dead-letters; 'dormice dead-letters list' shows them",
        "replay: 1 dead letter replayed",
    ]
    assert [line["state"] for line in listed.lines] == ["dropped", "replayed", "waiting"]
    assert await count_records(broker, topic) == 1


WRONG: list[tuple[list[str], str]] = [
    (["list"], "Missing argument 'TOPIC'"),
    (["show", "t"], "Missing argument 'PARTITION/OFFSET...'"),
    (["show", "t", "5"], "Invalid value for 'PARTITION/OFFSET...': is '5'; write PARTITION/OFFSET, for example 0/42"),
    (["list", "t", "--partition", "-1"], "Invalid value for '--partition': "),
    (["drop", "t", "0/1", "--key", "a"], "dead-letters drop: letters and a filter are given; use one of the two"),
    (["list", "t", "--servers", "nowhere"], "kafka_servers: 'nowhere' is no address; write HOST:PORT"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG, ids=lambda value: " ".join(value)[:40])
async def test_what_is_wrong_is_told_in_one_sentence(run: Run, arguments: list[str], sentence: str) -> None:
    """Exit code 2."""
    ran = await run("dead-letters", *arguments)

    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"dormice: {sentence}")


async def test_a_broker_that_is_not_there_is_told_apart_from_wrong_input(run: Run, broker: EmbeddedBroker) -> None:
    """Exit code 3 for that, 2 for a topic that does not exist; one line each."""
    away = await run("dead-letters", "list", "t", "--servers", NO_BROKER)
    mistyped = await run("dead-letters", "list", "no-such-topic", "--servers", broker.address)

    assert (away.code, away.out, away.err.count("\n")) == (3, "", 1)
    assert away.err.startswith(f"dormice: no Kafka broker answers at {NO_BROKER} ")
    assert (mistyped.code, mistyped.out) == (2, "")
    assert mistyped.err == (
        "dormice: TOPIC: there is no topic 'no-such-topic', nor dead letters of it; correct the name\n"
    )
