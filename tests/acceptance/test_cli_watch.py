"""`dormice watch`: a board on a terminal, lines or documents in a pipe, and what it says while the server is away."""

import asyncio
import json
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activities import Again, Context, Message, Reject, handler
from starter.control import Control
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from tests.acceptance.conftest import PROGRAM, Run, Spawn
from tests.conftest import Begin, Serve, Start, wait_until
from tests.support.processes import kill
from tests.support.pseudo_terminal import at_terminal

pytestmark = pytest.mark.timeout(120)


async def obey(message: Message, ctx: Context) -> Again | Reject:
    """Come back in an hour, or be rejected if the payload says why."""
    return Reject(message.payload) if message.payload else Again(after=timedelta(hours=1), tolerance=timedelta(0))


async def test_a_look_counts_by_kind_and_state_and_says_why_messages_are_parked(
    run: Run, serve: Serve, begin: Begin, control: Control, kind: str
) -> None:
    """Solo or packed; the lanes are those of this installation, and what is due is counted by stretches of time."""
    async with serve(handler(kind)(obey)):
        asleep = await begin(kind)
        paused = await begin(kind)
        parked = await begin(kind, payload="no such feed")
        await control.pause(kind, paused.id)
        await wait_until(lambda: asleep.has(state="active", version=1), "it sleeps")
        await wait_until(lambda: parked.has(state="parked"), "it is parked")
        look = ("watch", "--once", "--json", "--kind", kind)

        async def is_indexed() -> Any:
            counts = (await run(*look)).document["counts"][kind]
            return {state: count["count"] for state, count in counts.items()} == {
                "active": 1,
                "paused": 1,
                "parked": 1,
            }

        await wait_until(is_indexed, "the index has them")
        seen = await run(*look)
        line = await run("watch", "--once", "--kind", kind)
        narrow = await run("watch", "--once", "--json", "--kind", kind, "--state", "parked", "--lane", "short")

    found = seen.document
    assert (seen.code, seen.err, found["fault"], found["wrong"]) == (0, "", None, [])
    assert found["parked_reasons"] == {"no such feed": 1}
    assert sum(found["due"].values()) == 1
    assert {lane: status["workers"] for lane, status in found["lanes"].items()} == {"short": 1, "medium": 1, "long": 1}
    assert (line.code, line.err, line.out.count("\n")) == (0, "", 1)
    assert "UTC  1 active, 1 paused, 1 parked; 1 worker, 0 tasks wait" in line.out
    assert narrow.document["counts"][kind] == {"parked": {"count": 1, "is_exact": True}}
    assert list(narrow.document["lanes"]) == ["short"]


async def test_what_nobody_serves_is_wrong(run: Run, start: Start, kind: str) -> None:
    """With the command that helps."""
    await start(kind, scheduled_at="2036-01-01T00:00:00Z")

    async def is_told() -> Any:
        return (await run("watch", "--once", "--json", "--kind", kind)).document["wrong"]

    (wrong,) = await wait_until(is_told, "the index has it")
    assert (wrong["about"], wrong["level"]) == ("short", "wrong")
    assert wrong["seen"] == "no worker, and 1 message alive: nothing runs there"
    assert wrong["remedy"] == "dormice worker --lane short"


async def test_into_a_pipe_it_writes_a_document_a_look_until_ctrl_c(spawn: Spawn, start: Start, kind: str) -> None:
    """Each whole and at once, so that another program can follow; Ctrl-C is a fine end."""
    process = await spawn("watch", "--json", "--interval", "500ms", "--kind", kind)
    before = await read_until(process, lambda found: bool(found["counts"]))
    await start(kind, scheduled_at="2036-01-01T00:00:00Z")
    # each part of the board is read at its own pace
    after = await read_until(process, lambda found: found["counts"]["all"]["active"]["count"] and found["next_due"])
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()

    assert before["counts"]["all"]["active"] == {"count": 0, "is_exact": True}
    assert after["next_due"][0]["due_at"] == "2036-01-01T00:00:00Z"
    assert (process.returncode, err) == (0, b"")


async def read_until(
    process: asyncio.subprocess.Process, is_wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Read documents until one is wanted."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if is_wanted(document := json.loads(line)):
            return document
    pytest.fail("it has ended before")


async def test_while_the_server_is_away_it_says_so_and_goes_on_when_it_is_back(
    spawn: Spawn, environment: dict[str, str], tmp_path: Path
) -> None:
    """It keeps what it read last, and asks again by itself."""
    options = EmbeddedOptions(data=tmp_path / "data", port=find_free_port(), ui_port=None)
    async with run_embedded(options) as server:
        variables = {**environment, "TEMPORAL_ADDRESS": server.address}
        process = await spawn("watch", "--json", "--interval", "500ms", env=variables)
        await read_until(process, lambda found: not found["fault"])
        await kill(server)
        silent = await read_until(process, lambda found: found["fault"])
        await server.start()
        back = await read_until(process, lambda found: not found["fault"])
        process.send_signal(signal.SIGINT)
        await process.communicate()

    assert "the server did not answer" in silent["fault"]
    assert silent["counts"]["all"]["active"]["count"] == 0
    assert silent["answered_at"] < back["answered_at"]
    assert process.returncode == 0


@pytest.mark.parametrize("end", ["q", "\x03"], ids=["q", "Ctrl-C"])
async def test_on_a_terminal_a_board_takes_the_screen_and_gives_it_back(
    environment: dict[str, str], start: Start, kind: str, tmp_path: Path, end: str
) -> None:
    """What is wrong stands first; afterwards the terminal is as it was, with the last board on it."""
    await start(kind, scheduled_at="2036-01-01T00:00:00Z")
    async with at_terminal(str(PROGRAM), "watch", "--kind", kind, cwd=tmp_path, env=environment) as terminal:
        before = terminal.modes
        await terminal.wait_for("nothing runs there")
        terminal.press("x")  # is no command, and is not shown
        await terminal.wait_for(f"{kind}  ")
        during = terminal.modes
        terminal.press(end)
        code = await terminal.process.wait()
        await wait_until(lambda: "\x1b[?1049l" in terminal.raw.decode(), "the screen is given back")

        assert code == 0
        assert terminal.modes == before != during
        board = terminal.raw.decode().rpartition("\x1b[?1049l")[2]
        assert "\x1b[?25h" in terminal.raw.decode()
        assert board.index("nothing runs there") < board.index("KIND") < board.index("LANE")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--interval", "100ms"), "--interval: is 0.1 s; give 500ms to 1h"),
        (("--interval", "often"), "Invalid value for '--interval': is 'often', no duration"),
        (("--stat", "parked"), "No such option '--stat'. (Did you mean one of: '--set', '--state'?)"),
    ],
)
async def test_what_can_not_be_watched_is_told(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    """One sentence, exit code 2."""
    ran = await run("watch", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dormice: {sentence}")


async def test_without_a_server_it_ends_at_once(run: Run) -> None:
    """As every command does: what never was there is more likely a wrong address."""
    ran = await run("watch", TEMPORAL_ADDRESS=f"127.0.0.1:{find_free_port()}")

    assert (ran.code, ran.out) == (3, "")
