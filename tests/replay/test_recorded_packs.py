"""What is read from a recorded history of a pack is what the pack itself has after replaying it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner

from shared.messages.placement import PACK_WORKFLOW
from shared.temporal.converter import DATA_CONVERTER
from starter.steering.stored.stored_pack import StoredPack, read_run
from tests.claims import check_claims
from tests.replay.scenarios import HISTORIES
from tests.replay.test_replay import RECORDED, read
from tests.replayer import make_replayer
from workflows import pack_workflow
from workflows.pack_workflow import PackWorkflow
from workflows.packs.state import PackState

PACKS = [path for path in RECORDED if f'"{PACK_WORKFLOW}"' in path.read_text()[:500]]  # it begins with the type


@pytest.mark.parametrize("path", PACKS, ids=[path.relative_to(HISTORIES).as_posix() for path in PACKS])
async def test_a_recorded_pack_is_read_as_no_more_than_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from older code and from the nastiest moments: a state that is claimed is right, and so are claimed ids."""
    replayed: list[PackState] = []

    class Seen(PackState):
        def __init__(self, wire: Mapping[str, Any]) -> None:
            super().__init__(wire)
            replayed.append(self)

    history = read(path)
    monkeypatch.setattr(pack_workflow, "PackState", Seen)
    runner = UnsandboxedWorkflowRunner()
    replayer = make_replayer(workflows=[PackWorkflow], data_converter=DATA_CONVERTER, workflow_runner=runner)
    assert (await replayer.replay_workflow(history)).replay_failure is None
    *events, last = history.events
    is_over = last.HasField("workflow_execution_continued_as_new_event_attributes")
    found = await read_run(events if is_over else [*events, last], DATA_CONVERTER)

    check_claims(found, StoredPack(state=replayed[-1]))
