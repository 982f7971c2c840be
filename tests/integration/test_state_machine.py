"""Random lives on the real server: whatever is asked, sent or killed in whatever order, messages are as a small model says.

Every message has its workflow's own clock, which the machine moves by hours and days. Worker processes are killed by their
id. A longer search is `pytest tests/integration/test_state_machine.py --hypothesis-profile=search`, see CONTRIBUTING.md.
"""

import asyncio
import itertools
import json
import sys
import time
import uuid
from collections.abc import Coroutine, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType] — it has no annotations
)
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest, SignalWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.testing import TimeSkipper

from shared.envelope import Envelope
from shared.errors import MessageNotFound
from shared.placement import pack_index, pack_workflow_id, workflow_id
from shared.settings import Settings
from shared.signals import (
    SIGNAL_NAMES,
    Pause,
    PullForward,
    Reprioritize,
    Reschedule,
    Resume,
    Revise,
    RunNow,
    Signal,
    Stop,
)
from starter.control import Control
from starter.embedded import EmbeddedServer
from starter.receipts import StartOutcome
from starter.repack import repack
from tests.conftest import wait_until
from tests.machine_model import ExpectedMessage, Span
from tests.machine_worker import PACK, Folder, KilledWorker

IS_SEARCH = hypothesis.settings.get_current_profile_name() == "search"
IN_SUITE = hypothesis.settings(
    max_examples=5,
    stateful_step_count=12,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)

MARGIN = 600.0
"""Seconds from the end of a fast-forward within which nothing may be due: real time goes on meanwhile."""

LATENESS = MARGIN / 4
"""Seconds within which a worker has come to what it is to do, also on a slow machine."""

CHECK_SECONDS = 25.0
MESSAGES_MAX = 6
PACKS_MAX = 6

T = TypeVar("T")

HARMLESS_INPUTS: list[tuple[str, list[Payload]]] = [
    (name, [Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())])
    for name, value in (
        ("run_later", {"reason": "there is no such signal"}),
        ("reschedule", {"ids": ["a", "b", "c", "d", "e", "f"], "due_at": "soon"}),
        ("reschedule", {"ids": ["a", "b", "c", "d", "e", "f"], "due_at": "2026-11-21T20:00:00"}),
        ("reprioritize", {"ids": ["a", "b", "c", "d", "e", "f"], "priority": 9}),
        ("pause", {"ids": ["nobody"], "reason": "", "no such field": 1}),
    )
]
"""Signals that are wrong and change nothing; what a workflow learns to bear is added here."""

hours = st.sampled_from([24, 72])
payloads = st.fixed_dictionaries(
    {
        "do": st.sampled_from(["again", "again", "again", "reject", "done"]),
        "hours": hours,
        "may_be_pulled": st.booleans(),
        "n": st.integers(0, 3),
        "cycles": st.just(0),
    }
)
delays = st.sampled_from([timedelta(hours=-1), timedelta(hours=2), timedelta(days=2)])
"""From a message's present moment on."""

signals: st.SearchStrategy[Signal] = st.one_of(
    st.just(RunNow()),
    delays.map(lambda delay: Reschedule(str(delay.total_seconds()))),
    st.integers(0, 5).map(Reprioritize),
    st.builds(Revise, payload=payloads, source=st.just("topic/0"), offset=st.integers(0, 9)),
    st.just(Pause()),
    st.just(Resume()),
    st.just(Stop()),
)
"""Signals to finish with `Messages.finish`: a moment is still seconds from now."""


