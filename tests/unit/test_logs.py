"""Logs: a line says what happened and which message it was about, in the format that the settings ask for."""

import json
import subprocess
import sys
from pathlib import Path

from shared.telemetry.logs import LogThrottle

ROOT = Path(__file__).parents[2]

BEGIN = """
import logging
from shared.telemetry.logs import set_up_logs
from shared.settings import Settings
"""


def log(code: str, log_format: str = "json", level: str = "info") -> list[str]:
    """Give the lines that a process writes to standard error; logging is set up once in a process."""
    setup = f"set_up_logs(Settings(log_format={log_format!r}, log_level={level!r}))\n"
    program = [sys.executable, "-c", BEGIN + setup + code]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
    return ran.stderr.splitlines()


def test_a_person_reads_the_fields_behind_the_sentence() -> None:
    """The sentence is constant, so that it can be searched for; what it is about stands beside it."""
    (line,) = log("logging.getLogger('starter').warning('not delivered', extra={'workflow_id': 'a/1'})", "plain")

    assert "WARNING" in line
    assert line.endswith("starter: not delivered [workflow_id=a/1]")


def test_a_json_line_has_each_field_by_its_name() -> None:
    """So that a log store can search them; the moment is in UTC."""
    (line,) = log("logging.getLogger('starter').info('took %s', 'it', extra={'workflow_id': 'a/1', 'n': 2})")
    told = json.loads(line)

    assert told["at"].endswith("+00:00")
    assert (told["level"], told["logger"], told["message"]) == ("info", "starter", "took it")
    assert (told["workflow_id"], told["n"]) == ("a/1", 2)


def test_a_trace_stays_in_its_json_line() -> None:
    """One event is one line, also when it has forty."""
    code = "try:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.getLogger('x').exception('failed')"
    (line,) = log(code)

    assert "ZeroDivisionError" in json.loads(line)["error"]


def test_what_no_json_knows_is_told_as_text() -> None:
    """A field of any type never loses the line."""
    (line,) = log("logging.getLogger('x').info('here', extra={'place': {1, }})")

    assert json.loads(line)["place"] == "{1}"


def test_the_level_is_that_of_the_settings() -> None:
    """Nothing below it is written."""
    lines = log("logging.getLogger('x').info('no'); logging.getLogger('x').error('yes')", level="error")

    assert [json.loads(line)["message"] for line in lines] == ["yes"]


def test_a_chatty_library_is_told_once_in_a_while() -> None:
    """It repeats itself thirty times a second while a broker is away; a message that is new is logged at once."""
    code = (
        "for n in range(50):\n    logging.getLogger('aiokafka.conn').error('no node %s', n)\n"
        "logging.getLogger('aiokafka.conn').error('another')\n"
        "import shared.telemetry.logs\n"
        "shared.telemetry.logs.CHATTY['aiokafka'] = 0.0\n"
        "logging.getLogger('aiokafka.conn').error('no node %s', 50)\n"
        "for n in range(2):\n    logging.getLogger('starter').error('ours')\n"
    )
    lines = [json.loads(line) for line in log(code)]

    assert [line["message"] for line in lines] == ["no node 0", "another", "no node 50", "ours", "ours"]
    assert lines[2]["left_out"] == 49


def test_what_a_workflow_logs_names_the_workflow() -> None:
    """The SDK describes a workflow in a mapping of its own; only its ids are kept."""
    code = (
        "about = {'workflow_id': 'a/1', 'run_id': 'r', 'task_queue': 'q'}\n"
        "logging.getLogger('temporalio.workflow').warning('x', extra={'temporal_workflow': about})"
    )
    told = json.loads(log(code)[0])

    assert (told["workflow_id"], told["run_id"]) == ("a/1", "r")
    assert "task_queue" not in told
    assert "temporal_workflow" not in told


def test_a_line_written_on_the_way_of_a_message_names_it() -> None:
    """Whoever writes the line, also in a thread; its own fields come first, the SDK's on the pack last."""
    code = (
        "import asyncio\n"
        "from types import SimpleNamespace\n"
        "from shared.telemetry.logs import ABOUT\n"
        "async def call():\n"
        "    ABOUT.set(SimpleNamespace(fields={'workflow_id': 'a:1', 'correlation_id': 'c-1', 'version': 3}))\n"
        "    await asyncio.to_thread(logging.getLogger('library').info, 'one')\n"
        "    about = {'workflow_id': 'a~7', 'run_id': 'r'}\n"
        "    logging.getLogger('x').info('two', extra={'temporal_activity': about, 'version': 4})\n"
        "asyncio.run(call())\n"
        "logging.getLogger('x').info('three')"
    )
    one, two, three = [json.loads(line) for line in log(code)]
    own = ("workflow_id", "correlation_id", "version", "run_id")

    assert [one.get(name) for name in own] == ["a:1", "c-1", 3, None]
    assert [two.get(name) for name in own] == ["a:1", "c-1", 4, "r"]
    assert [three.get(name) for name in own] == [None] * 4


REQUEST = """
import http.server, threading, httpx
with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
    server.RequestHandlerClass.log_message = lambda *_: None
    threading.Thread(target=server.handle_request).start()
    httpx.get(f"http://127.0.0.1:{server.server_port}", trust_env=False)
logging.getLogger("py4j.clientserver").info("Closing down clientserver connection")
"""


def test_no_line_is_written_for_each_request() -> None:
    """A worker makes thousands a second; whoever wants to see them asks for everything."""
    assert log(REQUEST) == []
    assert any("HTTP Request: GET http://127.0.0.1" in line for line in log(REQUEST, level="debug"))


def test_a_warning_of_a_wordy_library_is_written() -> None:
    """What it can't do is worth a line."""
    (line,) = log("logging.getLogger('httpx').warning('unusual')")

    assert json.loads(line)["message"] == "unusual"


def test_a_throttle_lets_one_line_through_for_a_while() -> None:
    """Thousands of failures a second, while a server is away, are one line now and then."""
    throttle = LogThrottle()

    assert [throttle.lets_through() for _ in range(3)] == [True, False, False]
