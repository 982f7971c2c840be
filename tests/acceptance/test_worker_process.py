"""Worker processes as an operator sees them: signals, exit codes, one sentence a refusal, and what survives a kill."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from examples.ledger import Ledger
from shared.lanes import task_queue
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import pack_workflow_id
from shared.packs.names import AWAIT_CALLS
from shared.settings import Settings
from starter.control import Control
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.steering.keepers import IdleControl
from tests.conftest import Start, wait_until
from tests.support.processes import is_gone
from worker.processes import DEATHS_MAX, ChildProcess

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

TRYING_AGAIN = "no server yet: trying again"

HANDLERS = '''
"""Handlers that are at work for as long as a test wants."""

import asyncio
import logging
import time
from datetime import timedelta
from pathlib import Path

from activities import Context, Done, Message, handler
from examples.ledger import ledgered


@handler("gated", timeout=timedelta(seconds=30))
@ledgered
async def wait_for_gate(message: Message, ctx: Context) -> Done:
    while not Path(message.payload["gate"]).exists():
        await asyncio.sleep(0.05)
    return Done(ctx.attempt)


wait_packed = handler("gated-packed", timeout=timedelta(seconds=30))(wait_for_gate.function)


@handler("dropping")
@ledgered
async def drop(message: Message, ctx: Context) -> Done:
    if not (once := Path(message.payload["once"])).exists():
        once.touch()
        logging.getLogger("temporalio.core").error("Extra buffered run should not have produced an activation")
        await asyncio.sleep(message.payload["seconds"])
    return Done()


@handler("blocking")
@ledgered
async def block(message: Message, ctx: Context) -> Done:
    time.sleep(120)
    return Done()
'''


@dataclass(frozen=True, slots=True)
class Running:
    """A worker process that a test started."""

    process: subprocess.Popen[bytes]
    log: Path
    family: dict[int, psutil.Process] = field(default_factory=dict[int, psutil.Process])
    """Children that were seen, by id; they may outlive it for a while."""

    @property
    def children(self) -> dict[int, psutil.Process]:
        """The processes it keeps, by id."""
        found = {child.pid: child for child in psutil.Process(self.process.pid).children()}
        self.family.update(found)
        return found

    @property
    def output(self) -> str:
        """What it wrote to standard error."""
        return self.log.read_text()

    def says(self, text: str) -> Callable[[], bool]:
        """Whether it has written this."""
        return lambda: text in self.output

    async def exit_code(self) -> int:
        """Wait for its end."""
        await wait_until(lambda: self.process.poll() is not None, "the worker process ends")
        return self.process.returncode

    async def ready(self) -> tuple[int, dict[str, Any]]:
        """Ask /readyz, wherever it is."""
        connections = psutil.Process(self.process.pid).net_connections("tcp")
        port = next((c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN), None)
        if port is None:
            return 0, {}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            answer = await http.get(f"http://127.0.0.1:{port}/readyz")
        return answer.status_code, answer.json()

    async def alive(self) -> int:
        """Ask /healthz, wherever it is; gives the status."""
        connections = psutil.Process(self.process.pid).net_connections("tcp")
        (port,) = [c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN]
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            answer = await http.get(f"http://127.0.0.1:{port}/healthz")
        return answer.status_code

    async def until_ready(self) -> dict[str, Any]:
        """Wait until /readyz answers 200."""

        async def body() -> dict[str, Any] | None:
            status, found = await self.ready()
            return found if status == 200 else None

        return await wait_until(body, "the worker is ready")


Run = Callable[..., Running]


@pytest.fixture
def run(server: EmbeddedServer, settings: Settings, tmp_path: Path, ledger: Ledger) -> Generator[Run]:
    """Start `python -m worker FLAGS…` on queues of the test's own; whatever is left of it is killed at the end."""
    (tmp_path / "gated_handlers.py").write_text(HANDLERS)
    environment = os.environ | {
        "TEMPORAL_ADDRESS": server.address,
        "DORMICE_TASK_QUEUE_PREFIX": settings.task_queue_prefix,
        "DORMICE_HANDLERS": "gated_handlers",
        "PYTHONPATH": str(tmp_path),
    }
    started: list[Running] = []

    def run(*flags: str, **changes: str) -> Running:
        log = tmp_path / f"worker-{len(started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "worker", *flags], env=environment | changes, stderr=output
            )
        started.append(Running(process, log))
        return started[-1]

    yield run
    for running in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            running.family.update(running.children)
        running.process.kill()
        running.process.wait()
        for child in running.family.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file; handlers of kind "gated" are at work until it exists."""
    return tmp_path / "gate"


def open_gate(gate: Path) -> None:
    """Let the handlers at work finish."""
    gate.touch()


def calls(ledger: Ledger) -> list[tuple[str, int]]:
    """What the ledger holds, as (what, attempt)."""
    return [(entry.what, entry.attempt) for entry in ledger.entries]


async def is_at_work(ledger: Ledger) -> None:
    """Wait until a handler has begun."""
    await wait_until(lambda: ledger.entries, "a handler is at work")


@pytest.mark.parametrize("lane", ["short", "medium"])
async def test_sigterm_lets_a_handler_at_work_finish(
    run: Run, start: Start, ledger: Ledger, gate: Path, lane: str
) -> None:
    """The first signal drains: the handler ends by itself, its outcome counts, the exit code is 0."""
    running = run("--lane", lane, "--processes", "1")
    message = await start("gated", lane=lane, payload={"gate": str(gate)})
    await is_at_work(ledger)

    running.process.terminate()
    await wait_until(running.says("worker draining"), "the worker drains")
    open_gate(gate)

    assert await running.exit_code() == 0
    assert calls(ledger) == [("began", 1), ("done", 1)]

    run("--lane", lane, "--processes", "1")

    assert (await message.result())["state"] == "done"
    assert calls(ledger) == [("began", 1), ("done", 1)]


@pytest.mark.parametrize("lane", ["short", "medium"])
async def test_a_handler_that_outlasts_the_drain_time_is_handed_back(
    run: Run, start: Start, *, control: Control, ledger: Ledger, gate: Path, lane: str
) -> None:
    """It is cut off and run again by another worker, and that is no failed attempt."""
    running = run("--lane", lane, "--processes", "1", "--drain-seconds", "0.5")
    message = await start("gated", lane=lane, payload={"gate": str(gate)})
    await is_at_work(ledger)

    running.process.terminate()

    assert await running.exit_code() == 0
    assert calls(ledger) == [("began", 1), ("CancelledError", 1)]

    open_gate(gate)
    run("--lane", lane, "--processes", "1")

    assert (await message.result())["result"] == 1
    assert calls(ledger) == [("began", 1), ("CancelledError", 1), ("began", 1), ("done", 1)]
    decisions = (await control.show("gated", message.id.partition(":")[2])).decisions
    assert [decision["what"] for decision in decisions] == ["started", "handed_back", "done"]


@pytest.mark.long
async def test_the_drain_time_passes_once(
    run: Run, start: Start, client: Client, *, settings: Settings, ledger: Ledger, gate: Path
) -> None:
    """Handlers that outlast it are handed back together, be their messages packed or not."""
    running = run("--lane", "short", "--processes", "1", "--drain-seconds", "12")
    await start("gated", payload={"gate": str(gate)})
    starter = BulkStarter(client, settings, encodings={"gated-packed": Pack(packs=1)})
    await starter.start(Envelope(kind="gated-packed", id="a", lane="short", payload={"gate": str(gate)}), None)
    pack = client.get_workflow_handle(pack_workflow_id("gated-packed", 0))

    async def is_in_flight() -> bool:
        pending = (await pack.describe()).raw_description.pending_activities
        return [activity.activity_type.name for activity in pending] == [AWAIT_CALLS]

    await wait_until(is_in_flight, "the pack waits for its call")
    running.process.terminate()

    assert await running.exit_code() == 0
    assert Counter(calls(ledger)) == {("began", 1): 2, ("CancelledError", 1): 2}


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_second_signal_ends_everything_at_once(
    run: Run, start: Start, ledger: Ledger, gate: Path, processes: int
) -> None:
    """Exit code 130, and no process is left, although a handler is at work and there is time to drain."""
    running = run("--processes", str(processes), "--drain-seconds", "300")
    await start("gated", payload={"gate": str(gate)})
    await is_at_work(ledger)
    children = running.children

    running.process.terminate()
    await wait_until(running.says("worker draining"), "the worker drains")
    running.process.send_signal(signal.SIGINT)

    assert await running.exit_code() == 130
    await wait_until(lambda: is_gone(children.values()), "the children are gone")
    assert len(children) == (0 if processes == 1 else processes)
    assert calls(ledger) == [("began", 1)]


async def test_what_the_settings_say_of_its_lanes_is_told_to_the_server(
    run: Run, client: Client, settings: Settings
) -> None:
    """Weights of tenants, and that idle capacity is spent: both before the worker serves anybody."""
    running = run(
        "--lane", "short", "--processes", "1", DORMICE_IDLE_LANES="short", DORMICE_TENANT_WEIGHTS="acme=3,b=0.5"
    )
    await wait_until(running.says("worker started"), "it serves")

    queue = TaskQueue(name=task_queue(settings.task_queue_prefix, "short"))
    described = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=queue,
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            report_config=True,
        )
    )
    assert dict(described.config.fairness_weight_overrides) == {"acme": 3.0, "b": 0.5}
    idle = IdleControl(client, settings)

    async def is_on() -> bool:
        return (await idle.status("short")).is_on

    await wait_until(is_on, "idle capacity is spent")
    await idle.switch("short", is_on=False)


@pytest.mark.parametrize(
    ("processes", "seconds"),
    [
        pytest.param(1, 0, id="drains"),
        pytest.param(1, 100, id="can't drain", marks=pytest.mark.long),
        pytest.param(2, 0, id="a child", marks=pytest.mark.long),
    ],
)
async def test_a_process_with_a_stuck_workflow_begins_anew(
    run: Run, start: Start, tmp_path: Path, processes: int, seconds: int
) -> None:
    """The SDK's core reports that it has dropped something: the process drains as far as it can, another takes over."""
    running = run("--lane", "short", "--processes", str(processes), "--drain-seconds", "0")
    message = await start("dropping", payload={"once": str(tmp_path / "once"), "seconds": seconds})
    await wait_until(running.says("a workflow is stuck in this process"), "it is found")
    await wait_until(lambda: running.output.count("worker started") == processes + 1, "there is another worker")

    assert (await message.result())["state"] == "done"
    assert running.process.poll() is None


