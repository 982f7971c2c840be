"""The tutorial of Spark: a manifest is started by Spark's tasks, and each of its rows has a receipt."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from temporalio.client import Client

from shared.messages.placement import workflow_id
from shared.settings import Settings
from spark.prepare.manifest import Manifest
from spark.start import StartOptions, StartSummary, start_manifest
from starter.local.embedded import EmbeddedServer
from tests.support.manifests import in_thread, read_receipts, write_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(200)]


@pytest.fixture
def manifest(tmp_path: Path, message_id: Callable[[], str]) -> Manifest:
    """A hundred checked messages that are due tomorrow, as `dormice spark prepare` writes them."""
    return write_manifest(tmp_path / "manifest", [{"kind": "echo", "id": message_id()} for _ in range(100)])


async def test_a_manifest_starts_each_message_once_however_often_it_is_started(
    spark: "SparkSession", server: EmbeddedServer, client: Client, settings: Settings, manifest: Manifest
) -> None:
    """Spark may run a task twice, and a person the command: a receipt says of each row which run it has become."""

    def start() -> StartSummary:
        return start_manifest(spark, manifest, settings, {"TEMPORAL_ADDRESS": server.address}, StartOptions())

    first = await in_thread(spark, start)
    again = await in_thread(spark, start)

    receipts = read_receipts(manifest)
    message = client.get_workflow_handle(workflow_id("echo", receipts[0]["id"]))
    assert (first.now.started, again.now.total) == (100, 0)
    assert len({receipt["id"] for receipt in receipts}) == 100
    assert (await message.describe()).run_id == receipts[0]["run_id"]
