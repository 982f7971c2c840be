"""`dormice dev`: server and worker on one machine, which end together and lose nothing, however they end."""

import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from temporalio.client import Client

from activities import Context, Done, Message, handler
from activities.registry import Registry
from shared.settings import Secret, Settings
from shared.temporal.connect import connect
from starter.control import Control
from starter.local.supervised_process import find_free_port
from tests.acceptance.conftest import PROGRAM, Run, Spawn
from tests.conftest import wait_until
from tests.support.dev import Dev, begin_dev
from tests.support.processes import is_gone
from tests.support.pseudo_terminal import at_terminal

pytestmark = pytest.mark.timeout(120)


Begin = Callable[..., Awaitable[Dev]]


@pytest.fixture
def begin(spawn: Spawn, environment: dict[str, str]) -> Begin:
    """Start `dormice dev` in this test's folder, on free ports, and wait until it greets."""

    async def begin(*arguments: str) -> Dev:
        variables = {**environment, "TEMPORAL_NAMESPACE": "elsewhere", "DORMICE_WORKFLOW_TASK_TIMEOUT": "5s"}
        return await begin_dev(spawn, *arguments, env=variables)

    return begin


async def has_version(dev: Dev, minimum: int) -> bool:
    """Say whether the message has come back this number of times."""
    assert dev.address is not None
    view = await Control(await Client.connect(dev.address), Settings()).show("echo", "hello")
    return view.status is not None and view.status["version"] >= minimum


async def start(run: Run, dev: Dev) -> None:
    """Start a message that comes back every second."""
    assert dev.address is not None
    payload = '{"delay": 1, "tolerance": 0}'
    # a task that dies with a killed worker comes again after this
    timeout = {"DORMICE_WORKFLOW_TASK_TIMEOUT": "10s"}
    ran = await run("start", "echo", "hello", "--payload", payload, TEMPORAL_ADDRESS=dev.address, **timeout)
    assert ran.code == 0, ran.err


@pytest.mark.long
async def test_messages_run_until_ctrl_c_and_go_on_the_next_time(begin: Begin, run: Run, tmp_path: Path) -> None:
    """The worker belongs to this server, whatever the environment says of another; it drains before the server ends."""
    dev = await begin("--data", "mine")
    await start(run, dev)
    await wait_until(lambda: has_version(dev, 2), "the message has come back")
    family = dev.family
    dev.process.send_signal(signal.SIGINT)
    code = await dev.process.wait()
    again = await begin("--data", "mine", "--sync", "full")
    await wait_until(lambda: has_version(again, 4), "the message goes on")
    again.process.terminate()

    assert code == 0
    assert is_gone(family)
    assert b"\ndraining the worker, then stopping the server; Ctrl-C leaves at once\n" in dev.said
    assert dev.said.index(b"draining the worker") < dev.said.index(b"worker stopped")
    assert await again.process.wait() == 0
    assert (tmp_path / "mine" / "temporal.db").exists()


LISTENING = psutil.CONN_LISTEN


async def test_a_secret_given_by_flag_is_on_no_other_command_line_and_all_listens_on_loopback(
    begin: Begin, run: Run
) -> None:
    """Everybody on a machine may read command lines; the worker has the key nevertheless, and says nothing of it."""
    key = "mine:" + "A" * 43 + "="
    dev = await begin("--set", f"encryption_keys={key}")
    assert dev.address is not None
    payload = '{"delay": 1, "tolerance": 0}'
    variables = {"TEMPORAL_ADDRESS": dev.address, "DORMICE_ENCRYPTION_KEYS": key}
    ran = await run("start", "echo", "hello", "--payload", payload, **variables)
    keyed = Settings(encryption_keys=Secret(key))
    control = Control(await connect(keyed, {"TEMPORAL_ADDRESS": dev.address}), keyed)

    async def has_run() -> bool:
        view = await control.show("echo", "hello")
        return view.status is not None and view.status["version"] > 0

    await wait_until(has_run, "the worker has read it")
    listening = {c.laddr for process in dev.family for c in process.net_connections("inet") if c.status == LISTENING}
    lines = [" ".join(process.cmdline()) for process in dev.family]
    dev.process.send_signal(signal.SIGINT)
    await dev.process.wait()

    assert ran.code == 0
    assert listening
    assert {address.ip for address in listening} <= {"127.0.0.1", "::1"}
    assert any("starter worker" in line for line in lines)
    assert not any("AAAA" in line for line in [*lines, dev.said.decode(), ran.err])