@pytest.mark.long
async def test_a_stuck_process_that_is_told_to_end_does_not_begin_anew(run: Run, start: Start, tmp_path: Path) -> None:
    """Whoever stops it finds it gone, though it was about to begin again by itself."""
    running = run("--lane", "short", "--processes", "1", "--drain-seconds", "0")
    await start("dropping", payload={"once": str(tmp_path / "once"), "seconds": 100})
    await wait_until(running.says("a workflow is stuck in this process"), "it is found")
    running.process.terminate()

    # the signal may come when it hears signals no more, or the new one not yet: then the system ends it
    assert await running.exit_code() in {1, -signal.SIGTERM}
    assert running.output.count("worker started") == 1


async def test_a_second_signal_is_heard_while_a_handler_blocks(run: Run, start: Start, ledger: Ledger) -> None:
    """A handler that never lets the event loop turn can't keep its process."""
    running = run("--lane", "medium", "--processes", "1", "--drain-seconds", "300")
    await start("blocking", lane="medium")
    await is_at_work(ledger)

    running.process.terminate()
    running.process.send_signal(signal.SIGINT)

    assert await running.exit_code() == 130


@pytest.mark.long
async def test_a_handler_that_blocks_does_not_outlast_the_drain_time_for_ever(
    run: Run, start: Start, ledger: Ledger
) -> None:
    """What can't be handed back is ended by force a moment after the drain time, with exit code 1."""
    running = run("--lane", "medium", "--processes", "2", "--drain-seconds", "0")
    await start("blocking", lane="medium")
    await is_at_work(ledger)

    running.process.terminate()

    assert await running.exit_code() == 1
    assert "drain time is over and handlers still run" in running.output


