"""The commands `rehearse …`, as people type them."""

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from starter.local.kafka.broker import EmbeddedBroker
from tests.acceptance.conftest import Run
from tests.support.topics import create_topic

PNG = b"\x89PNG\r\n\x1a\n"
SOME = "id,changed_at\na,2026-01-01T00:30:00Z\nb,\n"
POLICY = """\
from datetime import timedelta

def hourly(visit):
    return timedelta(hours=1)
"""


def make_event(name: str, at: str, version: int, reason: str) -> dict[str, Any]:
    """Make what dormice writes of a cycle of the handler `http`, as far as it matters here."""
    cycle = {"version": version, "attempt": 1, "outcome": "again", "reason": f"{reason}, 200"}
    return {"kind": "http", "id": name, "started_at": f"2026-01-01T{at}:00.000Z", **cycle}


EVENTS = [
    make_event("a", "00:00", 0, "first"),
    make_event("a", "06:00", 1, "changed"),
    make_event("a", "12:00", 2, "unchanged"),
    make_event("b", "01:00", 0, "first"),
]


@pytest.mark.timeout(150)  # six runs of the program, some of which draw
async def test_a_generated_history_is_rehearsed(run: Run, tmp_path: Path) -> None:
    """As a table, a document, a picture and a page that holds everything; Parquet gives the same as CSV."""
    generate = ("--pages", "40", "--per-day", "2", "--burst", "2", "--rhythm", "0.5", "--length", "5d")
    for name in ("pages.csv", "again.csv", "pages.parquet"):
        made = await run("rehearse", "generate", name, *generate)
        assert made.code == 0, made.err
    when = ("--from", "2026-01-01T00:00:00Z", "--until", "2026-01-06T00:00:00Z", "--warm-up", "1d")
    options = ("--policy", "adaptive:start=6h", "--policy", "fixed:1h", "--budget", "200/day", *when)
    told = await run("rehearse", "pages.csv", *options, "--png", "plot.png", "--html", "page.html")
    documents = [(await run("rehearse", f"pages.{form}", *options, "--json")).document for form in ("csv", "parquet")]

    assert told.code == 0, told.err
    header, *rows = told.out.splitlines()
    assert header.startswith("POLICY             VISITS A DAY  FRESH")
    names = ["adaptive:start=6h", "fixed:1h", "uniform", "proportional", "optimum"]
    assert [row.split()[0] for row in rows] == names
    assert "fixed:1h: every interval is 4.797 times as long, to keep to 800 visits" in told.err
    assert documents[0] == documents[1]
    assert [each["policy"] for each in documents[0]["policies"]] == names
    assert documents[0]["budget"] == 800
    for each in documents[0]["policies"]:
        assert each["visits"] == sum(each["visits_by_hour"]) <= 800
        assert len(each["visits_by_hour"]) == 4 * 24
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "pages.csv").read_bytes()
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert "http" not in page.replace("handler http", "")


async def test_rows_may_come_in_any_order_zone_and_form(run: Run, tmp_path: Path) -> None:
    """Twice the same moment is one change, and other columns are not looked at."""
    moments = ["2026-01-01T10:30:00+09:00", "1767230999.5", "2026-01-01T00:00:01Z", "2026-01-01T01:30:00Z", ""]
    rows = [f"{moment},x,7" for moment in moments]
    (tmp_path / "a.csv").write_text("\ufeffat, note ,page\r\n" + "\r\n".join([*rows, ",,8"]) + "\r\n", "utf-8")
    objects = [{"page": 7, "at": moment or None} for moment in moments]
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, [*objects, {"page": "8"}])))
    options = ("--id-column", "page", "--changed-column", "at", "--policy", "fixed:10m", "--json")
    table, objects_ran = [(await run("rehearse", f"a.{form}", *options)).document for form in ("csv", "jsonl")]

    assert table == objects_ran
    assert [table[name] for name in ("pages", "pages_without_change", "changes")] == [2, 1, 3]
    assert (table["from"], table["until"]) == ("2026-01-01T00:00:00.000Z", "2026-01-01T02:00:00.000Z")


