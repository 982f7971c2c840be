"""The way back: what is not paused yet is waited for, and nothing ends here that has not been put back."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta

from activities import Again, Context, Message, handler
from starter.control import Control
from tests.conftest import Begin, Serve, Start, wait_until
from tests.support.moving_in import Move
from tests.support.processes import ending_family, run_to_end

EXPORT = "python -m examples.moving_in.pending export {} --to pending.jsonl"


@contextlib.asynccontextmanager
async def exporting(moving: Move, kind: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run an export for a `with` block."""
    process = await asyncio.create_subprocess_exec(
        *EXPORT.format(kind).split(), cwd=moving.folder, env=moving.environment, stderr=asyncio.subprocess.PIPE
    )
    async with ending_family(process):
        yield process


async def read_line(process: asyncio.subprocess.Process) -> str:
    """Give the next line of a process's talk."""
    assert process.stderr is not None
    return (await process.stderr.readline()).decode()


def in_an_hour() -> datetime:
    """Give a moment at which nothing is due during a test."""
    return datetime.now(UTC) + timedelta(hours=1)


async def test_the_export_waits_until_a_pause_has_arrived(
    move: Callable[..., Move], begin: Begin, control: Control, serve: Serve, kind: str
) -> None:
    """A pause takes effect a moment after it was sent: until then a message is active, and no reason to give up."""
    moving = move("The way back")
    async with serve(moving.handler()):
        await begin(kind, "a", scheduled_at=in_an_hour(), payload={"item": "a"})
        async with exporting(moving, kind) as process:
            said = await read_line(process)
            await control.pause(kind, "a")
            assert await process.wait() == 0

    (line,) = (moving.folder / "pending.jsonl").read_text().splitlines()
    assert said == f"{kind}:a is active; waiting up to 60 s until all are paused\n"
    assert json.loads(line)["payload"] == {"item": "a"}


async def test_the_export_waits_until_a_message_can_answer(
    move: Callable[..., Move], start: Start, control: Control, serve: Serve, kind: str
) -> None:
    """Its worker is busy, or is about to start: the index still says active, and does not know what it holds."""
    moving = move("The way back")
    await start(kind, "a", scheduled_at=in_an_hour(), payload={"item": "a"})
    await control.pause(kind, "a")
    async with exporting(moving, kind) as process:
        said = await read_line(process)
        async with serve(moving.handler(), lanes=("short",)):
            assert await process.wait() == 0

    (line,) = (moving.folder / "pending.jsonl").read_text().splitlines()
    assert said == f"{kind}:a does not answer yet; waiting up to 60 s until all are paused\n"
    assert json.loads(line)["payload"] == {"item": "a"}


async def test_the_export_refuses_while_a_message_is_active(
    move: Callable[..., Move], begin: Begin, serve: Serve, kind: str
) -> None:
    """One that nobody has paused may run here at any time: nothing is written, and one sentence says what to do."""
    moving = move("The way back")
    async with serve(moving.handler()):
        await begin(kind, "a", scheduled_at=in_an_hour(), payload={"item": "a"})
        command = (*EXPORT.format(kind).split(), "--wait", "0")
        code, _, err = await run_to_end(*command, cwd=moving.folder, env=moving.environment)

    hint = f"pause them all with 'dormice pause --kind {kind} --yes', and run this again"
    assert (code, err) == (2, f"pending: {kind}:a: is active; {hint}\n")
    assert not list(moving.folder.glob("pending*"))


async def test_who_pastes_all_at_once_loses_nothing(
    move: Callable[..., Move], start: Start, control: Control, kind: str
) -> None:
    """Nothing is ended that has not been put back, whatever has failed before, as here, where no worker can tell."""
    moving = move("The way back")
    await start(kind, "a", scheduled_at=in_an_hour(), payload={"item": "a"})
    script = "".join(moving.find_scripts()).replace("export reminder", f"export {kind} --wait 0")
    script = script.replace("--kind reminder", f"--kind {kind}")
    code, _, err = await run_to_end("bash", "-c", script, cwd=moving.folder, env=moving.environment)
    found = await control.look_up(kind, "a")

    assert code != 0
    assert f"left out: {kind}:a: no worker of lane short could tell more" in err
    assert "returned.jsonl: No such file" in err
    assert (moving.folder / "pending.jsonl").read_text() == ""
    assert found.state == "active"


async def test_lines_of_json_name_messages(
    move: Callable[..., Move], begin: Begin, control: Control, serve: Serve, kind: str
) -> None:
    """What an export wrote and what `list --json` prints may be read as names; a line that names none is told."""
    moving = move("The way back")
    lines = ["{", json.dumps({"kind": kind}), json.dumps({"kind": kind, "id": "a:1", "payload": {}}), f"{kind}:b"]
    async with serve(moving.handler()):
        for name in ("a:1", "b", "c"):
            await begin(kind, name, scheduled_at=in_an_hour(), payload={"item": name})
        (moving.folder / "names").write_text("\n".join(lines))
        code, _, err = await run_to_end(
            "bash", "-c", "dormice stop - < names", cwd=moving.folder, env=moving.environment
        )

        async def are_stopped() -> bool:
            return {(await control.look_up(kind, name)).state for name in ("a:1", "b")} == {"stopped"}

        await wait_until(are_stopped, "those that are named have ended")
        other = await control.look_up(kind, "c")

    assert code == 1
    assert "line 1: is no JSON" in err
    assert "line 2: is an object without the texts kind and id; add them, or write KIND:ID" in err
    assert other.state == "active"


async def test_the_export_waits_for_a_handler_at_work(
    move: Callable[..., Move], start: Start, control: Control, serve: Serve, kind: str
) -> None:
    """Nothing may be exported before its handler has returned: what it does counts, and so does its next due time."""
    moving = move("The way back")
    began = asyncio.Event()
    may_end = asyncio.Event()

    @handler(kind, lane="medium", timeout=timedelta(seconds=50))
    async def run(message: Message, ctx: Context) -> Again:
        began.set()
        await may_end.wait()
        return Again(after=timedelta(hours=1), payload={"calls": 1})

    async with serve(run, lanes=("medium",)):
        await start(kind, "a", lane="medium")
        await began.wait()
        await control.pause(kind, "a")
        async with exporting(moving, kind) as process:
            said = await read_line(process)
            may_end.set()
            assert await process.wait() == 0

    (line,) = (moving.folder / "pending.jsonl").read_text().splitlines()
    assert said == f"{kind}:a is running; waiting up to 60 s until all are paused\n"
    assert json.loads(line)["id"] == "a"
    assert json.loads(line)["payload"] == {"calls": 1}
