"""A cluster of Spark on loopback: a standalone master and a worker, ended by their ids."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pyspark

from spark.session.session import make_java_home
from starter.local.supervised_process import find_free_port
from tests.conftest import wait_until
from tests.support.processes import ending_family

LOOPBACK = "127.0.0.1"
HOME = Path(pyspark.__file__).parent


@contextlib.asynccontextmanager
async def run_cluster(folder: Path) -> AsyncGenerator[str]:
    """Run a cluster of two cores for the length of a `with` block; gives the URL of its master."""
    port = find_free_port()
    master = f"spark://{LOOPBACK}:{port}"

    place = ("--host", LOOPBACK, "--webui-port", "0")
    async with (
        _run(folder / "master.log", "org.apache.spark.deploy.master.Master", *place, "--port", str(port)) as talk,
        _run(
            folder / "worker.log",
            "org.apache.spark.deploy.worker.Worker",
            *place,
            *("--cores", "2", "--memory", "2g", "--work-dir", str(folder / "work"), master),
        ),
    ):
        await wait_until(lambda: "Registering worker" in talk.read_text(), "the worker is registered", seconds=60)
        yield master


@contextlib.asynccontextmanager
async def _run(log: Path, program: str, *arguments: str) -> AsyncGenerator[Path]:
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(str(HOME / "bin" / "spark-class"), program, *arguments),
            stdout=output,
            stderr=output,
            env={**os.environ, "JAVA_HOME": str(make_java_home()), "SPARK_DAEMON_MEMORY": "256m"},
        )
    async with ending_family(process):
        yield log
