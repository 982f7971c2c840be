"""The command `load`: files of every format, interrupted, repeated, watched."""

import asyncio
import contextlib
import json
import os
import pty
import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.acceptance.conftest import Run, Spawn
from tests.conftest import wait_until

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

LATER = "2036-01-01T00:00:00Z"


@pytest.fixture
def ids(message_id: Callable[[], str]) -> list[str]:
    """Ids that no other test uses."""
    return [message_id() for _ in range(150)]


def write_jsonl(path: Path, ids: list[str], *more: str) -> None:
    """Write a row for each id, and lines as they are."""
    rows = [json.dumps({"kind": "echo", "id": id_, "scheduled_at": LATER}) for id_ in ids]
    path.write_text("\n".join([*rows, *more]) + "\n")


async def test_a_jsonl_file_is_loaded_and_loaded_again(run: Run, tmp_path: Path, ids: list[str]) -> None:
    """The summary goes to people, with --json to programs too; the second time nothing starts."""
    write_jsonl(tmp_path / "a.jsonl", ids[:30])

    first = await run("load", "a.jsonl")
    second = await run("load", "a.jsonl", "--json")

    assert (first.code, first.out) == (0, "")
    assert first.err.startswith("30 rows: 30 started, 0 already running, 0 rejected, 0 failed in ")
    assert second.code == 0
    document = second.document
    assert {name: document[name] for name in ("file", "rows", "started", "already_running", "rejects")} == {
        "file": "a.jsonl",
        "rows": 30,
        "started": 0,
        "already_running": 30,
        "rejects": None,
    }
    assert not (tmp_path / "a.jsonl.rejects.jsonl").exists()


async def test_a_file_is_compared_with_what_the_server_has(run: Run, tmp_path: Path, ids: list[str]) -> None:
    """Missing rows are written in full, and what is alive beside the file by name, until nothing of both is left."""
    write_jsonl(tmp_path / "a.jsonl", ids[:6])
    write_jsonl(tmp_path / "b.jsonl", ids[2:7], f'{{"kind": "echo", "id": "{ids[3]}", "priority": 1}}', "{")
    missing = tmp_path / "b.jsonl.missing.jsonl"
    others = tmp_path / "b.jsonl.others.txt"

    await run("load", "a.jsonl")
    first = await run("load", "b.jsonl", "--reconcile", "--json")
    (lost,) = [json.loads(line) for line in missing.read_text().splitlines()]
    names = set(others.read_text().split())
    again = await run("load", "b.jsonl", "--reconcile")
    await run("load", "b.jsonl")
    second = await run("load", "b.jsonl", "--reconcile", "--json")
    both = await run("load", "b.jsonl", "--reconcile", "--upsert")

    places = ("alive", "missing", "rejected", "duplicates")
    assert [first.document[place] for place in places] == [4, 1, 1, 1]
    assert (lost["line"], json.loads(lost["row"])["id"], lost["reason"]) == (
        5,
        ids[6],
        "the server knows nothing of it",
    )
    assert {f"echo:{ids[0]}", f"echo:{ids[1]}"} <= names
    assert names.isdisjoint(f"echo:{id_}" for id_ in ids[2:7])
    assert f"row 5: echo:{ids[6]} is missing, the server knows nothing of it" in again.err
    assert again.err.splitlines()[-3].startswith("7 rows: not complete in ")
    assert [second.document[place] for place in places] == [5, 0, 1, 1]
    assert (first.code, second.code, both.code) == (1, 1, 2)
    assert not missing.exists()


async def test_refused_rows_lie_beside_the_input(run: Run, tmp_path: Path, ids: list[str]) -> None:
    """Exit code 1; corrected and loaded again, they are gone."""
    write_jsonl(tmp_path / "a.jsonl", ids[:2], "bad", '{"kind": "echo", "id": "x", "lane": "fast"}')
    rejects = tmp_path / "a.jsonl.rejects.jsonl"

    ran = await run("load", "a.jsonl")
    entries = [json.loads(line) for line in rejects.read_bytes().splitlines()]
    write_jsonl(tmp_path / "a.jsonl", ids[:2])
    clean = await run("load", "a.jsonl")

    assert (ran.code, clean.code) == (1, 0)
    assert ran.err.splitlines()[1] == "rejected rows and reasons: a.jsonl.rejects.jsonl"
    assert [(entry["line"], entry["field"]) for entry in entries] == [(3, "envelope"), (4, "lane")]
    assert not rejects.exists()


