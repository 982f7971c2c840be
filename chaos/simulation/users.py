"""Users: start messages, steer them, send malformed signals and repack, all through the calls of dormice's own code."""

import asyncio
import contextlib
import functools
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from activities.server_calls import has_split
from chaos.simulation.client import SimulatedClient
from chaos.simulation.faults import Faults
from chaos.simulation.handlers import PACKED, SOLO
from chaos.simulation.ledger import Ledger
from shared.lanes import task_queue
from shared.messages.envelope import Envelope
from shared.messages.placement import (
    MESSAGE_WORKFLOW,
    SPREAD,
    Layout,
    PackSpread,
    find_next_count,
    pack_index,
    pack_workflow_id,
    split_from,
    workflow_id,
)
from shared.messages.signals import (
    SIGNAL_NAMES,
    Pause,
    PullForward,
    PullMany,
    Reprioritize,
    Reschedule,
    Resume,
    Revise,
    RunNow,
    Signal,
    Stop,
    write_steering,
)
from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from starter.starting.calls import RetryingCaller
from starter.starting.chunks import Chunk
from starter.starting.pack_starter import PackStarter
from starter.starting.receipts import Receipt, StartOutcome
from starter.starting.start_request import build_pack_request, first_entry, first_state
from workflows.options import GROWN_AT_ONCE
from workflows.packs.requests.receipts import KEPT_SECONDS

UNHEARD_SECONDS = 240.0
"""Most seconds until a workflow handles a signal: two tasks that wait long and are lost, one after the other."""

MALFORMED: tuple[tuple[str, Any], ...] = (
    ("run_now", {}),
    ("run_now", {"ids": "x"}),
    ("revise", {"ids": ["m0"]}),
    ("reprioritize", {"ids": ["m0"], "priority": "1"}),
    ("reschedule", {"ids": ["m0"], "due_at": 17}),
    ("pull_forward", {"count": 0}),
    ("admit", {}),
    ("admit", {"token": "x", "entries": [1]}),
    ("spread", {"packs": "many"}),
)