async def test_a_function_of_the_users_own_is_a_policy(run: Run, tmp_path: Path) -> None:
    """Found as handlers are: in a module beside dormice.toml."""
    (tmp_path / "dormice.toml").write_text("")
    (tmp_path / "own_policies.py").write_text(POLICY)
    (tmp_path / "a.csv").write_text(SOME)
    names = ("--policy", "own_policies:hourly", "--policy", "fixed:1h")
    ran = await run("rehearse", "a.csv", *names, "--until", "2026-01-03T00:00:00Z", "--json", PYTHONPATH="")

    own, fixed, *_ = ran.document["policies"]
    assert {**own, "policy": ""} == {**fixed, "policy": ""}
    assert own["visits"] == 2 * 48


WRONG = {
    "nowhere.csv": (None, (), "nowhere.csv: can't be read (No such file or directory); give the path of a file"),
    "a.txt": (SOME, (), "a.txt: its name tells no format; let it end in .csv, .jsonl or .parquet"),
    "empty.csv": ("", (), "empty.csv: is empty; give a header with id,changed_at"),
    "header.csv": ("id,changed_at\n", (), "header.csv: is empty; give rows of id and changed_at"),
    "empty.jsonl": ("\n", (), "empty.jsonl: is empty; give rows"),
    "column.csv": ("id;changed_at\n", (), "column.csv: has no column 'id'; its columns are 'id;changed_at'; name one"),
    "cells.csv": ("id,changed_at\na\n", (), "cells.csv: line 2: has 1 cells for 2 columns; correct it"),
    "quote.csv": ('id,changed_at\n"a,\n', (), "quote.csv: line 2: is no CSV (unexpected end of data)"),
    "latin.csv": (b"id,changed_at\n\xff,\n", (), "latin.csv: is not UTF-8 text"),
    "moment.csv": (
        "id,changed_at\na,yesterday\n",
        (),
        "moment.csv: row 1: changed_at: is 'yesterday', no moment; write 2026-11-21T20:00:00Z",
    ),
    "zone.csv": (
        "id,changed_at\na,2026-01-01T00:00:00\n",
        (),
        "zone.csv: row 1: changed_at: is '2026-01-01T00:00:00', which has no offset; add one, for example Z",
    ),
    "millis.csv": ("id,changed_at\na,1767225600000\n", (), "millis.csv: row 1: changed_at: is 1767225600000.0, too"),
    "id.jsonl": ('{"id": [], "changed_at": 1}\n', (), "id.jsonl: row 1: id: is []; give text that is not empty"),
    "member.jsonl": ('{"x": 1}\n', (), "member.jsonl: line 1: has no member 'id'"),
    "list.jsonl": ("[]\n", (), "list.jsonl: line 1: is no JSON object; write one a line"),
    "no.parquet": ("PAR", (), "no.parquet: can't be read as Parquet"),
    "1.csv": (SOME, ("--policy", "sometimes"), "--policy: there is none 'sometimes'; give fixed:INTERVAL"),
    "2.csv": (SOME, ("--policy", "optimum"), "--policy: optimum is a reference, which is there in any case"),
    "3.csv": (SOME, ("--policy", "fixed:1h", "--policy", "fixed:1h"), "--policy: fixed:1h is given twice"),
    "4.csv": (SOME, ("--budget", "0"), "Invalid value for '--budget': is '0'; give visits in all"),
    "5.csv": (SOME, ("--budget", "9/week"), "Invalid value for '--budget': is '9/week'; give visits in all"),
    "6.csv": (SOME, ("--budget", "1/day"), "--budget: 1/day is no visit in the time that is measured; give more"),
    "7.csv": (SOME, ("--warm-up", "2h"), "--warm-up: leaves no time to measure"),
    "8.csv": (SOME, ("--png", "nowhere/x.png"), "--png: there is no folder nowhere; make it, or name another file"),
    "9.csv": (SOME, ("--html", "."), "Invalid value for '--html': File '.' is a directory"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_input_is_refused_in_one_sentence(run: Run, tmp_path: Path, name: str) -> None:
    """With exit code 2."""
    content, options, sentence = WRONG[name]
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    ran = await run("rehearse", name, *options)

    assert (ran.code, ran.err.splitlines()[-1].removeprefix("dormice: ")[: len(sentence)]) == (2, sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("generate", "h.csv", "--pages", "0"), "Invalid value for '--pages': is '0'; give a whole number"),
        (("generate", "h.csv", "--rhythm", "2"), "--rhythm: is 2.0; give a number from 0 to 1"),
        (("generate", "h.csv", "--per-day", "0"), "--per-day: is 0.0; give a number from 1e-06 to 100,000"),
        (("generate", "h.csv", "--length", "20000d"), "--length: is 20000 days, 0:00:00; give more than nothing"),
        (("generate", "h.jsonl"), "h.jsonl: histories are written as CSV or Parquet"),
        (("generate", "nowhere/h.csv"), "nowhere/.h.csv.part: No such file or directory"),
        (("collect", "nowhere.jsonl", "h.csv"), "nowhere.jsonl: No such file or directory"),
        (("collect", "events.jsonl", "h.csv", "--kind", "page"), "there is no visit of kind 'page' among the events"),
    ],
)
async def test_a_history_that_cannot_be_made_is_refused(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """In one sentence, with exit code 2, and no file is left."""
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, EVENTS)))
    ran = await run("rehearse", *arguments)

    assert (ran.code, ran.err.removeprefix("dormice: ")[: len(sentence)]) == (2, sentence)
    assert os.listdir(tmp_path) == ["events.jsonl"]  # noqa: PTH208 — no blocking Path