async def test_csv_and_parquet_become_the_same_messages(
    run: Run, client: Client, tmp_path: Path, ids: list[str]
) -> None:
    """Further columns are the payload, --kind names what the table does not."""
    pa: Any = pytest.importorskip("pyarrow")
    pq: Any = pytest.importorskip("pyarrow.parquet")
    moment = datetime.fromisoformat(LATER)
    (tmp_path / "a.csv").write_text(f"id,scheduled_at,priority,url\n{ids[0]},{LATER},2,http://x\n{ids[1]},,,\n")
    pq.write_table(
        pa.table({"id": ids[2:4], "scheduled_at": [moment, moment], "url": ["http://x", "y"]}), tmp_path / "a.parquet"
    )

    table = await run("load", "a.csv", "--kind", "echo")
    columns = await run("load", "a.parquet", "--kind", "echo")

    assert (table.code, columns.code) == (0, 0)
    for id_ in (ids[0], ids[2]):
        started = await anext(client.get_workflow_handle(f"echo:{id_}").fetch_history_events())
        payloads = started.workflow_execution_started_event_attributes.input.payloads
        (state,) = await client.data_converter.decode(payloads, [dict[str, Any]])
        assert (state["payload"], state["due_at"]) == ({"url": "http://x"}, moment.timestamp())


async def test_standard_input_is_a_file_too(run: Run, tmp_path: Path, ids: list[str]) -> None:
    """JSONL unless told otherwise; its rejects lie in the working folder or where --rejects says."""
    row = json.dumps({"kind": "echo", "id": ids[0], "scheduled_at": LATER})

    lines = await run("load", "-", stdin=f"{row}\nbad\n")
    cells = await run("load", "-", "--format", "csv", "--rejects", "no.jsonl", stdin=f"kind,id\nalien,{ids[1]}\n")

    assert (lines.code, cells.code) == (1, 1)
    assert json.loads((tmp_path / "stdin.rejects.jsonl").read_bytes())["line"] == 2
    assert json.loads((tmp_path / "no.jsonl").read_bytes())["row"] == f"alien,{ids[1]}"


async def test_a_dry_run_needs_no_server(run: Run, tmp_path: Path, ids: list[str]) -> None:
    """It validates every row, and says what it would refuse."""
    write_jsonl(tmp_path / "a.jsonl", ids, "bad")

    ran = await run("load", "a.jsonl", "--dry-run", TEMPORAL_ADDRESS="127.0.0.1:1")

    assert ran.code == 1
    assert ran.err.startswith("151 rows: 150 fine, 1 rejected, nothing started (dry run) in ")
    assert (tmp_path / "a.jsonl.rejects.jsonl").exists()