@pytest.mark.long
async def test_a_kill_9_takes_all_processes_along_and_loses_nothing(begin: Begin, run: Run) -> None:
    """Server and worker never outlive it; on the same folder the message is still there and goes on."""
    dev = await begin()
    await start(run, dev)
    await wait_until(lambda: has_version(dev, 2), "the message has come back")
    family = dev.family
    dev.process.kill()
    await dev.process.wait()
    await wait_until(lambda: is_gone(family), "server and worker are gone")

    again = await begin()
    await wait_until(lambda: has_version(again, 4), "the message goes on")
    again.process.terminate()

    assert await again.process.wait() == 0


@pytest.mark.long
async def test_a_worker_that_is_killed_is_started_again(begin: Begin, run: Run) -> None:
    """As by a handler that takes its process down: the server stays, and messages go on with a new worker."""
    dev = await begin()
    await start(run, dev)
    await wait_until(lambda: has_version(dev, 1), "the message has come back")
    for process in dev.family:
        if "-m starter worker" in " ".join(process.cmdline()) and "starter.local.parent_watch" not in process.cmdline():
            process.kill()

    await wait_until(lambda: has_version(dev, 4), "the message goes on", seconds=60)
    assert b"the server stays, and a new worker starts in" in dev.said
    dev.process.terminate()
    assert await dev.process.wait() == 0


async def test_a_worker_that_would_refuse_again_ends_it_all_with_its_code(begin: Begin, tmp_path: Path) -> None:
    """Here it can't load its handlers: its own sentence is the last word."""
    dev = await begin("--set", "handlers=none_such")
    family = dev.family

    assert await dev.process.wait() == 2
    assert b"dormice: handlers: module 'none_such' can't be imported" in dev.said
    assert b"the worker has ended with code 2\n" in dev.said
    assert is_gone(family)
    assert (tmp_path / ".dormice" / "temporal.db").exists()


async def test_a_server_that_ends_by_itself_ends_it_all(begin: Begin) -> None:
    """One sentence names the log to read."""
    dev = await begin()
    family = dev.family
    for process in family:
        if process.name() == "temporal" and "server" in process.cmdline():
            process.kill()

    assert await dev.process.wait() == 2
    assert b"dormice: the embedded server has ended by itself; read .dormice/server.log\n" in dev.said
    assert is_gone(family)


async def test_one_folder_serves_one_server(begin: Begin, run: Run) -> None:
    """A second one on other ports would believe that the same messages are its own."""
    dev = await begin()
    second = await run("dev", "--port", "0", "--no-ui", "--page-port", "0")
    dev.process.terminate()

    assert (second.code, second.out) == (2, "")
    assert second.err.startswith("dormice: --data: .dormice is in use by another server; stop that one")
    assert second.err.count("\n") == 1
    assert await dev.process.wait() == 0


