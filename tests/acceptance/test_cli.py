"""The command line: its output, its exit codes, and one sentence for everything that is wrong."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from temporalio.client import Client

from activities import Again, Context, Done, Message, Reject, handler
from examples.ledger import LEDGER_VARIABLE
from shared.exit import MEANINGS
from shared.settings import describe_settings
from starter.cli.main import WARNED_VARIABLE
from starter.cli.main import run as main_of
from starter.cli.program import walk
from starter.cli.reference import write_reference
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import find_free_port
from tests.acceptance.conftest import ROOT, Run, Spawn
from tests.conftest import Serve, wait_until

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

LATER = "2036-01-01T00:00:00Z"
COMMANDS = [each.command_path.removeprefix("dormice ") for each in walk() if each.parent]
KINDS = [
    "celery",
    "dormice-canary",
    "echo",
    "http",
    "ledger",
    "ledger-one-pack",
    "ledger-packed",
    "noted",
    "noted-packed",
    "standby",
    "telling",
    "telling-packed",
    "topic",
    "webhook",
]
ORDERS = ("--set", "handlers=tests.support.orders")
NO_SERVER = f"127.0.0.1:{find_free_port()}"


@pytest.fixture
async def worker(serve: Serve) -> AsyncIterator[None]:
    """A worker whose handler `ledger` does what the payload says: come back in an hour, be done, or reject."""

    @handler("ledger")
    async def obey(message: Message, ctx: Context) -> Again | Done | Reject:
        if message.payload == "done":
            return Done("finished")
        return Reject(message.payload["reject"]) if message.payload else Again(after=timedelta(hours=1))

    async with serve(obey, lanes=("short",)):
        yield


@pytest.fixture
def name(message_id: Callable[[], str]) -> str:
    """An id that no other test uses."""
    return message_id()


def test_help_needs_none_of_what_is_slow_to_import() -> None:
    """`dormice --help` answers at once: the parser is there before Temporal, pydantic and rich are loaded."""
    heavy = ("temporalio", "pydantic", "rich", "aiohttp", "pyarrow")
    code = (
        "import sys, starter.cli.main, starter.cli.program; [*starter.cli.program.walk()]; "
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_worker_without_requests_loads_nothing_of_the_http_client() -> None:
    """The handlers `http` and `webhook` are there; what they stand on comes with the first message of theirs."""
    code = (
        "import sys, worker.run; from activities.registry import load_registry; from shared.settings import Settings; "
        "print(sorted(load_registry(Settings()))); "
        "print([m for m in ('aiohttp', 'aiodns', 'yarl', 'certifi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    kinds, loaded = done.stdout.splitlines()
    assert "'http'" in kinds
    assert "'webhook'" in kinds
    assert loaded == "[]"


async def test_help_names_every_command_and_exit_code(run: Run) -> None:
    """What a person needs to go on is on the first page."""
    ran = await run("--help")

    assert (ran.code, ran.err) == (0, "")
    for command in COMMANDS:
        assert f"\n  {command.split()[0]} " in ran.out
    for code, meaning in MEANINGS.items():
        assert f"{code:>3}  {meaning}" in ran.out


@pytest.mark.parametrize("command", COMMANDS)
async def test_every_command_explains_itself(run: Run, command: str) -> None:
    """Usage, purpose and options, on standard output."""
    ran = await run(*command.split(), "--help")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: dormice {command} [OPTIONS]")


def test_the_reference_is_that_of_the_program() -> None:
    """After a change: python -m starter.cli.reference > docs/cli-reference.md."""
    assert (ROOT / "docs" / "cli-reference.md").read_text("utf-8") == write_reference()


async def test_help_is_a_word_too(run: Run) -> None:
    """Of the program, of a command and of one with two words."""
    for words in ((), ("start",), ("gates",), ("gates", "close")):
        asked = await run("help", *words)
        assert (asked.code, asked.out) == (0, (await run(*words, "--help")).out)


async def test_the_version_is_that_of_the_distribution(run: Run) -> None:
    """A report of a defect begins with it."""
    assert (await run("--version")).out.startswith("dormice 0.")


WRONG: list[tuple[list[str], str]] = [
    ([], "Missing command; 'dormice --help' shows the usage"),
    (["frob"], "No such command 'frob'; 'dormice --help' shows the usage"),
    (["gate"], "No such command 'gate'. Did you mean 'gates'? 'dormice --help' shows the usage"),
    (["list", "--kind"], "Option '--kind' requires an argument; 'dormice list --help' shows the usage"),
    (["list", "--json=yes"], "Option '--json' does not take a value; 'dormice list --help' shows"),
    (
        ["start", "echo", "1", "--payload", "@"],
        "Invalid value for '--payload': names no file behind the @; write @FILE; 'dormice",
    ),
    (["gates", "lits"], "No such command 'lits'. Did you mean 'list'? 'dormice gates --help'"),
    (["list", "--fast"], "No such option '--fast'. (Did you mean one of: '--exact'"),
    (["gates", "--jsn"], "No such option '--jsn'. (Did you mean one of: '--json'"),
    (["start", "echo", "1", "--due-at", LATER], "No such option '--due-at'. (Did you mean one of: "),
    (["gates", "list", "all"], "Got unexpected extra argument (all); 'dormice gates list --help' shows the usage"),
    (["list", "--lan=short"], "No such option '--lan'. Did you mean '--lane'? 'dormice list --help' shows"),
    (
        ["list", "--lane", "shrot"],
        "Invalid value for '--lane': 'shrot' is not one of 'short', 'medium', 'long'; 'dormice list --help' shows",
    ),
    (["start", "echo"], "Missing argument 'ID'; 'dormice start --help' shows the usage"),
    (["start", "Echo", "1"], "kind: is 'Echo'; use lower-case letters"),
    (["start", "echo", ""], "id: is empty; give 1 to 200 bytes"),
    (["start", "echo", "a\nb"], "id: has the control character"),
    (
        ["start", "alien", "1"],
        "kind: no handler for 'alien' is loaded; loaded: celery, dormice-canary, echo, http, ledger",
    ),
    (["start", "echo", "1", "--payload", "{"], "Invalid value for '--payload': is no JSON"),
    (
        ["start", "echo", "1", "--payload", "@none.json"],
        "Invalid value for '--payload': names file 'none.json', which can't be read",
    ),
    (["start", "echo", "1", "--payload", f'"{"x" * 4095}"'], "payload: is 4097 bytes of JSON, the limit is 4096"),
    (
        ["start", "echo", "1", "--scheduled-at", "8pm"],
        "Invalid value for '--scheduled-at' / '--at': is '8pm', no moment; write",
    ),
    (
        ["start", "echo", "1", "--scheduled-at", "2026-01-01T00:00:00"],
        "Invalid value for '--scheduled-at' / '--at': is '2026-01-01T00:00:00', which",
    ),
    (
        ["start", "echo", "1", "--tolerance", "5"],
        "Invalid value for '--tolerance': is '5', no duration; write for example 90s",
    ),
    (
        ["start", "echo", "1", "--tolerance", "60d"],
        "tolerance_seconds: is 5184000.0; give seconds between 0 and 2592000",
    ),
    (
        ["start", "echo", "1", "--priority", "6"],
        "Invalid value for '--priority': is '6'; give a whole number from 1 (first) to 5 (last)",
    ),
    (["start", "echo", "1", "--lane", "fast"], "Invalid value for '--lane': 'fast' is not one of 'short'"),
    (["start", "order", "1", "--payload", '{"items": [{"price": 0}]}', *ORDERS], "payload.items.0.price: should be"),
    (["show", "echo"], "KIND:ID is 'echo'; write KIND:ID, for example feed:42"),
    (["show", "a:1", "b", "c:3"], "KIND:ID is 'b'; write KIND:ID, for example feed:42"),
    (["explain", "a", "b", "c"], "KIND:ID is 'a'; write KIND:ID, for example feed:42"),
    (["list", "--limit", "0"], "Invalid value for '--limit': is '0'; give a whole number of at least 1"),
    (["list", "--state", "asleep"], "Invalid value for '--state': 'asleep' is not one of 'active'"),
    (["now"], "now: name messages as KIND:ID, or select them with --kind"),
    (["now", "echo:1", "nonsense"], "KIND:ID is 'nonsense'; write KIND:ID"),
    (["now", "-", "echo:1"], "KIND:ID: '-' reads all names from standard input and stands alone"),
    (["stop", "echo:1", "--kind", "echo"], "stop: messages and a filter are given; use one of the two"),
    (["stop", "--everything", "--kind", "echo"], "stop: name messages as KIND:ID, or select them with --kind"),
    (["reschedule", "echo:1"], "Missing option '--due-at' / '--at'"),
    (
        ["reprioritize", "echo:1", "--priority", "high"],
        "Invalid value for '--priority': is 'high'; give a whole number",
    ),
    (["revise", "echo:1", "--payload", f'"{"x" * 5000}"'], "payload: is 5002 bytes of JSON, the limit is 4096"),
    (["spark"], "Missing command; 'dormice spark --help' shows the usage"),
    (["parked", "drop", "a:1", "--kind", "a"], "parked drop: messages and a filter are given; use one of the two"),
    (["worker", "--drain-seconds", "nan"], "--drain-seconds: is nan; write for example 30"),
    (
        ["worker", "--health-port", "70000"],
        "Invalid value for '--health-port': is '70000'; give a port from 0 to 65535",
    ),
    (["worker", "--set", "webhook_key_file=/none"], "webhook_key_file: /none can't be read (No such file"),
    (["dev", "--sync", "off"], "Invalid value for '--sync': 'off' is not one of 'normal', 'full'"),
    (
        ["settings", "--set", "in_flight"],
        "Invalid value for '--set': is 'in_flight'; write NAME=VALUE, for example in_flight=16",
    ),
    (["settings", "--set", "pace=1"], "pace (from flag): no such setting; did you mean patience?"),
    (["--set", "in_flight=many", "settings"], "in_flight (from flag): is 'many'; write a whole number"),
    (["settings", "--config", "none.toml"], "config: there is no file none.toml; give the path of a TOML file"),
    (["handlers", "--set", "handlers=none_such"], "handlers: module 'none_such' can't be imported"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG, ids=lambda value: " ".join(value)[:40])
async def test_what_is_wrong_is_told_in_one_sentence(run: Run, arguments: list[str], sentence: str) -> None:
    """Exit code 2, one line that names it and the next step, nothing on standard output, no traceback."""
    ran = await run(*arguments, TEMPORAL_ADDRESS=NO_SERVER)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dormice: {sentence}")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err


async def test_verbose_adds_where_an_error_comes_from(run: Run) -> None:
    """The sentence stays the first line."""
    ran = await run("handlers", "--set", "handlers=none_such", "-v")

    assert ran.err.splitlines()[0].startswith("dormice: handlers: module 'none_such' can't be imported")
    assert "Traceback (most recent call last)" in ran.err
    assert ran.code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["start", "echo", "1"],
        ["load", "-"],
        ["show", "echo:1"],
        ["list", "--json"],
        ["stop", "echo:1"],
        ["parked", "list"],
    ],
    ids=lambda value: value[0],
)
async def test_a_server_that_is_not_there_is_told_apart_from_wrong_input(run: Run, arguments: list[str]) -> None:
    """Exit code 3: the same command may succeed later."""
    ran = await run(*arguments, stdin='{"kind": "echo", "id": "1"}', TEMPORAL_ADDRESS=NO_SERVER)

    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith(f"dormice: no Temporal server answers at {NO_SERVER} (")
    assert ran.err.endswith("; start one with 'dormice dev' or set TEMPORAL_ADDRESS\n")
    assert ran.err.count("\n") == 1


async def test_settings_follow_flag_environment_file_and_default(run: Run, tmp_path: Path) -> None:
    """A flag counts before and behind the command's name, the last one wins; a file may be named."""
    (tmp_path / "my.toml").write_text('in_flight = 5\nindex_after = "5s"\npatience = "5s"\nlog_level = "debug"\n')
    ran = await run(
        *("--set", "in-flight=7", "--set", "sandbox=yes", "settings", "--json"),
        *("--set", "IN_FLIGHT=8", "--config", "my.toml"),
        DORMICE_INDEX_AFTER="6s",
    )
    now = {line["name"]: line["value"] for line in ran.lines}

    assert ran.code == 0
    assert [line["environment"] for line in ran.lines] == [variable for variable, _, _ in describe_settings()]
    assert (now["in_flight"], now["index_after"], now["log_level"], now["sandbox"]) == ("8", "6s", "debug", "true")
    assert now["cycles_per_run"] == "5"


