"""Streams on a real Spark and a real server: whatever is killed, a restart from the checkpoint doubles nothing."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from temporalio.client import Client

from shared.settings import Settings
from spark.format.data_source import register_temporal
from spark.tasks.options import write_settings_options
from starter.local.embedded import EmbeddedServer
from starter.local.kafka.broker import EmbeddedBroker
from tests.conftest import wait_until
from tests.support.alive import check_alive, count_alive
from tests.support.manifests import read_receipts
from tests.support.processes import ROOT, ending_family
from tests.support.stream_driver import COLUMNS
from tests.support.topics import create_topic, produce_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

COUNT = 300
BATCHES = 2


@pytest.fixture
async def order(
    server: EmbeddedServer, broker: EmbeddedBroker, settings: Settings, tmp_path: Path, message_id: Callable[[], str]
) -> dict[str, Any]:
    """Records for two micro-batches, and where the stream keeps what it knows."""
    topic = message_id()
    await create_topic(broker.address, topic, 2)
    await produce_keys(broker.address, topic, [message_id() for _ in range(BATCHES * COUNT)])
    return {
        "source": {"topic": topic, "kafkaServers": broker.address, "maxRecords": str(COUNT)},
        "checkpoint": str(tmp_path / "checkpoint"),
        "options": {
            "address": server.address,
            "receipts": str(tmp_path / "receipts"),
            **write_settings_options(replace(settings, starts_per_second=100.0)),
            "tasksAtOnce": "2",
        },
    }


@contextlib.asynccontextmanager
async def streaming(order: dict[str, Any]) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run the stream in a process of its own; ended with SIGKILL, with all its children, if it is still alive."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.stream_driver", json.dumps(order)),
        cwd=ROOT,
        env=dict(os.environ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with ending_family(process):
        yield process


@pytest.mark.long
async def test_a_stream_killed_in_mid_batch_goes_on_from_its_checkpoint(
    client: Client, settings: Settings, order: dict[str, Any]
) -> None:
    """One workflow and one receipt for each row, and the repeated batch gets the same answers as before."""
    async with streaming(order) as process:
        await wait_until(lambda: count_alive(client, settings), "the first starts", seconds=100)
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    begun = await count_alive(client, settings)
    async with streaming(order) as process:
        talk, _ = await process.communicate()

    assert 0 < begun < BATCHES * COUNT
    assert process.returncode == 0, talk.decode()
    receipts = read_receipts(order["options"]["receipts"])
    assert [r["outcome"] for r in receipts] == ["started"] * BATCHES * COUNT
    assert len({r["workflow_id"] for r in receipts}) == BATCHES * COUNT
    await check_alive(client, settings, BATCHES * COUNT)


async def test_a_stream_without_a_place_for_receipts_is_refused(
    spark: "SparkSession", client: Client, settings: Settings, order: dict[str, Any]
) -> None:
    """One sentence, before a row is started."""
    register_temporal(spark)
    rows = spark.readStream.format("topic").options(**order["source"]).load().selectExpr(*COLUMNS)
    options = {name: value for name, value in order["options"].items() if name != "receipts"}
    writing = rows.writeStream.format("temporal").options(**options).option("checkpointLocation", order["checkpoint"])

    with pytest.raises(StreamingQueryException, match="receipts: is missing; name a folder"):
        await asyncio.to_thread(writing.trigger(availableNow=True).start().awaitTermination)

    assert await count_alive(client, settings) == 0