@pytest.mark.parametrize("flag", ["--port", "--ui-port", "--page-port"])
async def test_a_port_that_is_taken_is_named(run: Run, flag: str) -> None:
    """The sentence says what to change."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        free = {option: str(find_free_port()) for option in ("--port", "--ui-port", "--page-port")}
        ports = {**free, flag: str(port)}
        ran = await run("dev", *(word for pair in ports.items() for word in pair))

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dormice: {flag}: port {port} is taken by another program (")
    # what can be left out is said to be
    without = {"--ui-port": ", or leave it out with --no-ui\n", "--page-port": ", or leave it out with --no-page\n"}
    assert ran.err.endswith(without.get(flag, f"; stop that one or choose another with {flag}\n"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "file"], "--data: file can't be used (File exists); choose another folder"),
        (["--port", "17233", "--ui-port", "17233"], "--ui-port: is 17233, the same as --port; choose another"),
        (["--port", "17233", "--page-port", "17233"], "--page-port: is 17233, the same as --port; choose another"),
    ],
)
async def test_what_can_not_work_is_told_in_one_sentence(
    run: Run, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    """Exit code 2, before any process is started."""
    (tmp_path / "file").touch()

    ran = await run("dev", "--page-port", "0", *arguments)

    assert (ran.code, ran.out, ran.err) == (2, "", f"dormice: {sentence}\n")


async def test_the_page_tells_of_its_messages_and_takes_changes_after_a_sign_in(begin: Begin, run: Run) -> None:
    """It says where it is, and the token that it wants; without the page it says nothing of it."""
    dev = await begin("--page-writes")
    await start(run, dev)
    told = dev.said.decode()
    address = re.findall(r"^page     (\S+)$", told, re.MULTILINE)[0]
    token = re.findall(r"sign in at .*/sign-in with this token.*\n  (\S+)\n", told)[0]
    async with httpx.AsyncClient(base_url=address, timeout=60) as browser:
        listed = await browser.get("/messages", params={"kind": "echo"})
        refused = await browser.post("/messages/echo/hello/pause")
        await browser.post("/sign-in", data={"token": token})
        paused = await browser.post("/messages/echo/hello/pause", data={"reason": "by a person"})
    dev.process.terminate()
    code = await dev.process.wait()
    silent = await begin("--no-page")
    silent.process.terminate()

    assert "/messages/echo/hello" in listed.text
    assert (refused.status_code, paused.status_code, code) == (403, 303, 0)
    assert await silent.process.wait() == 0
    assert b"page  " not in silent.said
    assert token.encode() not in dev.said.replace(f"  {token}".encode(), b"", 1)


async def test_on_a_terminal_it_shows_a_board_and_keeps_the_log_in_a_file(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """What the worker says does not destroy the board; Ctrl-C drains below it and gives the terminal back as it was."""
    command = (str(PROGRAM), "dev", "--port", "0", "--no-ui", "--page-port", "0")
    async with at_terminal(*command, cwd=tmp_path, env=environment, size=(50, 100)) as terminal:
        before = terminal.modes
        await terminal.wait_for("nothing is wrong")
        log = tmp_path / ".dormice" / "worker.log"
        await wait_until(lambda: "worker started" in log.read_text("utf-8"), "the worker logs into the file")
        terminal.press("\x03")
        code = await terminal.process.wait()
        await terminal.wait_for("draining the worker, then stopping the server")

        assert code == 0
        assert "log      .dormice/worker.log, what the worker and its handlers say" in terminal.said
        assert "worker started" not in terminal.said
        assert terminal.said.index("LANE") < terminal.said.index("draining the worker")
        assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l")
        assert terminal.modes == before


async def test_without_a_board_the_log_stands_on_the_terminal(environment: dict[str, str], tmp_path: Path) -> None:
    """As it does in a pipe."""
    command = (str(PROGRAM), "dev", "--port", "0", "--no-ui", "--page-port", "0", "--no-board")
    async with at_terminal(*command, cwd=tmp_path, env=environment) as terminal:
        await terminal.wait_for("worker started")
        terminal.press("\x03")

        assert await terminal.process.wait() == 0
        assert "LANE" not in terminal.said
        assert not (tmp_path / ".dormice" / "worker.log").exists()


async def test_what_a_worker_refuses_is_said_above_the_board(environment: dict[str, str], tmp_path: Path) -> None:
    """Its own sentence would be in the file alone."""
    command = (str(PROGRAM), "dev", "--port", "0", "--no-ui", "--page-port", "0", "--set", "handlers=none_such")
    async with at_terminal(*command, cwd=tmp_path, env=environment, size=(50, 200)) as terminal:
        assert await terminal.process.wait() == 2
        await terminal.wait_for("the worker has ended with code 2")
        assert "dormice: handlers: module 'none_such' can't be imported" in terminal.said


RELOADED = """
from activities import Context, Done, Message, handler