def test_a_variable_that_is_like_a_setting_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo does not make a setting vanish in silence; processes that the first one starts do not say it again."""
    monkeypatch.setenv(WARNED_VARIABLE, "")
    monkeypatch.setenv("DORMICE_HANDLER", "my.handlers")
    told = [(main_of(["settings", "--json"]), capsys.readouterr().err) for _ in range(2)]

    sentence = "DORMICE_HANDLER is set in the environment, but there is no such setting; did you mean DORMICE_HANDLERS?"
    assert told == [(0, f"dormice: warning: {sentence}\n"), (0, "")]


async def test_handlers_are_listed_with_their_origin(run: Run) -> None:
    """Installed ones and those of the setting; the table and the JSON show the same."""
    table = await run("handlers")
    lines = await run("handlers", "--json")

    assert [line["kind"] for line in lines.lines] == KINDS
    assert lines.lines[4]["origin"] == "tests.support.handlers"
    assert lines.lines[2]["summary"].startswith("Work for `work` seconds")
    assert [line.split()[0] for line in table.out.splitlines()] == ["KIND", *KINDS]


async def test_the_schema_of_payloads_is_printed(run: Run) -> None:
    """For the kinds that say what their payloads are."""
    printed = (await run("handlers", "--schema", *ORDERS)).document

    assert list(printed) == ["order"]
    assert printed["order"]["$defs"]["Item"]["properties"]["price"]["exclusiveMinimum"] == 0


async def test_a_revision_that_does_not_fit_its_kind_is_refused(run: Run, name: str) -> None:
    """Whether or not the message is alive; nothing is sent."""
    ran = await run("revise", f"order:{name}", "--payload", "{}", *ORDERS)

    assert ran.code == 2
    assert ran.err.endswith("dormice: payload.items: is missing, and before= raised KeyError: 'price'; correct it\n")


async def test_a_message_is_started_once(run: Run, name: str) -> None:
    """A second start of a message that is alive says so, with exit code 1."""
    arguments = ("start", "ledger", name, "--scheduled-at", LATER, "--payload", '{"n": 1}', "--priority", "2")

    first = await run(*arguments, "--json")
    second = await run(*arguments)

    assert (first.code, first.err) == (0, "")
    assert (first.document["workflow_id"], first.document["outcome"]) == (f"ledger:{name}", "started")
    assert (second.code, second.out) == (1, f"ledger:{name}  already running\n")
    assert second.err.startswith(f"dormice: ledger:{name} is alive already, nothing was started;")


@pytest.mark.usefixtures("worker")
async def test_an_upsert_starts_or_changes_a_message(run: Run, name: str) -> None:
    """What it came to is printed; with a condition that does not hold it changes nothing, with exit code 2."""
    upsert = ("upsert", "ledger", name, "--scheduled-at", LATER)

    first = await run(*upsert)
    second = await run(*upsert, "--priority", "2", "--json")
    third = await run(*upsert, "--if-version", "7")
    await run("pause", f"ledger:{name}")
    fourth = await run(*upsert, "--if-version", "0")

    assert (first.code, first.err) == (0, "")
    assert first.out.startswith(f"ledger:{name}  started  due 2036-01-01 00:00:00 UTC (in ")
    assert (second.code, second.document["outcome"], second.document["reason"]) == (0, "revised", "")
    assert (third.code, third.out) == (2, "")
    assert third.err.startswith(
        f"dormice: ledger:{name} is at version 0 and due 2036-01-01 00:00:00 UTC, not at version"
    )
    assert fourth.code == 0
    assert fourth.out.startswith(f"ledger:{name}  revised  due 2036-")
    assert fourth.err.startswith(f"dormice: ledger:{name} is paused and keeps the new due time;")


@pytest.mark.usefixtures("worker")
async def test_a_start_or_upsert_without_a_moment_says_that_it_is_due_now(run: Run, name: str) -> None:
    """So does one whose moment has passed; a first run may be later by its tolerance."""
    early = await run("start", "ledger", name, "--at", "2020-01-01T00:00:00Z", "--tolerance", "2h", "--wait", "1s")
    text = await run("upsert", "ledger", name)
    document = await run("upsert", "ledger", name, "--json")
    later = await run("upsert", "ledger", name, "--at", LATER, "--json")

    assert early.out.splitlines()[0] == f"ledger:{name}  started  due now, or up to 2 h later"
    assert text.out == f"ledger:{name}  revised  due now\n"
    assert (document.document["is_due_now"], later.document["is_due_now"]) == (True, False)


@pytest.mark.usefixtures("worker")
async def test_show_tells_where_a_message_stands_and_why(run: Run, name: str) -> None:
    """By KIND:ID or KIND ID, as text or as JSON lines; exit code 1 when one is not known, the others are shown."""
    await run("start", "ledger", name, "--scheduled-at", LATER, "--tenant", "acme")

    text = await run("show", f"ledger:{name}")
    document = await run("show", "ledger", name, "--json")
    several = await run("show", "ledger:nobody", f"ledger:{name}", f"ledger:{name}", "--json")

    assert (text.code, text.err) == (0, "")
    assert "state     active on lane short" in text.out
    assert "due       2036-01-01 00:00:00 UTC (in " in text.out
    assert "why       due 2036-01-01 00:00:00 UTC since started (scheduled by its sender)" in text.out
    assert f"/namespaces/default/workflows/ledger%3A{name}" in text.out
    assert document.document["due_at"] == document.document["earliest_at"] == LATER
    assert (document.document["version"], document.document["tenant"], document.document["note"]) == (0, "acme", None)
    assert (several.code, [line["id"] for line in several.lines]) == (1, [name, name])
    assert several.err == "dormice: no message ledger:nobody is known; 'dormice list' shows those that are alive\n"


@pytest.mark.usefixtures("worker")
async def test_explain_says_in_one_sentence_why_a_message_is_due(run: Run, name: str) -> None:
    """The sentence, and below it what was decided; as JSON the same."""
    await run("start", "ledger", name, "--scheduled-at", LATER)

    text = await run("explain", f"ledger:{name}")
    document = await run("explain", "ledger", name, "--json")

    why = "due 2036-01-01 00:00:00 UTC since started (scheduled by its sender)"
    first, second = text.out.splitlines()
    assert (text.code, text.err, first) == (0, "", f"ledger:{name}  {why}")
    assert second.endswith("version 0: started (scheduled by its sender), then due 2036-01-01 00:00:00 UTC")
    assert (document.document["why"], document.document["due_at"]) == (why, LATER)
    assert [decision["what"] for decision in document.document["decisions"]] == ["started"]
    assert document.document["decisions"][0]["due_at"] == LATER


@pytest.mark.usefixtures("worker")
async def test_a_finished_message_is_shown_with_its_result(run: Run, client: Client, name: str) -> None:
    """What it came to can be looked up for as long as the server keeps it."""
    await run("start", "ledger", name, "--payload", '"done"')
    await client.get_workflow_handle(f"ledger:{name}").result()

    shown = (await run("show", f"ledger:{name}", "--json")).document

    assert (shown["state"], shown["result"], shown["version"], shown["due_at"]) == ("done", "finished", 1, None)
    assert 'result    "finished"' in (await run("show", f"ledger:{name}")).out


async def test_without_a_worker_show_tells_what_the_server_knows(run: Run, name: str) -> None:
    """A note says why there is no more."""
    await run("start", "ledger", name, "--scheduled-at", LATER, "--lane", "long")

    ran = await run("show", f"ledger:{name}", "--json")

    assert (ran.code, ran.document["lane"], ran.document["due_at"]) == (0, "long", LATER)
    assert ran.document["payload"] is None
    assert ran.err.startswith("note: no worker of lane long could tell more within 5 s")


async def test_ctrl_c_ends_a_command_quietly(spawn: Spawn, run: Run, server: EmbeddedServer, name: str) -> None:
    """Exit code 130 and one word, no traceback."""
    await run("start", "ledger", name, "--scheduled-at", LATER)
    process = await spawn("show", f"ledger:{name}")  # waits for a worker that is not there
    await wait_until(lambda: server.options.port in _remote_ports(process.pid), "it is connected")
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()

    assert (process.returncode, out, err) == (130, b"", b"interrupted\n")


def _remote_ports(pid: int) -> set[int]:
    return {found.raddr.port for found in psutil.Process(pid).net_connections() if found.raddr}


@pytest.mark.parametrize("arguments", [["settings", "--json"], ["handlers"]], ids=["json", "table"])
async def test_a_reader_that_goes_away_ends_a_command_quietly(spawn: Spawn, arguments: list[str]) -> None:
    """As in `| head`: no traceback, and the code that such an end has everywhere."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = await spawn(*arguments, stdout=writing)
    finally:
        os.close(writing)
    _, err = await process.communicate()

    assert (process.returncode, err) == (141, b"")