class Users:
    """All users of one simulation, who share the kind's layout."""

    def __init__(
        self,
        *,
        rng: random.Random,
        client: SimulatedClient,
        settings: Settings,
        faults: Faults,
        ledger: Ledger,
        layout: Layout,
        pad: int,
    ) -> None:
        self._rng = rng
        self._client = client
        self._settings = settings
        self._faults = faults
        self._ledger = ledger
        self.layout = layout
        self._pad = "x" * pad
        self._loop = asyncio.get_running_loop()
        self._tokens = 0

    async def start_packed(self, ids: list[str], until: float) -> None:
        """Start messages in chunks, at a random moment before `until`."""
        await asyncio.sleep(self._rng.uniform(0, until))
        admission = self.build_admission(revises=False)
        by_pack: dict[int, list[str]] = {}
        for message_id in ids:
            by_pack.setdefault(pack_index(message_id, self.layout.packs), []).append(message_id)
        await asyncio.gather(*(self._start_chunk(admission, n, part) for n, part in by_pack.items()))

    async def start_solo(self, message_id: str, until: float) -> None:
        """Start a solo message at a random moment before `until`."""
        await asyncio.sleep(self._rng.uniform(0, until))
        envelope = self._envelope(SOLO, message_id, self.layout.lane)
        self._note_start(SOLO, message_id, envelope)
        name = workflow_id(SOLO, message_id)
        queue = task_queue(self._settings.task_queue_prefix, self.layout.lane)
        state = first_state(envelope, self._ledger.now).dump()
        await self._patiently(lambda: self._client.start(MESSAGE_WORKFLOW, name, queue, state))
        self._ledger.of(SOLO, message_id).is_acknowledged = True

    async def steer_for_long(self, ids: list[str], until: float) -> None:
        """Send signals for packed messages, one after the other, until `until`."""
        while self._loop.time() < until:
            await asyncio.sleep(self._rng.expovariate(1 / 10.0))
            if self._faults.strikes("malformed signal"):
                await self._send_malformed()
            elif self._rng.random() < 0.1:
                await self._pull_many()
            else:
                chosen = self._rng.sample(ids, min(len(ids), self._rng.randint(1, 3)))
                await self._steer(chosen, self._draw_signal(chosen))

    async def steer_solo_for_long(self, ids: list[str], until: float) -> None:
        """Send signals for solo messages, one after the other, until `until`."""
        while ids and self._loop.time() < until:
            await asyncio.sleep(self._rng.expovariate(1 / 10.0))
            message_id = self._rng.choice(ids)
            signal = self._draw_signal([message_id])
            self._note_sent(SOLO, message_id, signal)
            name = workflow_id(SOLO, message_id)
            with contextlib.suppress(RPCError):  # the message has not started yet, or has ended
                await self._patiently(
                    functools.partial(self._client.signal, name, SIGNAL_NAMES[type(signal)], [signal])
                )
            self._note_heard(SOLO, message_id, self._ledger.now + UNHEARD_SECONDS)

    async def repack(self, packs: int, at: float) -> None:
        """Give the kind more packs, step by step, as its layout's workflow does."""
        await asyncio.sleep(at)
        while self.layout.packs < packs:
            to = find_next_count(self.layout.packs, packs, GROWN_AT_ONCE)
            await asyncio.gather(*(self._split(split_from(index), to) for index in range(self.layout.packs, to)))
            self.layout = replace(self.layout, packs=to)
            self._ledger.note(f"the kind is spread over {to} packs")

    async def _split(self, index: int, packs: int) -> None:
        client = cast("Client", self._client)
        argument = {"packs": packs}
        request = await build_pack_request(client, self._settings, self.layout, index, signal=SPREAD, argument=argument)
        await self._patiently(lambda: self._client.signal_with_start_workflow_execution(request))

        name = pack_workflow_id(PACKED, index)
        while True:
            seen = await self.query(name, "overview")
            if seen is not None and has_split(seen, packs):
                return
            await asyncio.sleep(0.5)

    def build_admission(self, *, revises: bool) -> PackStarter:
        """Build the starter that sends chunks to packs."""
        caller = RetryingCaller(self._settings.patience, self._settings.starts_per_second)
        return PackStarter(
            cast("Client", self._client), self._settings, caller, restarts_finished=False, revises=revises
        )

    async def query(self, name: str, query: str, *arguments: Any) -> Any:
        """Query a pack; gives None if it does not answer in time."""
        try:
            async with asyncio.timeout(5):
                return await self._client.query(name, query, arguments)
        except (TimeoutError, RPCError, WorkflowQueryFailedError):
            return None

    async def _start_chunk(self, admission: PackStarter, index: int, ids: list[str]) -> None:
        chunks: list[Chunk[str]] = [Chunk(self.layout, index)]
        spread = PackSpread.of(PACKED, index, self.layout.coalesce)

        for message_id in ids:
            envelope = self._envelope(
                PACKED, message_id, self._rng.choice([self.layout.lane] * 4 + ["short", "medium"])
            )
            self._note_start(PACKED, message_id, envelope)
            if chunks[-1].is_full:
                chunks.append(Chunk(self.layout, index))
            entry = first_entry(envelope, self._ledger.now, self.layout.lane, spread=spread)
            chunks[-1].add(message_id, entry)

        self._ledger.note(f"start {', '.join(ids)}")
        self._tokens += 1

        session = f"session-{self._tokens}"
        for receipts in await asyncio.gather(*(admission.admit(chunk, session) for chunk in chunks)):
            for receipt in receipts:
                self.note_receipt(receipt)

    def note_receipt(self, receipt: Receipt[str]) -> None:
        """Record a sender's receipt for a message, and check that it is true."""
        tracked = self._ledger.of(PACKED, receipt.tag)
        tracked.outcomes[receipt.outcome] += 1
        self._ledger.note(f"told  {receipt.tag}: {receipt.outcome} {receipt.reason[:80]}")
        if receipt.outcome in (StartOutcome.STARTED, StartOutcome.REVISED):
            tracked.is_acknowledged = True
        if receipt.outcome is StartOutcome.ALREADY_RUNNING and tracked.sent == 1:
            self._ledger.violate(f"{receipt.tag} was sent once, and its sender is told that it is already running")

    def _note_start(self, kind: str, message_id: str, envelope: Envelope) -> None:
        tracked = self._ledger.of(kind, message_id)
        tracked.sent += 1
        tracked.decided_from.setdefault(0, self._ledger.now)
        if envelope.scheduled_at is not None and tracked.sent == 1:
            tracked.soonest[0] = envelope.scheduled_at.timestamp()

    def _envelope(self, kind: str, message_id: str, lane: str) -> Envelope:
        later = datetime.fromtimestamp(self._ledger.now + self._rng.uniform(1, 60), UTC)
        scheduled_at = later if self._rng.random() < 0.5 else None
        return Envelope(
            kind=kind,
            id=message_id,
            lane=lane,
            scheduled_at=scheduled_at,
            tolerance_seconds=self._rng.choice([0.0, 10.0]),
            priority=self._rng.randint(1, 5),
            payload={"rev": 0, "pad": self._pad},
        )

    def _draw_signal(self, ids: list[str]) -> Signal:
        rng = self._rng
        moment = datetime.fromtimestamp(self._ledger.now + rng.uniform(-10, 60), UTC).isoformat()
        revision = 1 + max(self._ledger.of(kind, i).revisions_sent for i in ids for kind in (PACKED, SOLO))

        return rng.choice(
            [
                RunNow(),
                RunNow(),
                Reschedule(moment),
                Reprioritize(rng.randint(1, 5), rng.choice([None, moment])),
                Revise({"rev": revision, "pad": self._pad}, due_at=rng.choice([None, moment])),
                Revise({"rev": revision, "pad": self._pad}, lane=rng.choice(["short", "medium"])),
                Pause(),
                Resume(),
                Resume(),
                *([Stop()] if rng.random() < 0.2 else []),
                PullForward(moment),
            ]
        )

    def _note_sent(self, kind: str, message_id: str, signal: Signal) -> None:
        tracked = self._ledger.of(kind, message_id)
        tracked.asking += 1
        if isinstance(signal, Stop):
            tracked.may_be_over = True
        if isinstance(signal, Revise):
            tracked.revisions_sent = max(tracked.revisions_sent, signal.payload["rev"])
        if isinstance(signal, (Pause, Resume)):
            tracked.is_paused = None

    async def _steer(self, ids: list[str], signal: Signal) -> None:
        by_pack: dict[int, list[str]] = {}
        for message_id in ids:
            self._note_sent(PACKED, message_id, signal)
            by_pack.setdefault(pack_index(message_id, self.layout.packs), []).append(message_id)

        for index, part in by_pack.items():
            self._tokens += 1
            token = f"token-{self._tokens}"
            targets = [*part, "unknown"] if self._faults.strikes("signal to an unknown id") else part
            name = pack_workflow_id(PACKED, index)
            self._ledger.note(f"send  {SIGNAL_NAMES[type(signal)]} {token} to {name} for {', '.join(targets)}")

            wire = write_steering(targets, signal, token)
            try:
                await self._patiently(functools.partial(self._client.signal, name, SIGNAL_NAMES[type(signal)], [wire]))
                alive = await self._find_alive(index, token, targets)
            except RPCError:
                alive = []  # the pack does not exist yet

            for message_id in part:
                self._note_heard(PACKED, message_id, self._ledger.now + (UNHEARD_SECONDS if alive is None else 0.0))

            for message_id in alive or ():
                self._note_done(message_id, signal)

    def _note_heard(self, kind: str, message_id: str, until: float) -> None:
        tracked = self._ledger.of(kind, message_id)
        tracked.asking -= 1
        tracked.asked_until = max(tracked.asked_until, until)

    async def _find_alive(self, index: int, token: str, ids: list[str]) -> list[str] | None:
        """Read from the receipt of a signal which messages were alive; None if the pack does not answer in time."""
        give_up_at = self._loop.time() + KEPT_SECONDS - 10
        while self._loop.time() < give_up_at:
            receipt = await self.query(pack_workflow_id(PACKED, index), "receipt", token)
            if receipt is not None:
                moved = {n for positions in receipt["moved"].values() for n in positions}
                alive = [i for n, i in enumerate(ids) if n not in receipt["missing"] and n not in moved]
                for other, positions in receipt["moved"].items():
                    alive += await self._find_alive(int(other), token, [ids[n] for n in positions]) or []
                if "unknown" in alive:
                    self._ledger.violate("a receipt says that a message is alive which there never was")
                return alive
            await asyncio.sleep(backoff_seconds(3))

        return None

    def _note_done(self, message_id: str, signal: Signal) -> None:
        tracked = self._ledger.of(PACKED, message_id)
        match signal:
            case Revise():
                tracked.revision = max(tracked.revision, signal.payload["rev"])
            case Stop():
                tracked.is_stopped = True
            case Pause() | Resume():
                tracked.is_paused = isinstance(signal, Pause)
            case _:
                pass

    async def _pull_many(self) -> None:
        self._tokens += 1
        now = self._ledger.now
        pull = PullMany(self._rng.randint(1, 5), now, now + 100, f"pull-{self._tokens}")

        for (kind, _), tracked in self._ledger.messages.items():
            if kind == PACKED:
                tracked.asked_until = now + UNHEARD_SECONDS

        name = pack_workflow_id(PACKED, self._rng.randrange(self.layout.packs))
        wire = {"count": pull.count, "at": pull.at, "until": pull.until, "token": pull.token}
        self._ledger.note(f"send  pull_forward of {pull.count} to {name}")

        with contextlib.suppress(RPCError):  # the pack does not exist yet
            await self._patiently(lambda: self._client.signal(name, "pull_forward", [wire]))

    async def _send_malformed(self) -> None:
        name, argument = self._rng.choice(MALFORMED)
        pack = pack_workflow_id(PACKED, self._rng.randrange(self.layout.packs))
        self._ledger.note(f"send  malformed {name} {argument} to {pack}")
        with contextlib.suppress(RPCError):
            await self._client.signal(pack, name, [argument])

    async def _patiently(self, call: Any) -> Any:
        """Repeat a call until it is answered; raises RPCError if the workflow does not exist."""
        attempts = 0
        while True:
            try:
                return await call()
            except RPCError as exc:
                if exc.status.name == "NOT_FOUND":
                    raise
                attempts += 1
                await asyncio.sleep(backoff_seconds(attempts))
