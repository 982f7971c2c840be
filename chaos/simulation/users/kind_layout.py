"""The layout of the packed kind: which pack a message belongs to now, and how the kind gets more packs."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from temporalio.client import Client

from activities.server_calls import has_split
from chaos.simulation.handlers import PACKED
from chaos.simulation.ledger.ledger import Ledger
from chaos.simulation.users.caller import UserCaller
from shared.messages.placement import SPREAD, Layout, find_next_count, pack_index, pack_workflow_id, split_from
from shared.settings import Settings
from starter.starting.start_request import build_pack_request
from workflows.options import GROWN_AT_ONCE


class KindLayout:
    """The layout that all users share, as the kind's workflow keeps it."""

    def __init__(self, caller: UserCaller, settings: Settings, ledger: Ledger, layout: Layout) -> None:
        self._caller = caller
        self._settings = settings
        self._ledger = ledger
        self.current = layout

    def group_by_pack(self, ids: Iterable[str]) -> dict[int, list[str]]:
        """Give the messages of each pack."""
        by_pack: dict[int, list[str]] = {}
        for message_id in ids:
            by_pack.setdefault(pack_index(message_id, self.current.packs), []).append(message_id)
        return by_pack

    async def repack(self, packs: int, at: float) -> None:
        """Give the kind more packs, step by step, as its layout's workflow does."""
        await asyncio.sleep(at)
        while self.current.packs < packs:
            to = find_next_count(self.current.packs, packs, GROWN_AT_ONCE)
            await asyncio.gather(*(self._split(split_from(index), to) for index in range(self.current.packs, to)))
            self.current = replace(self.current, packs=to)
            self._ledger.note(f"the kind is spread over {to} packs")

    async def _split(self, index: int, packs: int) -> None:
        client = self._caller.client
        request = await build_pack_request(
            cast("Client", client), self._settings, self.current, index, signal=SPREAD, argument={"packs": packs}
        )
        await self._caller.repeat(lambda: client.signal_with_start_workflow_execution(request))

        name = pack_workflow_id(PACKED, index)
        while True:
            seen = await self._caller.query(name, "overview")
            if seen is not None and has_split(seen, packs):
                return
            await asyncio.sleep(0.5)