@handler("reloaded")
async def tell(message: Message, ctx: Context) -> Done:
    return Done({result!r})
"""


@pytest.mark.long
async def test_with_reload_the_worker_follows_its_handlers(
    spawn: Spawn, environment: dict[str, str], tmp_path: Path
) -> None:
    """The next call is made by the new code; code that can't be loaded is told, and what ran before goes on."""
    file = tmp_path / "reloaded.py"
    file.write_text(RELOADED.format(result="old"), "utf-8")
    path = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    env = {**environment, "DORMICE_HANDLERS": "reloaded", "PYTHONPATH": path}
    dev = await begin_dev(spawn, "--reload", env=env)
    assert dev.address is not None
    client = await Client.connect(dev.address)
    settings = Settings(task_queue_prefix=environment["DORMICE_TASK_QUEUE_PREFIX"])
    control = Control(client, settings, Registry([("the test", handler("reloaded")(stand_in))]))

    async def call(name: str) -> Any:
        await control.start({"kind": "reloaded", "id": name})
        return await client.get_workflow_handle(f"reloaded:{name}").result()

    async def edit(text: str, said: bytes) -> None:
        seen = dev.said.count(said)
        file.write_text(text, "utf-8")
        await wait_until(lambda: dev.said.count(said) > seen, f"it says {said!r}")

    await wait_until(lambda: b"worker.run: worker started" in dev.said, "the first worker runs", 60)
    server = [process for process in dev.family if "start-dev" in process.cmdline()]
    results = [(await call("1"))["result"]]
    await edit(RELOADED.format(result="new"), b"worker.run: worker started")
    results.append((await call("2"))["result"])
    await edit(RELOADED.format(result="bad") + "def broken(:", b"the worker goes on with the code that it has")
    results.append((await call("3"))["result"])
    await edit(RELOADED.format(result="mended"), b"worker.run: worker started")
    results.append((await call("4"))["result"])
    stays = [process for process in dev.family if "start-dev" in process.cmdline()]
    dev.process.send_signal(signal.SIGINT)

    assert results == ["old", "new", "new", "mended"]
    assert dev.said.count(b"reloaded.py has changed: the worker starts anew") == 2
    assert f"correct {file}, line 7".encode() in dev.said
    assert server == stays != []
    assert await dev.process.wait() == 0


async def stand_in(message: Message, ctx: Context) -> Done:
    """Only its kind counts: the handler that runs is the one in the file."""
    return Done()


@pytest.mark.long
async def test_with_reload_handlers_that_can_not_be_loaded_wait_to_be_mended(
    spawn: Spawn, environment: dict[str, str], tmp_path: Path
) -> None:
    """The server stays meanwhile, with all that is in it."""
    file = tmp_path / "reloaded.py"
    file.write_text("def broken(:", "utf-8")
    path = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    env = {**environment, "DORMICE_HANDLERS": "reloaded", "PYTHONPATH": path}
    dev = await begin_dev(spawn, "--reload", env=env)
    await wait_until(lambda: b"the worker starts anew when its handlers have changed" in dev.said, "it waits", 60)
    file.write_text(RELOADED.format(result="mended"), "utf-8")
    await wait_until(lambda: b"worker.run: worker started" in dev.said, "a worker runs", 60)
    dev.process.send_signal(signal.SIGINT)

    assert await dev.process.wait() == 0
    assert f"correct {file}, line 1".encode() in dev.said