async def test_outcome_events_become_a_history(run: Run, tmp_path: Path, broker: EmbeddedBroker, kind: str) -> None:
    """From a file and from a topic alike; the sentence says what time to rehearse."""
    topic = f"{kind}-outcomes"
    await create_topic(broker.address, topic)
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, EVENTS)))
    made: Any = importlib.import_module("aiokafka").AIOKafkaProducer
    async with made(bootstrap_servers=broker.address) as producer:
        for value in (b"no event", b"[]", *(json.dumps(event).encode() for event in EVENTS)):
            await producer.send_and_wait(topic, value)
    from_file = await run("rehearse", "collect", "events.jsonl", "file.csv")
    from_topic = await run(
        *("rehearse", "collect", f"kafka:{topic}", "topic.csv"), DORMICE_KAFKA_SERVERS=broker.address
    )

    assert (from_file.code, from_topic.code) == (0, 0), from_topic.err
    assert "1 change of 2 pages: file.csv" in from_file.err
    assert "rehearse with --from 2026-01-01T00:00:00.000Z --until 2026-01-01T12:00:01.000Z" in from_file.err
    header, *rows = (tmp_path / "file.csv").read_text().splitlines()
    assert header == "id,changed_at"
    assert (tmp_path / "topic.csv").read_text().splitlines() == [header, *rows]
    assert [row.partition(",")[0] for row in rows] == ["a", "a", "b"]
    assert "a,2026-01-01T00:00:00" < rows[1] < "a,2026-01-01T06:00:00"


async def test_a_topic_that_does_not_exist_is_refused(run: Run, broker: EmbeddedBroker) -> None:
    """In one sentence, with exit code 2."""
    servers = {"DORMICE_KAFKA_SERVERS": broker.address}
    ran = await run("rehearse", "collect", "kafka:no-such-topic", "h.csv", **servers)

    assert (ran.code, ran.err[:49]) == (2, "dormice: TOPIC: there is no topic 'no-such-topic'")
