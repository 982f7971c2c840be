"""Repacking: gives a packed kind a number of packs at once, while it runs; otherwise it grows as messages come."""

from collections.abc import Callable

from temporalio.client import Client

from shared.errors import GiveUp
from shared.messages.encoding import PACKS_MAX
from shared.settings import Settings
from starter.starting.layouts import Layouts


async def repack(
    client: Client, settings: Settings, kind: str, packs: int, notify: Callable[[int], None] | None = None
) -> int:
    """Resize a kind to `packs` packs; returns how many it had before.

    Workers do it, step by step, and go on when this is interrupted; running it again waits for the rest. `notify` gets
    the number of packs after each step.

    Raises GiveUp for a kind that is not packed or an invalid number, PackNotServed without a worker.
    """
    layouts = Layouts(client, settings)
    layout = await layouts.find(kind)
    if layout is None:
        reason = "each of its messages has a workflow of its own, or none was started"
        raise GiveUp(f"kind {kind!r} is not packed: {reason}")
    if not layout.packs <= packs <= PACKS_MAX:
        has = f"kind {kind!r} has {layout.packs}"
        raise GiveUp(f"--packs: is {packs}, {has}; give a larger number, a kind never shrinks")

    await layouts.grow(layout, packs, notify)
    return layout.packs
