"""The command `doctor`, as people and scripts run it."""

import asyncio
import os
import signal
import socket

import pytest

from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import find_free_port
from tests.acceptance.conftest import Run, Spawn
from tests.support.sources import documented_checks

pytestmark = pytest.mark.timeout(120)


async def test_without_a_server_one_line_says_so_and_the_rest_is_looked_at(run: Run) -> None:
    """A line for each finding, what to do below it, no colours; exit code 3."""
    ran = await run("doctor", "--data", ".", TEMPORAL_ADDRESS=f"127.0.0.1:{find_free_port()}")

    assert ran.code == 3, ran.err
    lines = ran.out.splitlines()
    (number,) = [n for n, line in enumerate(lines) if line.startswith("unreachable")]
    assert lines[number].split()[1] == "server"
    assert lines[number + 1].strip() == "do: start one with 'dormice dev' or set TEMPORAL_ADDRESS"
    (rest,) = [line for line in lines if "not looked at, see server" in line]
    assert rest.startswith("unknown      the rest      namespace, retention, search attributes")
    assert any(line.startswith("fine         handlers") for line in lines)
    assert "\x1b" not in ran.out
    assert "findings: 1 unreachable" in ran.err


async def test_what_is_found_is_told_as_json_and_the_worst_of_it_is_the_exit_code(
    run: Run, server: EmbeddedServer
) -> None:
    """A document a line; lanes that kinds would need and nobody serves are a warning, a broken handler is wrong."""
    data = ("--data", str(server.options.data))
    warned = await run("doctor", "--json", *data)
    broken = await run("doctor", "--json", *data, DORMICE_HANDLERS="no_such_module")

    assert warned.code == 1, warned.out
    assert {line["level"] for line in warned.lines} == {"fine", "warning", "unknown"}
    assert list(dict.fromkeys(line["check"] for line in warned.lines)) == documented_checks()
    (short,) = [line for line in warned.lines if line["check"] == "workers" and line["about"] == "short"]
    assert short["remedy"] == "dormice worker --lane short"
    assert all(set(line) == {"check", "about", "level", "seen", "remedy"} for line in warned.lines)
    assert broken.code == 2, broken.out
    (handlers,) = [line for line in broken.lines if line["check"] == "handlers"]
    assert handlers["level"] == "wrong"
    assert "no_such_module" in handlers["seen"]


async def test_ctrl_c_ends_it_at_once(spawn: Spawn, environment: dict[str, str]) -> None:
    """Also while it waits for a server that never answers; exit code 130."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = await spawn("doctor", "--seconds", "600", env={**environment, "TEMPORAL_ADDRESS": address})
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:
            os.kill(process.pid, signal.SIGINT)
            _, err = await process.communicate()

    assert process.returncode == 130
    assert err.decode() == "interrupted\n"


@pytest.mark.parametrize("seconds", ["0", "-1", "601"])
async def test_seconds_that_cannot_be_meant_are_refused(run: Run, seconds: str) -> None:
    """One sentence and exit code 2."""
    ran = await run("doctor", "--seconds", seconds)

    assert ran.code == 2
    assert ran.out == ""
    assert ran.err == f"dormice: --seconds: is {seconds}; give a number above 0, at most 600\n"