async def test_a_dry_run_shows_what_rows_become(run: Run, tmp_path: Path) -> None:
    """The first three messages with exact values, and what each line was taken for; a first line is asked about."""
    columns = ("--columns", "rank,site,when", "--id-from", "/site", "--scheduled-at-from", "/when")
    zone = ("--kind", "echo", "--zone", "America/New_York", "--at", "09:00", "--payload-from", "/rank")
    (tmp_path / "top.csv").write_text("1,a.example,2035-01-01\n12345678901234567890,b.example,2035-07-01\n3,c")

    asked = await run("load", "top.csv", "--kind", "echo", "--id-from", "/a.example")
    ran = await run("load", "top.csv", *columns, *zone, "--dry-run", "--json", TEMPORAL_ADDRESS="127.0.0.1:1")
    shown = await run("load", "top.csv", *columns, *zone, "--dry-run", TEMPORAL_ADDRESS="127.0.0.1:1")
    examples = ran.document["examples"]

    assert (asked.code, ran.code, shown.code) == (2, 1, 1)
    assert "its first line looks like a row" in asked.err
    assert [(each["id"], each["scheduled_at"], each["payload"]) for each in examples] == [
        ("a.example", "2035-01-01T14:00:00Z", 1),
        ("b.example", "2035-07-01T13:00:00Z", "12345678901234567890"),
    ]
    assert (ran.document["header"], ran.document["messages"]) == ([], [{"kind": "echo", "lane": "short", "rows": 2}])
    assert shown.out.splitlines()[1].split() == ["echo:a.example", "short", "2035-01-01", "14:00:00", "UTC", "1"]
    assert shown.err.splitlines()[-2:] == [
        "taken: 2 rows as echo on lane short",
        "the last line of top.csv has no line end; see that the file was not cut off",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.jsonl"], "none.jsonl: can't be read (No such file or directory); give the path of a file"),
        ([".", "--format", "csv"], ".: can't be read (Is a directory); give the path of a file"),
        (["empty.jsonl"], "empty.jsonl: is empty; there is nothing to start"),
        (["-"], "stdin: is empty; there is nothing to start"),
        (["a.csv"], "a.csv: has no column 'id'; its columns are 'x', 'y'"),
        (["a.txt"], "a.txt: its name tells no format; add --format with one of jsonl, csv, parquet"),
        (["a.csv", "--format", "parquet"], "a.csv: can't be read as Parquet (Parquet"),
        (["-", "--format", "parquet"], "stdin: a Parquet file is read from its end; give its path"),
        (
            ["a.csv", "--format", "jsonl", "--rejects", "a.csv"],
            "--rejects: a.csv is the file to load; give another path",
        ),
        (
            ["a.txt", "--format", "csv", "--rejects", "none/x"],
            "--rejects: none/x can't be written; give a path in a folder",
        ),
    ],
    ids=lambda value: " ".join(value)[:30],
)
async def test_an_input_that_can_not_be_loaded_is_told_in_one_sentence(
    run: Run, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    """Exit code 2, before anything is started or asked of a server."""
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "a.csv").write_text("x,y\n")
    (tmp_path / "a.txt").write_text("id,kind\n")

    ran = await run("load", *arguments, TEMPORAL_ADDRESS="127.0.0.1:1")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dormice: {sentence}")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_load_says_what_it_did_and_goes_on_the_next_time(
    spawn: Spawn, run: Run, client: Client, tmp_path: Path, *, ids: list[str], number: signal.Signals
) -> None:
    """Exit code 130, starts under way settle, and the next run starts exactly the rest."""
    write_jsonl(tmp_path / "a.jsonl", ids)

    process = await spawn("load", "a.jsonl", "--set", "starts_per_second=50", "--set", "in_flight=4", "--json")
    await wait_until(lambda: _exists(client, f"echo:{ids[10]}"), "the load is under way")
    process.send_signal(number)
    out, err = await process.communicate()
    document = json.loads(out)
    again = (await run("load", "a.jsonl", "--json")).document

    assert process.returncode == 130
    assert document["is_interrupted"]
    assert err.decode().startswith("interrupted: waiting for starts that are under way; once more leaves at once\n")
    assert 10 < document["started"] < 150
    assert (again["started"], again["already_running"]) == (150 - document["started"], document["started"])


async def _exists(client: Client, name: str) -> bool:
    return (await client.count_workflows(f"WorkflowId = '{name}'")).count == 1


async def test_a_slow_pipe_is_loaded_as_it_comes_and_can_be_interrupted(
    spawn: Spawn, client: Client, ids: list[str]
) -> None:
    """A row is started long before the next one is written, and Ctrl-C does not wait for it."""
    process = await spawn("load", "-")
    assert process.stdin is not None
    process.stdin.write(json.dumps({"kind": "echo", "id": ids[0], "scheduled_at": LATER}).encode() + b"\n")
    await wait_until(lambda: _exists(client, f"echo:{ids[0]}"), "the row is started")
    process.send_signal(signal.SIGINT)
    await process.wait()

    assert process.returncode == 130


async def test_a_terminal_gets_a_bar_and_a_pipe_plain_lines(
    spawn: Spawn, tmp_path: Path, environment: dict[str, str], ids: list[str]
) -> None:
    """Both show counts, rate and what is left; neither touches standard output."""
    write_jsonl(tmp_path / "a.jsonl", ids[:70])
    ours, theirs = pty.openpty()
    slowly = ("--set", "starts_per_second=10", "--set", "in_flight=2")
    try:
        watched = await spawn(
            "load", "a.jsonl", *slowly, stderr=theirs, env={**environment, "TERM": "xterm", "COLUMNS": "150"}
        )
        piped = await spawn("load", "a.jsonl", *slowly)
        (watched_out, _), (piped_out, piped_err) = await asyncio.gather(watched.communicate(), piped.communicate())
        os.set_blocking(ours, False)
        shown = _read_all(ours).decode()
    finally:
        os.close(ours)
        os.close(theirs)

    assert (watched_out, piped_out) == (b"", b"")
    assert "━" in shown
    assert " a second" in shown
    assert "% done" in piped_err.decode().splitlines()[0]
    assert piped_err.decode().splitlines()[-2].startswith("70 rows: ")


def _read_all(terminal: int) -> bytes:
    """Read what a terminal shows: it gives a few thousand bytes at once, and may cut a character in two."""
    shown = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            shown += os.read(terminal, 1_000_000)
    return shown
