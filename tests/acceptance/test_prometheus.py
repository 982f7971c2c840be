"""A real Prometheus fetches from a real worker: the rules of deploy/ work on what it gets, and the panels show it."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncGenerator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from temporalio.client import Client

from shared.lanes import task_queue
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import find_free_port
from tests.conftest import Start, wait_until
from tests.support import watching
from tests.support.processes import worker_process

pytestmark = [
    pytest.mark.timeout(120),  # a worker process and a Prometheus begin and end in it
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus is not installed; ./run servers installs it"
    ),
]

SILENT_PANELS = {
    "Earliness of idle capacity",  # nothing idle is done here
    "Gated",  # no gate is closed
    *("Lag", "Age of the first record", "Records", "Under way and waiting"),  # a bridge's, and none is there
    *("Paused and blocked partitions", "What a bridge does again"),
    *("Rows in the table", "Age of the oldest row", "Rows"),  # an outbox's, and none is there either
}
"""What has nothing to show in this test; all others must."""


@pytest.fixture
async def prometheus(tmp_path: Path, metrics_address: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a Prometheus with the rules of deploy/, which asks one worker every second."""
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(watching.RULES_FILE)],
        "scrape_configs": [{"job_name": "dormice-worker", "static_configs": [{"targets": [metrics_address]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{find_free_port()}"
    options = {"config.file": "prometheus.yml", "storage.tsdb.path": "data", "web.listen-address": address}

    with (tmp_path / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            *(f"--{name}={value}" for name, value in options.items()),
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )

    try:
        async with httpx.AsyncClient(base_url=f"http://{address}/api/v1", trust_env=False, timeout=30) as http:
            yield http
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ask(http: httpx.AsyncClient, path: str, **parameters: str) -> Any:
    """Give the data that Prometheus answers with, None while it does not answer."""
    with contextlib.suppress(httpx.TransportError):
        answer = await http.get(path, params=parameters)
        if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
            return answer.raise_for_status().json()["data"]
    return None


async def has_value(http: httpx.AsyncClient, expression: str) -> bool:
    """Tell whether an expression comes to a number now."""
    found = await ask(http, "/query", query=expression)
    return found is not None and any(series["value"][1] != "NaN" for series in found["result"])


async def test_rules_and_panels_work_on_what_a_worker_tells(
    server: EmbeddedServer, settings: Settings, client: Client, start: Start, prometheus: httpx.AsyncClient
) -> None:
    """Each panel that has something to show shows it, a parked message raises its alert, and no rule fails."""
    names = (watching.OF_CORE_ALWAYS | watching.OF_CORE_IN_TROUBLE) - {"temporal_long_request_failure_total"}
    async with worker_process(server, settings, "--lane", "short"):
        await start(payload={"delay": 1})
        await start(payload={"fail": "reject"})
        # a workflow that no worker knows: what a bad deployment looks like to the core
        queue = task_queue(settings.task_queue_prefix, "short")
        lost = await client.start_workflow("nobody's", id=settings.task_queue_prefix, task_queue=queue)
        # and a workflow that is gone when its task is done: a call that fails
        gone = await start(payload={"work": 8, "delay": 1})
        await wait_until(lambda: has_value(prometheus, "dormice_handlers > 0"), "a handler is at work")
        await gone.terminate()

        async def are_told() -> bool:
            return names <= set(await ask(prometheus, "/label/__name__/values") or ())

        await wait_until(are_told, "Prometheus has what the core tells")
        await lost.terminate()
        for panel, expression in watching.panel_expressions():
            if panel in SILENT_PANELS or "_long_request_failure_" in expression:
                continue
            await wait_until(lambda asked=expression: has_value(prometheus, asked), f"panel {panel} shows {expression}")
        await wait_until(
            lambda: has_value(prometheus, 'ALERTS{alertname="DormiceMessagesParked",alertstate="firing",kind="echo"}'),
            "the parked message is told",
        )
        groups = (await ask(prometheus, "/rules"))["groups"]

    health = {rule["name"]: (rule["health"], rule.get("lastError")) for group in groups for rule in group["rules"]}
    assert len(groups) == 4
    assert health == {rule.get("alert") or rule["record"]: ("ok", None) for rule in watching.RULES}
