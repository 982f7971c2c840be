"""What the baseline left in the database goes on: its recorded histories are replayed by the present workflow code."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner

from tests.replay.scenarios import LIVES, PACK_LIVES
from tests.support.baseline import list_histories, read_history
from tests.support.replayer import make_replayer
from workflows.message_workflow import MessageWorkflow
from workflows.pack_workflow import PackWorkflow

pytestmark = pytest.mark.xdist_group("replay")

RECORDED = list_histories()


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
async def test_a_recorded_history_replays(path: Path) -> None:
    """The present code decides, in the sandbox, as the baseline decided when it was at work."""
    replayer = make_replayer(workflows=[MessageWorkflow, PackWorkflow])

    assert (await replayer.replay_workflow(read_history(path))).replay_failure is None


def test_every_life_is_recorded() -> None:
    """No life is missing from the recordings, and none is left over."""
    assert {path.stem.rpartition("-")[0] for path in RECORDED} == {*LIVES, *PACK_LIVES}


async def do_something_else_behind_a_patch() -> None:
    """Begin one more activity, where no older code was at work."""
    if workflow.patched("something-else"):
        await workflow.execute_activity("something_else", start_to_close_timeout=timedelta(seconds=1))


@workflow.defn(name="message", sandboxed=False)
class ChangedBehindAPatch(MessageWorkflow):
    """A change as it is to be made: one more activity before everything else."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        super().__init__(wire)

    @workflow.run
    async def run(self, wire: dict[str, Any]) -> Any:
        """Do something else first."""
        await do_something_else_behind_a_patch()
        return await super().run(wire)


@workflow.defn(name="pack", sandboxed=False)
class PackChangedBehindAPatch(PackWorkflow):
    """The same, many messages at a time."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        super().__init__(wire)

    @workflow.run
    async def run(self, wire: dict[str, Any]) -> Any:
        """Do something else first."""
        await do_something_else_behind_a_patch()
        return await super().run(wire)


async def test_a_change_behind_a_patch_replays() -> None:
    """What was begun before the change goes on in the old way: the guard is all that a change needs."""
    changed = [ChangedBehindAPatch, PackChangedBehindAPatch]
    replayer = make_replayer(workflows=changed, workflow_runner=UnsandboxedWorkflowRunner())

    for path in RECORDED:
        assert (await replayer.replay_workflow(read_history(path))).replay_failure is None, path.stem
