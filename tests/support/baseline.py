"""The baseline: histories that a release left, the code of its workers, and what its interface was."""

import tarfile
from dataclasses import replace
from pathlib import Path

from temporalio.client import WorkflowHistory

from tests.support.sources import ROOT

FOLDER = ROOT / "tests" / "replay" / "baseline"
HISTORIES = FOLDER / "histories"
INTERFACE = FOLDER / "interface.json"
CODE = FOLDER / "workers.tar.xz"
PACKAGES = ("shared", "activities", "workflows", "worker")
"""What runs in a worker; the rest of a release is not recorded."""


def list_histories() -> list[Path]:
    """List the recorded runs: a file each, named by its life and its number in that life."""
    return sorted(HISTORIES.glob("*.json"))


def read_history(path: Path) -> WorkflowHistory:
    """Read one recorded run, under its own workflow id: how many cycles a first run has depends on it."""
    read = WorkflowHistory.from_json("", path.read_text("utf-8"))
    return replace(read, workflow_id=read.events[0].workflow_execution_started_event_attributes.workflow_id)


def unpack_code(folder: Path) -> Path:
    """Unpack the code of the baseline's workers, with its entry points; gives the folder to import from."""
    target = folder / "baseline"
    with tarfile.open(CODE) as archive:
        archive.extractall(target, filter="data")
    return target
