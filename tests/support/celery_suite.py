"""Celery's own integration tests: fetched as its source distribution has them, and a plugin that changes the task."""

import json
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from dormice.celery import DormiceControl, DormiceTask
from starter.local.kafka.jars import find_cache
from tests.support.celery_app import Place


@pytest.fixture(scope="session")
def celery_parameters() -> dict[str, Any]:
    """Celery's fixture of this name: what its tests make their application with."""
    return {"task_cls": DormiceTask, "control": DormiceControl}


def unpack_suite(folder: Path, place: Place) -> Path:
    """Unpack Celery's tests, and write where dormice is into the file by which they are configured."""
    name = f"celery-{version('celery')}"
    with tarfile.open(_fetch(name)) as archive:
        wanted = (f"{name}/t/", f"{name}/pyproject.toml")  # without the code, of which the installed one is tested
        members = [member for member in archive if member.name.startswith(wanted)]
        archive.extractall(folder, members, filter="data")
    suite = folder / name
    conf = {"dormice_url": place.api, "dormice_kind": place.kind, "dormice_threshold": place.threshold}
    (suite / "integration-tests-config.json").write_text(json.dumps(conf), "utf-8")
    return suite


def _fetch(name: str) -> Path:
    """Give Celery's source distribution, from the user's cache or from the package index."""
    kept = find_cache().parent / f"{name}.tar.gz"
    if not kept.exists():
        fetching = kept.with_name(f"{name}.fetching")
        what = ["--no-binary", ":all:", "--no-deps", "--quiet", "--dest", str(fetching), name.replace("-", "==")]
        subprocess.run([sys.executable, "-m", "pip", "download", *what], check=True, timeout=120)
        (fetching / kept.name).replace(kept)
        shutil.rmtree(fetching)
    return kept
