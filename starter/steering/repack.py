"""Repacking: moves a packed kind to more packs while it runs, resumable after a kill."""

import asyncio
from collections.abc import Callable

from temporalio.api.workflowservice.v1 import SignalWithStartWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from shared.errors import GiveUp
from shared.messages.encoding import PACKS_MAX
from shared.messages.placement import Layout
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_error
from starter.starting.chunks import build_pack_request
from starter.starting.layouts import Layouts
from starter.steering.packs import Packs

SPREAD = "spread"
AT_ONCE = 16
LOOK_SECONDS = 0.5


async def repack(
    client: Client,
    settings: Settings,
    kind: str,
    packs: int,
    tell: Callable[[int, int], None] | None = None,
) -> int:
    """Resize a kind to `packs` packs; returns how many it had before.

    Each pack is signalled first, and created if it does not exist yet. It then forwards the messages that belong to
    other packs, and from then on also the signals that still come to it for them. Only when all packs have done so is
    the new number stored with the kind; until then clients read the old number and reach every message by it. Running
    it again, also after an interruption, changes nothing more. `tell` is called with the number of packs that have
    finished and the number of all.

    Raises GiveUp for a kind that is not packed or an invalid number, PackNotServed without a worker.
    """
    layouts = Layouts(client, settings)
    layout = await layouts.find(kind)
    if layout is None:
        raise GiveUp(
            f"kind {kind!r} is not packed: each of its messages has a workflow of its own, or none was started"
        )
    if not layout.packs <= packs <= PACKS_MAX:
        raise GiveUp(
            f"--packs: is {packs}, kind {kind!r} has {layout.packs}; give a larger number, a kind never shrinks"
        )
    asker = Packs(client, settings)
    room, done = asyncio.Semaphore(AT_ONCE), 0

    async def spread(index: int) -> None:
        nonlocal done
        async with room:
            await _send_spread(client, settings, layout, index, packs)
            await _wait_until_spread(asker, layout, index, packs)
        done += 1
        if tell is not None:
            tell(done, layout.packs)

    await asyncio.gather(*(spread(index) for index in range(layout.packs)))
    await layouts.grow(layout, packs)
    return layout.packs


async def _send_spread(client: Client, settings: Settings, layout: Layout, index: int, packs: int) -> None:
    request: SignalWithStartWorkflowExecutionRequest = await build_pack_request(
        client, settings, layout, index, signal=SPREAD, argument={"packs": packs}
    )
    try:
        await client.workflow_service.signal_with_start_workflow_execution(request, retry=True, timeout=CALL_TIMEOUT)
    except RPCError as exc:
        raise translate_rpc_error(exc) from exc


async def _wait_until_spread(asker: Packs, layout: Layout, index: int, packs: int) -> None:
    """Wait until the pack has forwarded everything; a message stays while its handler runs."""
    while True:
        seen = await asker.overview(layout, index)
        if seen["packs"] >= packs and seen["strays"] == 0 and seen["staying"] == 0:
            return
        await asyncio.sleep(LOOK_SECONDS)
