"""DBOS on PostgreSQL: a workflow for each message, which calls a step and sleeps, in a loop."""

import asyncio
from typing import Any

from dbos import DBOS, SetWorkflowID

from bench.peers.work import Handle, Order

_state: dict[str, Any] = {}


@DBOS.step()
async def run_step(message_id: str, version: int) -> float:
    """Do the work for a message."""
    return await _state["handle"](message_id, version)


@DBOS.workflow()
async def live(message_id: str, payload: dict[str, str]) -> None:  # noqa: ARG001 — stored, as with the others
    """Be a message, for ever."""
    version = 0
    while True:
        await DBOS.sleep_async(await run_step(message_id, version))
        version += 1


def _launch(order: Order) -> None:
    config: Any = {"name": "peers", "system_database_url": order.sqlalchemy_url, "log_level": "ERROR"}
    DBOS(config=config | {"run_admin_server": False})
    DBOS.launch()


async def fill(order: Order) -> None:
    """Make the tables; the workflows are started by whoever serves, because they live in that process."""
    _state["handle"] = None
    await asyncio.to_thread(_launch, order)
    await asyncio.to_thread(DBOS.destroy)


async def serve(order: Order, handle: Handle) -> None:
    """Start what was not started yet, and run what is due, for ever."""
    _state["handle"] = handle
    await asyncio.to_thread(_launch, order)
    for message_id in order.message_ids():
        with SetWorkflowID(message_id):
            await DBOS.start_workflow_async(live, message_id, order.payload(message_id))
    await asyncio.Event().wait()
