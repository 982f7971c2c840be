"""Repacking: moves a packed kind to more packs while it runs, resumable after a kill."""

import asyncio
from collections.abc import Callable

from temporalio.client import Client

from shared.errors import GiveUp
from shared.messages.encoding import PACKS_MAX
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_errors
from starter.starting.start_request import build_pack_request
from starter.steering.packs import Packs

SPREAD = "spread"
AT_ONCE = 16
LOOK_SECONDS = 0.5


async def repack(
    client: Client, settings: Settings, kind: str, packs: int, tell: Callable[[int, int], None] | None = None
) -> int:
    """Resize a kind to `packs` packs; returns how many it had before.

    Each pack is signalled first, and created if it does not exist yet. It then forwards the messages that belong to
    other packs, and from then on also the signals that still come to it for them. Only when all packs have done so is
    the new number stored with the kind, which this waits for; until then clients read the old number and reach every
    message by it. Running it again, also after an interruption, changes nothing more. `tell` gets the numbers of packs
    finished and of all.

    Raises GiveUp for a kind that is not packed or an invalid number, PackNotServed without a worker.
    """
    asker = Packs(client, settings)
    layout = await asker.layouts.find(kind)
    if layout is None:
        reason = "each of its messages has a workflow of its own, or none was started"
        raise GiveUp(f"kind {kind!r} is not packed: {reason}")
    if not layout.packs <= packs <= PACKS_MAX:
        has = f"kind {kind!r} has {layout.packs}"
        raise GiveUp(f"--packs: is {packs}, {has}; give a larger number, a kind never shrinks")
    room, done = asyncio.Semaphore(AT_ONCE), 0

    async def resize(index: int) -> None:
        nonlocal done
        async with room:
            argument = {"packs": packs}
            request = await build_pack_request(client, settings, layout, index, signal=SPREAD, argument=argument)
            send = client.workflow_service.signal_with_start_workflow_execution
            with translate_rpc_errors():
                await send(request, retry=True, timeout=CALL_TIMEOUT)
            while True:
                seen = await asker.query(layout, index, "overview")
                # nothing is left to forward; a message stays while its handler runs
                if seen["packs"] >= packs and seen["strays"] == seen["staying"] == 0:
                    break
                await asyncio.sleep(LOOK_SECONDS)
        done += 1
        if tell is not None:
            tell(done, layout.packs)

    await asyncio.gather(*(resize(index) for index in range(layout.packs)))
    await asker.layouts.grow(layout, packs)
    return layout.packs
