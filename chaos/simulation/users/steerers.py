"""Steerers: send signals to messages and packs, malformed ones too, and read the receipts of packs."""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from temporalio.service import RPCError

from chaos.simulation.faults import Faults
from chaos.simulation.handlers import PACKED, SOLO
from chaos.simulation.ledger.ledger import Ledger
from chaos.simulation.users.caller import UserCaller
from chaos.simulation.users.kind_layout import KindLayout
from chaos.simulation.users.signals import MALFORMED, UserSignals
from shared.messages.placement import pack_workflow_id, workflow_id
from shared.messages.signals import SIGNAL_NAMES, PullMany, Signal, write_steering
from shared.temporal.backoff import backoff_seconds
from workflows.packs.requests.receipts import KEPT_SECONDS

HANDLED_WITHIN_SECONDS = 240.0
"""Most seconds until a workflow handles a signal: two tasks that wait long and are lost, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steerers:
    """All steerers of one simulation."""

    rng: random.Random
    caller: UserCaller
    faults: Faults
    ledger: Ledger
    layout: KindLayout
    signals: UserSignals
    tokens: Iterator[int]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    async def steer_for_long(self, ids: list[str], until: float) -> None:
        """Send signals for packed messages, one after the other, until `until`."""
        while self.loop.time() < until:
            await asyncio.sleep(self.rng.expovariate(1 / 10.0))
            if self.faults.strikes("malformed signal"):
                await self._send_malformed()
            elif self.rng.random() < 0.1:
                await self._pull_many()
            else:
                chosen = self.rng.sample(ids, min(len(ids), self.rng.randint(1, 3)))
                await self._steer(chosen, self.signals.draw(chosen))

    async def steer_solo_for_long(self, ids: list[str], until: float) -> None:
        """Send signals for solo messages, one after the other, until `until`."""
        while ids and self.loop.time() < until:
            await asyncio.sleep(self.rng.expovariate(1 / 10.0))
            message_id = self.rng.choice(ids)
            signal = self.signals.draw([message_id])
            self.signals.note_sent(SOLO, message_id, signal)

            with contextlib.suppress(RPCError):  # the message has not started yet, or has ended
                await self.caller.signal(workflow_id(SOLO, message_id), SIGNAL_NAMES[type(signal)], signal)

            self.signals.note_handled(SOLO, message_id, HANDLED_WITHIN_SECONDS)

    async def _steer(self, ids: list[str], signal: Signal) -> None:
        for message_id in ids:
            self.signals.note_sent(PACKED, message_id, signal)

        for index, part in self.layout.group_by_pack(ids).items():
            alive = await self._steer_pack(index, part, signal)
            seconds = HANDLED_WITHIN_SECONDS if alive is None else 0.0
            for message_id in part:
                self.signals.note_handled(PACKED, message_id, seconds)

            for message_id in alive or ():
                self.signals.note_done(message_id, signal)

    async def _steer_pack(self, index: int, ids: list[str], signal: Signal) -> list[str] | None:
        """Send a signal to a pack; gives the messages that were alive, None if the pack does not answer in time."""
        token = f"token-{next(self.tokens)}"
        targets = [*ids, "unknown"] if self.faults.strikes("signal to an unknown id") else ids
        name = pack_workflow_id(PACKED, index)
        self.ledger.note(f"send  {SIGNAL_NAMES[type(signal)]} {token} to {name} for {', '.join(targets)}")

        wire = write_steering(targets, signal, token)
        try:
            await self.caller.signal(name, SIGNAL_NAMES[type(signal)], wire)
            return await self._find_alive(index, token, targets)
        except RPCError:
            return []  # the pack does not exist yet

    async def _find_alive(self, index: int, token: str, ids: list[str]) -> list[str] | None:
        """Read from the receipt of a signal which messages were alive; None if the pack does not answer in time."""
        give_up_at = self.loop.time() + KEPT_SECONDS - 10
        while self.loop.time() < give_up_at:
            receipt = await self.caller.query(pack_workflow_id(PACKED, index), "receipt", token)
            if receipt is not None:
                moved = {n for positions in receipt["moved"].values() for n in positions}
                alive = [i for n, i in enumerate(ids) if n not in receipt["missing"] and n not in moved]
                for other, positions in receipt["moved"].items():
                    alive += await self._find_alive(int(other), token, [ids[n] for n in positions]) or []
                if "unknown" in alive:
                    self.ledger.violate("a receipt says that a message is alive which there never was")
                return alive
            await asyncio.sleep(backoff_seconds(3))

        return None

    async def _pull_many(self) -> None:
        now = self.ledger.now
        token = f"pull-{next(self.tokens)}"
        pull = PullMany(self.rng.randint(1, 5), now, now + 100, token)

        for (kind, _), tracked in self.ledger.messages.items():
            if kind == PACKED:
                tracked.asked_until = now + HANDLED_WITHIN_SECONDS

        pack = self._draw_pack()
        wire = {"count": pull.count, "at": pull.at, "until": pull.until, "token": pull.token}
        self.ledger.note(f"send  pull_forward of {pull.count} to {pack}")

        with contextlib.suppress(RPCError):  # the pack does not exist yet
            await self.caller.signal(pack, "pull_forward", wire)

    async def _send_malformed(self) -> None:
        name, argument = self.rng.choice(MALFORMED)
        pack = self._draw_pack()
        self.ledger.note(f"send  malformed {name} {argument} to {pack}")
        with contextlib.suppress(RPCError):
            await self.caller.client.signal(pack, name, [argument])

    def _draw_pack(self) -> str:
        return pack_workflow_id(PACKED, self.rng.randrange(self.layout.current.packs))