async def test_a_disk_that_is_full_is_told(spawn: Spawn) -> None:
    """Output that got lost is no success."""
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        process = await spawn("settings", stdout=full)
    finally:
        os.close(full)
    _, err = await process.communicate()

    assert process.returncode == 2
    assert b"dormice: No space left on device" in err


async def test_python_m_starter_is_the_program_too(environment: dict[str, str]) -> None:
    """Processes that start each other need no console script."""
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "starter", "--version"), env=environment, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await done.communicate()

    assert (done.returncode, out.startswith(b"dormice ")) == (0, True)


async def test_a_worker_of_the_command_line_runs_messages_until_it_is_told_to_stop(
    spawn: Spawn, run: Run, environment: dict[str, str], tmp_path: Path, name: str
) -> None:
    """SIGTERM drains it, with exit code 0."""
    variables = {**environment, LEDGER_VARIABLE: str(tmp_path / "ledger.jsonl")}
    payload = json.dumps({"delay": 60, "cycles": 1})
    process = await spawn("worker", "--lane", "short", "--processes", "1", "--drain-seconds", "5", env=variables)
    await run("start", "ledger", name, "--payload", payload)
    await wait_until((tmp_path / "ledger.jsonl").exists, "the handler was called")
    process.terminate()
    _, err = await process.communicate()

    assert process.returncode == 0, err