async def test_sigterm_drains_all_processes(run: Run, start: Start, ledger: Ledger, gate: Path) -> None:
    """The parent passes the order on, waits for its children, and says meanwhile that it is not ready."""
    running = run("--processes", "2", "--health-port", "0")
    body = await running.until_ready()
    assert sorted(running.children) == sorted(process["pid"] for process in body["processes"])
    await start("gated", lane="medium", payload={"gate": str(gate)})
    await is_at_work(ledger)

    running.process.terminate()
    await wait_until(running.says("worker draining"), "the children drain")
    status, body = await running.ready()
    open_gate(gate)

    assert (status, body["reason"]) == (503, "draining")
    assert await running.exit_code() == 0
    assert calls(ledger) == [("began", 1), ("done", 1)]


@pytest.mark.long
async def test_a_killed_child_is_replaced_and_its_messages_go_on(
    run: Run, start: Start, ledger: Ledger, gate: Path
) -> None:
    """SIGKILL of one process of two, then of the other: each is replaced, and what they had at work is run again.

    Its handler sees that it is another attempt.
    """
    running = run("--lane", "short", "--processes", "2", "--health-port", "0")
    await running.until_ready()
    before = running.children
    messages = [await start("gated", payload={"gate": str(gate)}) for _ in range(4)]
    await wait_until(lambda: len(ledger.entries) == len(messages), "all four are at work")

    for number, child in enumerate(before.values(), start=1):
        child.kill()
        await wait_until(
            lambda expected=number: len(running.children.keys() - before.keys()) == expected, "the child is replaced"
        )
        await running.until_ready()
    open_gate(gate)

    numbers = [(await message.result())["result"] for message in messages]
    assert min(numbers) > 1


