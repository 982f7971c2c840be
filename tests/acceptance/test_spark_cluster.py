"""`dormice spark` on a cluster: executors have the installed wheel, not this checkout, and say so when they do not."""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shared.settings import Settings
from spark.prepare.manifest import Manifest
from starter.local.embedded import EmbeddedServer
from tests.support.clusters import run_cluster
from tests.support.manifests import write_manifest
from tests.support.processes import run_to_end
from tests.support.wheels import build_wheel, install_extras, make_environment

pytestmark = [pytest.mark.heavy, pytest.mark.long, pytest.mark.timeout(400)]

COUNT = 300
JOB = "from starter.cli.main import main\n\nmain()\n"

Ran = tuple[int, str, str]
Run = Callable[..., Awaitable[Ran]]


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A standalone master and a worker."""
    async with run_cluster(tmp_path_factory.mktemp("cluster")) as master:
        yield master


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and its extra for Spark."""
    folder = tmp_path_factory.mktemp("nodes")
    return install_extras(folder, build_wheel(folder), "spark")


@pytest.fixture
def rows(tmp_path: Path, message_id: Callable[[], str]) -> Path:
    """Messages that are due tomorrow, so that no worker is needed."""
    due = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"kind": "echo", "id": message_id(), "scheduled_at": due}) for _ in range(COUNT)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def manifest(tmp_path: Path, message_id: Callable[[], str]) -> Manifest:
    """The same, prepared."""
    return write_manifest(tmp_path / "prepared", [{"kind": "echo", "id": message_id()} for _ in range(COUNT)])


@pytest.fixture
def run(server: EmbeddedServer, settings: Settings, tmp_path: Path) -> Run:
    """Run a program to its end, far from the checkout."""
    usual = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    usual |= {"TEMPORAL_ADDRESS": server.address, "DORMICE_TASK_QUEUE_PREFIX": settings.task_queue_prefix}
    usual["SPARK_LOCAL_IP"] = "127.0.0.1"

    async def run(*command: str | Path, **changes: str) -> Ran:
        return await run_to_end(*map(str, command), cwd=tmp_path, env=usual | changes)

    return run


async def test_a_cluster_prepares_and_starts(run: Run, programs: Path, cluster: str, rows: Path) -> None:
    """`--master` is all that differs from this machine alone."""
    dormice = programs / "dormice"
    place = ("--master", cluster, "--conf", "spark.executor.memory=512m")

    prepared = await run(dormice, "spark", "prepare", rows, "manifest", *place)
    started = await run(dormice, "spark", "start", "manifest", "--json", *place)

    assert prepared[0] == 0, prepared
    assert started[0] == 0, started
    assert json.loads(started[1])["now"] == {"started": COUNT, "already_running": 0, "rejected": 0}


async def test_spark_submit_runs_the_same_commands(
    run: Run, programs: Path, cluster: str, manifest: Manifest, tmp_path: Path
) -> None:
    """Three lines of Python are the job; master and addresses are those of spark-submit."""
    job = tmp_path / "job.py"
    job.write_text(JOB)

    started = await run(
        *(programs / "spark-submit", "--master", cluster, "--conf", "spark.executor.memory=512m"),
        *(job, "spark", "start", manifest.folder, "--json"),
        PYSPARK_PYTHON=str(programs / "python"),
    )

    assert started[0] == 0, started
    (told,) = [line for line in started[1].splitlines() if line.startswith("{")]  # the JVM talks there, too
    assert json.loads(told)["now"]["started"] == COUNT


async def test_executors_without_dormice_say_what_to_install(
    run: Run, programs: Path, cluster: str, manifest: Manifest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One sentence and no trace."""
    bare = make_environment(tmp_path_factory.mktemp("bare"), "pandas>=2.2,<3", "pyarrow")

    started = await run(
        *(programs / "dormice", "spark", "start", manifest.folder, "--master", cluster),
        *("--conf", "spark.executor.memory=512m"),
        PYSPARK_PYTHON=str(bare / "python"),
    )

    assert started[0] == 2, started
    assert "the executors' Python has no dormice" in started[2]
    assert "Traceback" not in started[2]
