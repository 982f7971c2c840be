"""`dormice repair`: what stands still because its workflow's task fails is found, told as that, and brought back."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities import Context, Done, Message, handler
from shared.errors import StandsStill
from shared.keepers.gates import CLOSE, GATES_WORKFLOW, GateClosure, gates_workflow_id
from shared.lanes import task_queue
from shared.settings import Settings
from starter.control import Control
from starter.steering.keepers import GateControl
from starter.steering.status.failing_workflows import find_standstill
from tests.acceptance.conftest import Run
from tests.conftest import Begin, Serve, wait_until
from workflows.keepers import LayoutWorkflow

pytestmark = pytest.mark.timeout(120)


class Broken:
    """Workflow code that can't bear a signal to pause."""

    @workflow.run
    async def run(self, _: Any) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    @workflow.signal
    async def pause(self, _: Any = None) -> None:
        """Fail the task."""
        raise ValueError("what a bad release says")


@workflow.defn(name="message")
class BrokenMessage(Broken):
    """The same under the name of a message's workflow."""

    @workflow.run
    async def run(self, _: Any) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()


@workflow.defn(name="pack")
class BrokenPack(Broken):
    """The same under the name of a pack's."""

    @workflow.run
    async def run(self, _: Any) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    @workflow.signal
    async def admit(self, _: Any = None) -> None:
        """Take newcomers."""


@pytest.mark.long
async def test_what_stands_still_is_told_and_brought_back(  # noqa: PLR0917 — fixtures
    client: Client, settings: Settings, serve: Serve, begin: Begin, control: Control, run: Run, kind: str
) -> None:
    """A bad release fails on a signal; `show` and `stop` say so, the doctor finds it, and repair keeps both signals."""

    @handler(kind)
    async def finish(message: Message, ctx: Context) -> Done:
        return Done()

    queue = task_queue(settings.task_queue_prefix, "short")
    workflows = [BrokenMessage, BrokenPack, LayoutWorkflow]
    broken = Worker(client, task_queue=queue, workflows=workflows, workflow_runner=UnsandboxedWorkflowRunner())
    async with broken:
        message = await begin(kind, payload="a")
        name = message.handle.id
        run_id = (await message.handle.describe()).run_id
        await message.handle.signal("pause", {"ids": [message.id]} if message.is_packed else None)
        await wait_until(lambda: find_standstill(client, name), "its task fails")

        if message.is_packed:
            with pytest.raises(StandsStill, match="what a bad release says"):
                await control.show(kind, message.id)
        else:
            assert "what a bad release says" in (await control.show(kind, message.id)).note
        for verb in (control.run_now, control.stop):
            with pytest.raises(StandsStill, match=r"fails .*: what a bad release says"):
                await verb(kind, message.id)
        shown = await run("show", f"{kind}:{message.id}")
        assert (shown.code, "what a bad release says" in shown.err) == (3 if message.is_packed else 0, True)
        assert "no worker" not in shown.err

        async def is_found() -> bool:
            ran = await run("repair", "--dry-run", "--json")
            assert ran.code == 0, ran.err
            return [line["workflow_id"] for line in ran.lines] == [name]

        await wait_until(is_found, "the server reports it", seconds=60)
        assert "1 workflow whose task fails over and over" in (await run("doctor")).out

    ran = await run("repair", f"{kind}:{message.id}", "--json")

    assert ran.code == 0, ran.err
    assert ran.document["signals"][-2:] == ["run_now", "stop"]
    assert ran.document["new_run_id"] != ran.document["run_id"] == run_id  # what was only tried before changed nothing
    async with serve(finish, lanes=("short",)):
        assert (await message.wait_ended())["state"] == "stopped"
        assert "nothing stands still" in (await run("repair", f"{kind}:{message.id}")).err


@workflow.defn(name=GATES_WORKFLOW)
class BrokenGates:
    """Workflow code of the gates that can't bear one that closes."""

    @workflow.run
    async def run(self, _: Any) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    @workflow.signal(name=CLOSE)
    async def close(self, _: Any = None) -> None:
        """Fail the task."""
        raise ValueError("what a bad release says")


@pytest.mark.long
async def test_the_workflow_of_the_gates_is_named_by_its_id_and_brought_back(
    client: Client, settings: Settings, serve: Serve, run: Run
) -> None:
    """Also where its first task failed already; what was closed meanwhile is closed then."""
    queue = task_queue(settings.task_queue_prefix, "short")
    name = gates_workflow_id(settings.task_queue_prefix)
    gates = GateControl(client, settings)
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client, task_queue=queue, workflows=[BrokenGates], workflow_runner=runner):
        await gates.close("host:a", GateClosure.lasting(timedelta(hours=1)))
        await wait_until(lambda: find_standstill(client, name), "its task fails")

    ran = await run("repair", name, f"{settings.task_queue_prefix}~gates", "--json")

    assert (ran.code, ran.err) == (0, "")
    assert ran.document["workflow_id"] == name
    assert ran.document["signals"] == [CLOSE]
    assert ran.document["new_run_id"] != ran.document["run_id"]

    async with serve(lanes=("short",)):
        assert list(await wait_until(lambda: gates.fetch(time.time()), "a worker has taken it in")) == ["host:a"]