async def test_children_drain_when_their_parent_is_killed(run: Run, start: Start, ledger: Ledger, gate: Path) -> None:
    """SIGKILL of the parent: its children notice, let the handler at work finish, and end."""
    running = run("--processes", "2")
    await start("gated", lane="medium", payload={"gate": str(gate)})
    await is_at_work(ledger)
    children = running.children
    assert len(children) == 2

    running.process.kill()
    await wait_until(running.says("worker draining"), "the children drain")
    open_gate(gate)

    await wait_until(lambda: is_gone(children.values()), "the children are gone")
    assert calls(ledger) == [("began", 1), ("done", 1)]


async def test_a_parent_gives_up_on_a_child_that_keeps_dying(run: Run) -> None:
    """Five deaths within a minute are no accident any more: exit code 1, for whoever supervises the parent."""
    running = run("--lane", "short", "--processes", "2")
    killed: set[int] = set()

    def kill_newcomers() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            for pid, child in running.children.items():
                child.kill()
                killed.add(pid)
        return running.process.poll() is not None

    await wait_until(kill_newcomers, "the parent gives up")

    assert running.process.returncode == 1
    assert DEATHS_MAX <= len(killed) <= 2 * DEATHS_MAX
    assert "worker process keeps dying: giving up" in running.output


def test_pauses_before_a_restart_double_and_end() -> None:
    """Each death inside a minute doubles the pause, within half of it for jitter; the fifth ends the attempts."""
    child = ChildProcess(1)
    pauses = [child.next_pause(-9, now) for now in (0.0, 10.0, 20.0, 30.0, 40.0)]

    assert pauses.pop() is None
    for pause, full in zip(pauses, (0.5, 1.0, 2.0, 4.0), strict=True):
        assert pause is not None
        assert full / 2 <= pause <= full


def test_a_refusal_is_not_tried_again() -> None:
    """Exit code 2: a person must change something first."""
    assert ChildProcess(1).next_pause(2, 0.0) is None


@pytest.mark.parametrize(("code", "seconds"), [(-9, 16.0), (3, 1.0)], ids=["rare deaths", "no server"])
def test_some_deaths_never_add_up(code: int, seconds: float) -> None:
    """A child that dies now and then, or finds no server, is started again for ever."""
    child = ChildProcess(1)

    assert all(child.next_pause(code, number * seconds) is not None for number in range(50))


@dataclass(frozen=True, slots=True)
class Refusal:
    """What makes a worker refuse to start, its exit code, and words of its sentence."""

    code: int
    words: str
    flags: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


