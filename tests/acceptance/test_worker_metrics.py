"""What worker processes publish for Prometheus: their own metrics, and those of the SDK's core."""

import asyncio
import re
import time
from collections.abc import Callable
from datetime import timedelta

import httpx
import pytest
from temporalio.client import Client

from shared.keepers.gates import GateClosure
from shared.lanes import task_queue
from shared.messages.message import MessageState
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.steering.keepers import GateControl, IdleControl
from tests.conftest import Start, wait_until
from tests.support.asleep import start_asleep
from tests.support.processes import worker_process

pytestmark = pytest.mark.timeout(120)  # worker processes begin and end in it

SERIES = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


async def fetch(address: str) -> dict[str, float]:
    """Give the series that an address publishes, with sorted labels; none while nothing listens there."""
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            text = (await http.get(f"http://{address}/metrics")).text
    except httpx.TransportError:
        return {}
    found = filter(None, map(SERIES.fullmatch, text.splitlines()))
    return {f"{name}{{{labels or ''}}}": float(value) for name, labels, value in (match.groups() for match in found)}


async def test_a_worker_tells_what_its_handlers_came_to(
    server: EmbeddedServer, settings: Settings, start: Start, client: Client, metrics_address: str
) -> None:
    """Counts by kind, lane and outcome, durations, lateness, parked and gated messages; also the SDK core's metrics."""
    fails = {"raise": 2, "reject": 1, "retry_after": 1}
    for how, count in fails.items():
        for _ in range(count):
            await start(payload={"fail": how})
    for _ in range(3):
        await start(payload={"cycles": 1})
    gates = GateControl(client, settings)
    await gates.close("host:127.0.0.1:9", GateClosure.lasting(timedelta(hours=1)))
    async with worker_process(server, settings, "--lane", "short"):
        done = 'dormice_cycles_total{kind="echo",lane="short",outcome="done"}'

        async def is_done() -> bool:
            return (await fetch(metrics_address)).get(done) == 3

        await wait_until(is_done, "all are done")
        await asyncio.sleep(1.5)  # workers go by what they read within the last second
        await start("http", payload={"url": "http://127.0.0.1:9/"})
        gated = 'dormice_gated_total{kind="http",lane="short"}'

        async def is_told() -> bool:
            found = await fetch(metrics_address)
            return gated in found and any(name.startswith("temporal_worker_task_slots_available{") for name in found)

        await wait_until(is_told, "one waits at the gate, and the core tells")
        found = await fetch(metrics_address)

    for how in ("reject", "retry_after"):
        assert found[f'dormice_cycles_total{{kind="echo",lane="short",outcome="{how}"}}'] == 1
    assert found['dormice_cycles_total{kind="echo",lane="short",outcome="failed"}'] >= 2
    assert found['dormice_parked_total{kind="echo",lane="short"}'] == 1
    assert found['dormice_handlers{lane="short"}'] == 0
    calls = sum(value for name, value in found.items() if name.startswith("dormice_cycles_total"))
    for histogram in ("dormice_handler_duration_seconds", "dormice_lateness_seconds"):
        assert found[f'{histogram}_count{{kind="echo",lane="short"}}'] == calls


async def test_each_process_has_a_port_of_its_own(
    server: EmbeddedServer, settings: Settings, metrics_address: str
) -> None:
    """The second one serves the next port."""
    port = int(metrics_address.rpartition(":")[2])
    async with worker_process(server, settings, "--lane", "short", "--processes", "2"):

        async def are_both() -> bool:
            return all([await fetch(f"127.0.0.1:{n}") for n in (port, port + 1)])

        await wait_until(are_both, "both tell")


@pytest.mark.long
async def test_what_idle_capacity_wakes_is_told_by_how_early_it_is(
    server: EmbeddedServer, settings: Settings, client: Client, message_id: Callable[[], str], metrics_address: str
) -> None:
    """The leader publishes it, in whichever process it is."""
    queue = task_queue(settings.task_queue_prefix, "short")
    now = time.time()
    for _ in range(3):
        state = MessageState("echo", message_id(), "short", now + 7200, now - 1, payload={"delay": 36000})
        await start_asleep(client, queue, state, now)
    idle = IdleControl(client, settings)
    await idle.switch("short", is_on=True)
    async with worker_process(server, settings, "--lane", "short"):

        async def is_told() -> bool:
            return (await fetch(metrics_address)).get('dormice_earliness_seconds_count{lane="short"}') == 3

        await wait_until(is_told, "three were woken")
        found = await fetch(metrics_address)
        await idle.switch("short", is_on=False)

    assert 3 * 7000 < found['dormice_earliness_seconds_sum{lane="short"}'] <= 3 * 7200
