"""What the state machine stands on: the server, the clocks, and what it checks."""

import asyncio
import itertools
import sys
import time
import uuid
from collections.abc import Coroutine, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant
from temporalio.client import Client, WorkflowHandle
from temporalio.testing import TimeSkipper

from shared.errors import MessageNotFound
from shared.messages.placement import pack_index, pack_workflow_id, workflow_id
from shared.messages.signals import SIGNAL_NAMES, Reschedule, Resume, Signal
from shared.settings import Settings
from starter.control import Control
from tests.conftest import wait_until
from tests.support.machine_model import ExpectedMessage, Span
from tests.support.machine_worker import PACK, Folder, KilledWorker, make_handlers

MARGIN = 600.0
"""Seconds from the end of a fast-forward within which nothing may be due: real time goes on meanwhile."""

LATENESS = MARGIN / 4
"""Seconds within which a worker has come to what it is to do, also on a slow machine."""

CHECK_SECONDS = 40.0
"""How long a message may take to be as expected: a call of a killed worker counts as lost after ten seconds."""

T = TypeVar("T")


@dataclass
class Site:
    """The server, and an event loop of the machine's own: its rules are no coroutines, and pytest's loop is blocked."""

    address: str
    path: Path
    loop: asyncio.AbstractEventLoop
    client: Client

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self.loop.run_until_complete(work)


