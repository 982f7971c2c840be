"""URLFrontier's own test suite passes unchanged against `dormice frontier`; it is run from a checkout of that project.

No package registry has the suite, so it runs only where a variable names such a checkout: docs/frontier.md says how.
"""

import os
import re
import shutil
import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from tests.support.crawlers import crawling
from tests.support.processes import frontier_process, run_to_end

VARIABLE = "URLFRONTIER_CHECKOUT"
SUITE = {"URLFrontierServiceTest": 5, "DumpURLsTest": 2}
"""The suite's classes, with the number of tests that each has in version 2.6."""

OPTIONS = (
    "--batch-mode",
    "-pl=API,client,tests",  # the service itself takes long to build, and is what dormice stands for here
    f"-Dtest={','.join(SUITE)}",
    "-DfailIfNoTests=false",
    "-Dsurefire.failIfNoSpecifiedTests=false",
    "-Dmaven.test.skip=false",
    "-DskipFormatCode=true",  # it would install a hook of Git
)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no checkout of crawler-commons/url-frontier")
@pytest.mark.skipif(shutil.which("mvn") is None, reason="mvn is not installed (Debian: apt-get install maven)")
async def test_urlfrontiers_own_tests_pass(server: EmbeddedServer, tmp_path: Path) -> None:
    """Each of them, by their number, in a copy of the checkout; Maven fetches what they are built with."""
    suite = tmp_path / "suite"
    shutil.copytree(os.environ[VARIABLE], suite, ignore=shutil.ignore_patterns(".git", "target"))
    settings = Settings(task_queue_prefix=f"test-{uuid.uuid4().hex[:10]}", patience=timedelta(seconds=20))
    options = ("--kind", f"kind-{uuid.uuid4().hex[:10]}", "--packs", "10")
    async with frontier_process(server, settings, *options) as (_, address), crawling(address):
        host, _, port = address.partition(":")
        where = (f"-Durlfrontier.host={host}", f"-Durlfrontier.port={port}")
        code, out, _ = await run_to_end("mvn", *OPTIONS, *where, "test", cwd=suite, env=os.environ)

    passed = re.findall(r"Tests run: (\d+), Failures: 0, Errors: 0, Skipped: 0, Time elapsed: .* in .*\.(\w+)", out)
    assert {name: int(count) for count, name in passed} == SUITE, out
    assert code == 0