REFUSALS = {
    "unknown namespace": Refusal(2, "no namespace 'nowhere'", (), (("TEMPORAL_NAMESPACE", "nowhere"),)),
    "missing module": Refusal(
        2, "module 'no_such_module' can't be imported", (), (("DORMICE_HANDLERS", "no_such_module"),)
    ),
    "module without handlers": Refusal(2, "json holds no handler", (), (("DORMICE_HANDLERS", "json"),)),
    "bad setting": Refusal(2, "log_level (from environment): is 'loud'", (), (("DORMICE_LOG_LEVEL", "loud"),)),
    "no processes": Refusal(2, "'--processes': is '0'", ("--processes", "0")),
    "negative drain": Refusal(2, "--drain-seconds: is -1", ("--drain-seconds", "-1")),
    "drain of no length": Refusal(2, "--drain-seconds: is nan", ("--drain-seconds", "nan")),
    "impossible port": Refusal(2, "'--health-port': is '70000'", ("--health-port", "70000")),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
async def test_a_worker_that_can_not_start_says_why(run: Run, refusal: Refusal) -> None:
    """One sentence on standard error, no traceback, exit code 2."""
    await _assert_refused(run(*refusal.flags, **dict(refusal.environment)), refusal.code, refusal.words)


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_no_server_at_the_start_is_worth_another_try(run: Run, processes: str) -> None:
    """By exit code 3 a supervisor knows that the same command may succeed later."""
    port = find_free_port()
    running = run("--processes", processes, TEMPORAL_ADDRESS=f"127.0.0.1:{port}")

    await _assert_refused(running, 3, f"no Temporal server answers at 127.0.0.1:{port}")


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_worker_that_waits_for_the_server_is_alive_but_not_ready_until_it_comes(
    run: Run, settings: Settings, tmp_path: Path, processes: str
) -> None:
    """It tells why, no supervisor starts it anew, and it serves by itself once the server is there."""
    options = EmbeddedOptions(data=tmp_path / "late", port=find_free_port(), ui_port=None)
    address = f"127.0.0.1:{options.port}"
    running = run("--processes", processes, "--wait-for-server", "--health-port", "0", TEMPORAL_ADDRESS=address)

    async def reason() -> str:
        status, found = await running.ready()
        assert status in (0, 503)
        return found.get("reason", "")

    async def has_tried() -> bool:
        return (await reason()).startswith("waits for the server: ") and running.output.count(TRYING_AGAIN) > 1

    await wait_until(has_tried, "it has tried twice")
    assert f"no Temporal server answers at {address}" in await reason()
    assert await running.alive() == 200

    async with run_embedded(options) as server:
        await running.until_ready()
        client = await server.connect(settings)
        envelope = Envelope(kind="echo", id="late", lane="short", payload={"cycles": 1})
        receipt = await BulkStarter(client, settings).start(envelope, None)
        assert receipt.run_id, receipt
        await client.get_workflow_handle(receipt.workflow_id).result()
        running.process.terminate()
        assert await running.exit_code() == 0


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_sigterm_ends_a_worker_that_waits_for_the_server(run: Run, processes: str) -> None:
    """There is nothing to drain: exit code 0."""
    running = run("--processes", processes, "--wait-for-server", TEMPORAL_ADDRESS=f"127.0.0.1:{find_free_port()}")
    await wait_until(running.says(TRYING_AGAIN), "it waits")

    running.process.terminate()

    assert await running.exit_code() == 0


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_what_a_person_must_change_is_not_waited_for(run: Run, processes: str) -> None:
    """A wrong setting ends the worker with code 2, also when it would wait for the server."""
    running = run("--processes", processes, "--wait-for-server", DORMICE_HANDLERS="nowhere_to_be_found")

    await _assert_refused(running, 2, "nowhere_to_be_found")


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_sigterm_is_heard_while_the_server_does_not_answer(run: Run, processes: str) -> None:
    """Before anything polls there is nothing to drain: the worker ends at once, with exit code 0."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        running = run("--processes", processes, TEMPORAL_ADDRESS=f"127.0.0.1:{silent.getsockname()[1]}")
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:
            running.process.terminate()

            assert await running.exit_code() == 0


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_taken_health_port_is_refused(run: Run, processes: str) -> None:
    """The sentence names the port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port: int = other.getsockname()[1]
        running = run("--processes", processes, "--health-port", str(port))

        await _assert_refused(running, 2, f"health-port: 127.0.0.1:{port} is taken")


async def test_a_taken_metrics_port_is_refused_before_any_process_begins(run: Run, metrics_address: str) -> None:
    """Also that of the second process: the sentence names it, once, and nothing is tried again."""
    host, _, port = metrics_address.rpartition(":")
    with socket.create_server((host, int(port) + 1)):
        running = run("--processes", "2", DORMICE_TELEMETRY_PROMETHEUS=metrics_address)

        await _assert_refused(running, 2, f"telemetry_prometheus: {host}:{int(port) + 1} can't be opened")

    assert "process_started" not in running.output


async def test_a_missing_search_attribute_is_named_with_its_remedy(run: Run, client: Client) -> None:
    """A namespace without the attributes is refused with the command that creates them."""
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(
            namespace="bare",
            workflow_execution_retention_period=Duration(seconds=round(timedelta(days=1).total_seconds())),
        )
    )
    await wait_until(lambda: _is_known(client, "bare"), "the namespace is known to all of the server")

    running = run(TEMPORAL_NAMESPACE="bare")

    await _assert_refused(running, 2, "temporal operator search-attribute create --name Kind --type Keyword")


async def _assert_refused(running: Running, code: int, words: str) -> None:
    assert await running.exit_code() == code
    lines = running.output.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("dormice: ")
    assert words in lines[0]


async def _is_known(client: Client, namespace: str) -> bool:
    other = Client(client.service_client, namespace=namespace)
    try:
        await other.count_workflows()
    except RPCError as exc:
        assert exc.status is RPCStatusCode.NOT_FOUND  # noqa: PT017 — any other answer is a failure of the test
        await asyncio.sleep(0.2)
        return False
    return True
