"""Celery's own tests of eta, countdown, retry and revoke pass unchanged while dormice holds every task that waits."""

import os
import sys
from pathlib import Path

import pytest
from temporalio.client import Client

from shared.settings import Settings
from tests.conftest import Serve
from tests.support.celery_app import Place
from tests.support.celery_places import running_place, sending
from tests.support.celery_suite import unpack_suite
from tests.support.processes import ROOT, run_to_end

NAMES = "(eta or countdown or revoke or retry or retries) and not by_headers_complex"
"""What Celery calls its tests of tasks that wait, as pytest's `-k` selects them: 19 of 5.7."""


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_celerys_own_tests_pass(
    client: Client, serve: Serve, settings: Settings, tmp_path: Path, kind: str
) -> None:
    """Each of them, with the task's base class replaced, against Redis and a worker with processes."""
    async with running_place(client, settings, tmp_path, kind, "solo") as place, sending(serve, place):
        code, out, err = await _run(unpack_suite(tmp_path, place), place)

    assert code == 0, out + err
    assert " passed" in out.splitlines()[-1]


async def _run(suite: Path, place: Place) -> tuple[int, str, str]:
    host, port = place.broker.removeprefix("redis://").removesuffix("/0").split(":")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(suite), str(ROOT), str(ROOT / "client")]),
        "TEST_BROKER": place.broker,
        "TEST_BACKEND": place.broker,
        "REDIS_HOST": host,
        "REDIS_PORT": port,
    }
    options = ["-q", "-c", "pyproject.toml", "--rootdir", ".", "-p", "no:randomly", "-p", "no:xdist", "-W", "default"]
    plugins = ["-p", "celery.contrib.pytest", "-p", "tests.support.celery_suite"]
    files = ["t/integration/test_tasks.py", "t/integration/test_canvas.py"]
    command = (sys.executable, "-m", "pytest", *options, *plugins, *files, "-k", NAMES)

    return await run_to_end(*command, cwd=suite, env=environment)
