"""`dormice list --follow`: what comes, changes and ends, once each."""

import asyncio
import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities import Again, Context, Message, handler
from starter.control import Control
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from starter.steering.selection import Selection
from tests.acceptance.conftest import Run, Spawn
from tests.conftest import Begin, Serve, Start, wait_until
from tests.support.processes import kill

pytestmark = pytest.mark.timeout(120)


async def come_back(message: Message, ctx: Context) -> Again:
    """Come back in an hour."""
    return Again(after=timedelta(hours=1), tolerance=timedelta(0))


async def read(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """Read the next document."""
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


async def test_what_comes_changes_and_ends_is_printed_once(
    spawn: Spawn, serve: Serve, begin: Begin, control: Control, kind: str
) -> None:
    """Solo or packed; what is there already and stays as it is says nothing."""
    async with serve(handler(kind)(come_back), lanes=("short",)):
        quiet = await begin(kind, scheduled_at="2036-01-01T00:00:00Z")
        await wait_until(lambda: is_listed(control, kind, quiet.id), "the index has it")
        process = await spawn("list", "--follow", "--json", "--kind", kind)
        assert process.stderr is not None
        said = await process.stderr.readline()
        message = await begin(kind, scheduled_at="2036-01-01T00:00:00Z")
        found = [await read(process)]
        await control.reschedule(kind, message.id, datetime(2036, 1, 2, tzinfo=UTC))
        found.append(await read(process))
        await control.pause(kind, message.id)
        found.append(await read(process))
        await control.stop(kind, message.id)
        found.append(await read(process))
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()

    assert said == b"following 1 message; Ctrl-C ends it\n"
    assert {line["id"] for line in found} == {message.id}
    assert [(line["what"], line["state"]) for line in found] == [
        ("new", "active"),
        ("changed", "active"),
        ("changed", "paused"),
        ("ended", "stopped"),
    ]
    assert [line["due_at"] for line in found[:2]] == ["2036-01-01T00:00:00Z", "2036-01-02T00:00:00Z"]
    assert (process.returncode, out, err) == (0, b"", b"")


async def is_listed(control: Control, kind: str, name: str) -> bool:
    """Say whether a list has the message."""
    return name in [listed.id async for listed in control.list(Selection(kind=kind))]


async def test_for_people_it_prints_a_line_for_each(spawn: Spawn, start: Start, kind: str, message_id: Any) -> None:
    """With the message at the end, because its name may be long."""
    process = await spawn("list", "-f", "--kind", kind)
    name = message_id()
    assert process.stdout is not None
    header = await process.stdout.readline()
    await start(kind, id=name, scheduled_at="2036-01-01T00:00:00Z")
    line = await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    await process.communicate()

    assert header.split() == [b"AT", b"WHAT", b"STATE", b"LANE", b"DUE", b"MESSAGE"]
    assert line.decode().split()[1:] == ["new", "active", "short", "2036-01-01", "00:00:00", "UTC", f"{kind}:{name}"]
    assert process.returncode == 0


@pytest.mark.long  # the client itself tries each call again for ten seconds
async def test_it_goes_on_when_the_server_is_back(spawn: Spawn, environment: dict[str, str], tmp_path: Path) -> None:
    """It says once that there is no answer, and once that there is one again."""
    options = EmbeddedOptions(data=tmp_path / "data", port=find_free_port(), ui_port=None)
    async with run_embedded(options) as server:
        process = await spawn("list", "--follow", env={**environment, "TEMPORAL_ADDRESS": server.address})
        assert process.stderr is not None
        await process.stderr.readline()
        await kill(server)
        silent = await process.stderr.readline()
        await server.start()
        back = await process.stderr.readline()
        process.send_signal(signal.SIGINT)
        await process.communicate()

    assert silent.startswith(b"dormice: the server did not answer")
    assert back == b"the server answers again\n"
    assert process.returncode == 0


@pytest.mark.parametrize("other", [("--count",), ("--limit", "5")])
async def test_what_does_not_go_with_following_is_refused(run: Run, other: tuple[str, ...]) -> None:
    """One sentence, exit code 2."""
    ran = await run("list", "--follow", *other)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"dormice: --follow: goes on without {other[0]}; leave one of them out\n"