def _write(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


@dataclass
class Site:
    """The server, and an event loop of the machine's own: its rules are no coroutines, and pytest's loop stands still."""

    address: str
    path: Path
    loop: asyncio.AbstractEventLoop
    client: Client

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self.loop.run_until_complete(work)


class Messages(RuleBasedStateMachine):
    """Two kinds of messages, solo and packed, and one worker process for both."""

    messages = Bundle("messages")

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        name = f"machine-{uuid.uuid4().hex[:8]}"
        self.settings = Settings(task_queue_prefix=name, workflow_task_timeout=timedelta(seconds=5))
        self.solo, self.packed, self.packs = f"{name}-solo", f"{name}-packed", PACK.packs
        self.folder = Folder(site.path / name)
        self.folder.path.mkdir()
        self.control = Control(site.client, self.settings, {self.packed: PACK})
        self.skipper = TimeSkipper(site.client)
        self.expected: list[ExpectedMessage] = []
        self.numbers = itertools.count(1)
        self.offsets: dict[str, float] = {}
        self.run = site.run
        self.worker = KilledWorker(site.address, self.settings, self.folder, {self.solo: None, self.packed: PACK})
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

    # --- rules

    @initialize(target=messages, solo=payloads, packed=payloads)
    def begin(self, solo: dict[str, Any], packed: dict[str, Any]) -> Any:
        """Begin with one message of each kind."""
        return hypothesis.stateful.multiple(self._start(False, solo, None), self._start(True, packed, None))

    @rule(target=messages, is_packed=st.booleans(), payload=payloads, delay=st.none() | delays)
    def start(self, is_packed: bool, payload: dict[str, Any], delay: timedelta | None) -> Any:  # noqa: FBT001 — drawn
        """Start another message, now or for later."""
        if len(self.expected) >= MESSAGES_MAX:
            return hypothesis.stateful.multiple()
        return self._start(is_packed, payload, delay)

    def _start(self, is_packed: bool, payload: dict[str, Any], delay: timedelta | None) -> ExpectedMessage:  # noqa: FBT001 — drawn
        name = "abcdef"[len(self.expected)]
        kind = self.packed if is_packed else self.solo
        message = ExpectedMessage(kind, name, is_packed, payload, Span(0, 0), ended="unborn")
        self.expected.append(message)
        self._start_alive(message, payload, delay)
        return message

    @rule(message=messages, payload=payloads)
    def start_again(self, message: ExpectedMessage, payload: dict[str, Any]) -> None:
        """Start a message that there is already: it is left alone, or begins anew when it has ended."""
        self._start_alive(message, payload, None)

    def _start_alive(self, message: ExpectedMessage, payload: dict[str, Any], delay: timedelta | None) -> None:
        if message.ended and not message.is_packed:
            self.offsets.pop(self.find_workflow(message), None)
        self.write_clocks()
        begun, sent = self.now(message), time.time()
        at = None if delay is None else datetime.fromtimestamp(begun, UTC) + delay
        envelope = Envelope(kind=message.kind, id=message.id, lane="short", payload=payload, scheduled_at=at)
        receipt = self.run(self.control.start(envelope))
        if not message.ended:
            assert receipt.outcome is StartOutcome.ALREADY_RUNNING, receipt
            return
        assert receipt.outcome is StartOutcome.STARTED, receipt
        due = Span(sent, time.time())
        message.start(due if at is None else Span(at.timestamp(), at.timestamp()).latest(due), payload)
        self._run_due(message, begun)

    @rule(message=messages, drawn=signals)
    def send(self, message: ExpectedMessage, drawn: Signal) -> None:
        """Steer a message."""
        begun = self.now(message)
        self._send(message, self.finish(drawn, begun), begun)

    @rule(message=messages, error=st.sampled_from([0.0, 0.0, 100.0]))
    def pull_forward(self, message: ExpectedMessage, error: float) -> None:
        """Run a message ahead of time, if it may be, and if the caller knows when it is due."""
        if message.may_be_pulled is not None:
            expected, begun = _write(message.due.start + error), self.now(message)
            self._send(message, self.finish(PullForward(expected), begun), begun)

    def finish(self, drawn: Signal, now: float) -> Signal:
        """Give a drawn signal its moment, and a reason by which it is known."""
        if isinstance(drawn, Reschedule):
            drawn = replace(drawn, due_at=_write(now + float(drawn.due_at)))
        return replace(drawn, reason=f"number {next(self.numbers)}.")

    def _send(self, message: ExpectedMessage, signal: Signal, begun: float) -> None:
        if message.ended:
            with pytest.raises(MessageNotFound):
                self.run(self.control.send(message.kind, message.id, signal))
            return
        self.run(self.control.send(message.kind, message.id, signal))
        message.apply(signal, self.since(message, begun))
        self._run_due(message, begun)

    @rule(message=messages, drawn=st.lists(signals, min_size=1, max_size=3))
    def send_while_no_worker_is_there(self, message: ExpectedMessage, drawn: list[Signal]) -> None:
        """Kill the worker, steer a message with nobody there to hear it, and start another worker."""
        self.worker.kill()
        begun = self.now(message)
        sent = [self.finish(each, begun) for each in drawn]
        if not message.ended:
            self.run(self._send_from_sdk(message, sent))
        self.worker.start()
        self._apply_all(message, sent, begun)

    @rule(message=messages, drawn=st.lists(signals, max_size=3), is_killed=st.booleans())
    def send_while_its_handler_is_at_work(
        self,
        message: ExpectedMessage,
        drawn: list[Signal],
        is_killed: bool,  # noqa: FBT001 — drawn
    ) -> None:
        """Steer a message whose handler is at work, or kill the worker under it."""
        if message.ended or message.is_paused or message.payload["do"] == "done":
            return
        begun = self.now(message)
        sent = [] if is_killed else [self.finish(each, begun) for each in drawn]
        asked = self.finish(RunNow(), begun)
        self.folder.barrier.touch()
        try:
            self.run(self._call_handler(message, asked))
            self.run(self._send_from_sdk(message, sent))
            if is_killed:
                self.worker.kill()
                self.worker.start()
        finally:
            self.folder.barrier.unlink()
        message.apply(asked, self.since(message, begun))
        message.run(self.since(message, begun))
        self._apply_all(message, sent, begun)

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
        """Wait for any answer: it is given by a worker that has heard all that was sent before."""
        await self.control.show(message.kind, message.id)

    @rule(message=messages, wrong=st.sampled_from(HARMLESS_INPUTS))
    def send_what_is_wrong(self, message: ExpectedMessage, wrong: tuple[str, list[Payload]]) -> None:
        """Send what no workflow understands."""
        if message.ended and not message.is_packed:
            return
        name, payloads = wrong
        request = SignalWorkflowExecutionRequest(
            namespace=self.site.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=self.find_workflow(message)),
            signal_name=name,
            input=Payloads(payloads=payloads),
        )
        self.run(self.site.client.workflow_service.signal_workflow_execution(request))

    @rule()
    def kill_worker(self) -> None:
        """Kill the worker while nothing runs, and start another."""
        self.worker.kill()
        self.worker.start()

    @rule(message=messages)
    def evict(self, message: ExpectedMessage) -> None:
        """Let the next task of a workflow begin from its history, as if no worker had it in its cache."""
        if message.ended and not message.is_packed:
            return
        request = ResetStickyTaskQueueRequest(
            namespace=self.site.client.namespace,
            execution=WorkflowExecution(workflow_id=self.find_workflow(message)),
        )
        self.run(self.site.client.workflow_service.reset_sticky_task_queue(request))

    @rule(more=st.integers(0, 2))
    def repack(self, more: int) -> None:
        """Give the packed kind more packs, whose clocks nobody has moved yet."""
        before = {m.id: self.find_workflow(m) for m in self.expected}
        packs = min(self.packs + more, PACKS_MAX)
        self.run(repack(self.site.client, self.settings, self.packed, packs))
        self.packs = packs
        self.control = Control(self.site.client, self.settings, {self.packed: PACK})
        for message in self.expected:
            if self.find_workflow(message) != before[message.id]:
                message.may_be_pulled = None
        self.write_clocks()

    @rule(
        message=messages,
        duration=st.sampled_from([timedelta(minutes=20), timedelta(hours=13), timedelta(days=2), timedelta(days=5)]),
        is_killed=st.booleans(),
    )
    def fast_forward(self, message: ExpectedMessage, duration: timedelta, is_killed: bool) -> None:  # noqa: FBT001 — drawn
        """Let time pass for a workflow, and kill the worker meanwhile or not."""
        if not message.ended or message.is_packed:
            self._fast_forward(message, self.now(message) + duration.total_seconds(), is_killed=is_killed)

    @rule(message=messages)
    def fast_forward_until_just_before(self, message: ExpectedMessage) -> None:
        """Let time pass until a message is nearly due: nothing may run early."""
        moment = message.due.start - 2 * MARGIN
        if message.phase == "active" and moment > self.now(message):
            self._fast_forward(message, moment)

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
            shown = await self.control.show(message.kind, message.id)
        except MessageNotFound:
            is_forgotten = message.ended and message.is_packed and self.now(message) - message.due.start > 23 * 3600
            return "" if is_forgotten else "it is lost"
        found = shown.ended if message.ended else shown.status
        if found is None:
            return f"show knows no {'end' if message.ended else 'status'}: {shown.note}"
        if difference := message.find_difference(found, [d["reason"] for d in shown.decisions]):
            return difference
        message.note_seen(found)
        return "" if shown.listed.state == message.phase else f"listed as {shown.listed.state}, not {message.phase}"

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
                before = message.version, message.phase
                self._fast_forward(message, message.due.start + 2 * MARGIN)
                assert (message.version, message.phase) != before
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


@pytest.fixture
def site(server: EmbeddedServer, tmp_path: Path) -> Iterator[Site]:
    """The session's server, whose clocks may be moved."""
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(server.connect())
    yield Site(server.address, tmp_path, loop, client)
    loop.close()


@pytest.mark.timeout(0 if IS_SEARCH else 300)
def test_messages_are_as_a_small_model_says(site: Site) -> None:
    """Never early, never lost, never twice alive, no version left out; and what is due runs, whatever was done before."""
    options = hypothesis.settings(IN_SUITE if not IS_SEARCH else hypothesis.settings.get_profile("search"))
    run_state_machine_as_test(lambda: Messages(site), settings=options)