class MessageMachine(RuleBasedStateMachine):
    """Two kinds of messages, solo and packed, and one worker process for both; the rules are added by who inherits."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        name = f"machine-{uuid.uuid4().hex[:8]}"
        self.settings = Settings(task_queue_prefix=name, workflow_task_timeout=timedelta(seconds=5))
        self.solo = f"{name}-solo"
        self.packed = f"{name}-packed"
        self.packs = PACK.packs
        self.folder = Folder(site.path / name)
        self.folder.path.mkdir()
        kinds = {self.solo: None, self.packed: PACK}
        self.registry = make_handlers(self.folder, kinds)
        self.control = Control(site.client, self.settings, self.registry)
        self.skipper = TimeSkipper(site.client)
        self.expected: list[ExpectedMessage] = []
        self.numbers = itertools.count(1)
        self.offsets: dict[str, float] = {}
        self.run = site.run
        self.worker = KilledWorker(site.address, self.settings, self.folder, kinds)
        self.worker.start()

    # --- what is where, and when

    def find_workflow(self, message: ExpectedMessage) -> str:
        """Name the workflow that a message lives in."""
        if message.is_packed:
            return pack_workflow_id(message.kind, pack_index(message.id, self.packs))
        return workflow_id(message.kind, message.id)

    def handle(self, message: ExpectedMessage) -> WorkflowHandle[Any, Any]:
        """Give the workflow that a message lives in."""
        return self.site.client.get_workflow_handle(self.find_workflow(message))

    def now(self, message: ExpectedMessage) -> float:
        """Read a message's clock."""
        return time.time() + self.offsets.get(self.find_workflow(message), 0.0)

    def write_clocks(self) -> None:
        """Let the worker's clock follow those of the messages."""
        self.folder.write_clocks({m.name: self.offsets.get(self.find_workflow(m), 0.0) for m in self.expected})

    def since(self, message: ExpectedMessage, begun: float) -> Span:
        """Give what a message's clock has shown since then, or will show when a worker gets to it."""
        return Span(begun, self.now(message) + LATENESS)

    def finish(self, drawn: Signal, now: float) -> Signal:
        """Give a drawn signal its moment, and a reason by which it is known."""
        if isinstance(drawn, Reschedule):
            drawn = replace(drawn, due_at=write_moment(now + float(drawn.due_at)))
        return replace(drawn, reason=f"number {next(self.numbers)}.")

    def _send(self, message: ExpectedMessage, signal: Signal, begun: float) -> None:
        if message.ended:
            with pytest.raises(MessageNotFound):
                self.run(self.control.send(message.kind, message.id, signal))
            return
        self.run(self.control.send(message.kind, message.id, signal))
        message.apply(signal, self.since(message, begun))
        self._run_due(message, begun)

    async def _call_handler(self, message: ExpectedMessage, asked: Signal) -> None:
        before = len(self._calls_of(message))
        await self._send_from_sdk(message, [asked])
        await wait_until(lambda: len(self._calls_of(message)) > before, f"the handler of {message.name} is called")

    async def _send_from_sdk(self, message: ExpectedMessage, sent: list[Signal]) -> None:
        for signal in sent:
            wire = {"ids": [message.id], **asdict(signal)} if message.is_packed else signal
            await self.handle(message).signal(SIGNAL_NAMES[type(signal)], wire)

    def _apply_all(self, message: ExpectedMessage, sent: list[Signal], begun: float) -> None:
        self.run(self._wait_until_heard(message))
        for signal in sent:
            message.apply(signal, self.since(message, begun))
        self._run_due(message, begun)

    async def _wait_until_heard(self, message: ExpectedMessage) -> None:
        """Wait for any answer: the worker that gives it has got all that was sent before."""
        await self.control.show(message.kind, message.id)

    def _fast_forward(self, message: ExpectedMessage, until: float, *, is_killed: bool = False) -> None:
        name = self.find_workflow(message)
        affected = [m for m in self.expected if self.find_workflow(m) == name]
        until = _find_quiet_moment(affected, until)
        begun = self.now(message)
        self.run(self._skip(message, until - begun, is_killed=is_killed))
        for each in affected:
            each.heard = ""  # more is decided meanwhile than is remembered
            each.run_due(until, Span(begun, begun))

    async def _skip(self, message: ExpectedMessage, seconds: float, *, is_killed: bool) -> None:
        handle = self.handle(message)
        skipping = asyncio.create_task(self.skipper.fast_forward(handle, timedelta(seconds=seconds)))
        if is_killed:
            await asyncio.sleep(0.1)  # any moment will do
            self.worker.kill()
            self.worker.start()
        await skipping
        moment = await self.skipper.get_current_time(handle)
        self.offsets[handle.id] = moment.timestamp() - time.time()
        self.write_clocks()

    def _run_due(self, message: ExpectedMessage, begun: float) -> None:
        """Let the model run what is due by now."""
        now = self.since(message, begun)
        message.run_due(now.end, now)

    # --- what must hold

    @invariant()
    def is_as_expected(self) -> None:
        """Every message is what the model says, and its handler was called for just that."""
        for message in self.expected:
            self.run(self._check(message))

    async def _check(self, message: ExpectedMessage) -> None:
        difference = ""

        async def is_so() -> bool:
            nonlocal difference
            difference = await self._compare(message)
            return not difference

        try:
            await wait_until(is_so, "", CHECK_SECONDS)
        except pytest.fail.Exception:
            raise AssertionError(f"{message.name}: {difference}; {message}") from None
        calls = _drop_repetitions(self._calls_of(message))
        assert calls == message.calls, f"{message.name}: called {calls}, not {message.calls}"

    async def _compare(self, message: ExpectedMessage) -> str:
        try:
            view = await self.control.show(message.kind, message.id)
        except MessageNotFound:
            is_forgotten = message.ended and message.is_packed and self.now(message) - message.due.start > 23 * 3600
            return "" if is_forgotten else "it is lost"

        found = view.ended if message.ended else view.status
        if found is None:
            return f"show knows no {'end' if message.ended else 'status'}: {view.note}"
        if difference := message.find_difference(found, [d["reason"] for d in view.decisions]):
            return difference

        message.note_seen(found)
        return "" if view.listed.state == message.phase else f"listed as {view.listed.state}, not {message.phase}"

    def _calls_of(self, message: ExpectedMessage) -> list[tuple[int, str]]:
        return [(e.version, e.note) for e in self.folder.ledger.entries if e.id == message.name]

    def teardown(self) -> None:
        """When all went well: whatever is resumed comes back once its time has come."""
        try:
            if sys.exc_info()[0] is None:
                self._check_liveness()
        finally:
            self.worker.kill()

    def _check_liveness(self) -> None:
        for message in self.expected:
            if message.is_paused and not message.ended:
                self._send(message, Resume(), self.now(message))
        self.is_as_expected()
        for message in self.expected:
            if message.phase == "active":
                self._fast_forward(message, message.due.start + 2 * MARGIN)
        self.is_as_expected()


def _find_quiet_moment(messages: list[ExpectedMessage], moment: float) -> float:
    """Find the first moment from one on at which, for some minutes around, nothing is due."""
    while True:
        near = [d for m in messages for d in _list_wakes(m, moment + MARGIN) if abs(d - moment) < MARGIN]
        if not near:
            return moment
        moment = max(near) + MARGIN + 1


def _list_wakes(message: ExpectedMessage, until: float) -> Iterator[float]:
    wake = message.wake.start
    while wake <= until:
        yield wake
        if message.payload["do"] != "again":
            return
        wake += message.payload["hours"] * 3600


def _drop_repetitions(calls: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """At least once is promised: the same version with the same payload again is no other call."""
    return [call for call, _ in itertools.groupby(calls)]


def write_moment(moment: float) -> str:
    """Write a moment as signals want it."""
    return datetime.fromtimestamp(moment, UTC).isoformat()
