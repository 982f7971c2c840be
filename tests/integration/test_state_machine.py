"""Random lives on the real server: whatever is done in whatever order, messages are as a small model says.

Every message has its workflow's own clock, which the machine moves by hours and days. Worker processes are killed by
their id. A longer search is `pytest tests/integration/test_state_machine.py --hypothesis-profile=search`, see
CONTRIBUTING.md.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    initialize,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType] — it has no annotations
)
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest, SignalWorkflowExecutionRequest

from shared.errors import MessageAlive
from shared.messages.envelope import Envelope
from shared.messages.signals import (
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
from starter.local.embedded import EmbeddedServer
from starter.starting.receipts import StartOutcome
from starter.steering.repack import repack
from tests.support.machine import MARGIN, MessageMachine, Site, write_moment
from tests.support.machine_model import ExpectedMessage, Span

IS_SEARCH = hypothesis.settings.get_current_profile_name() == "search"
IN_SUITE = hypothesis.settings(
    stateful_step_count=12,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)

MESSAGES_MAX = 6
PACKS_MAX = 6

HARMLESS_INPUTS: list[tuple[str, list[Payload]]] = [
    (name, [Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())])
    for name, value in (
        ("run_later", {"reason": "there is no such signal"}),
        ("reschedule", {"ids": ["a", "b", "c", "d", "e", "f"], "due_at": "soon"}),
        ("reschedule", {"ids": ["a", "b", "c", "d", "e", "f"], "due_at": "2026-11-21T20:00:00"}),
        ("reprioritize", {"ids": ["a", "b", "c", "d", "e", "f"], "priority": 9}),
        ("reprioritize", {"ids": ["nobody"], "priority": -1, "no such field": 1}),
        ("pull_forward", {"ids": ["nobody"], "expected_due_at": "never"}),
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
    st.integers(1, 5).map(Reprioritize),
    st.builds(Revise, payload=payloads, source=st.just("topic/0"), offset=st.integers(0, 9)),
    st.just(Pause()),
    st.just(Resume()),
    st.just(Stop()),
)
"""Signals to finish with `Messages.finish`: a moment is still seconds from now."""


class Messages(MessageMachine):
    """Two kinds of messages, solo and packed, and one worker process for both."""

    messages = Bundle("messages")

    @initialize(target=messages, solo=payloads, packed=payloads)
    def begin(self, solo: dict[str, Any], packed: dict[str, Any]) -> Any:
        """Begin with one message of each kind."""
        return multiple(self._start(False, solo, None), self._start(True, packed, None))

    @precondition(lambda self: len(self.expected) < MESSAGES_MAX)
    @rule(target=messages, is_packed=st.booleans(), payload=payloads, delay=st.none() | delays)
    def start(self, is_packed: bool, payload: dict[str, Any], delay: timedelta | None) -> Any:  # noqa: FBT001 — drawn
        """Start another message, now or for later."""
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
        begun = self.now(message)
        sent = time.time()
        at = None if delay is None else datetime.fromtimestamp(begun, UTC) + delay
        envelope = Envelope(kind=message.kind, id=message.id, lane="short", payload=payload, scheduled_at=at)

        if not message.ended:
            with pytest.raises(MessageAlive):
                self.run(self.control.start(envelope))
            return

        receipt = self.run(self.control.start(envelope))
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
            expected = write_moment(message.due.start + error)
            begun = self.now(message)
            self._send(message, self.finish(PullForward(expected), begun), begun)

    @rule(message=messages, drawn=st.lists(signals, min_size=1, max_size=3))
    def send_while_no_worker_is_there(self, message: ExpectedMessage, drawn: list[Signal]) -> None:
        """Kill the worker, steer a message while none is there, and start another worker."""
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

        self.run(self._wait_until_heard(message))
        now = self.since(message, begun)
        message.apply(asked, now)
        message.run_steered(sent, now)
        self._run_due(message, begun)

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
        self.control = Control(self.site.client, self.settings, self.registry)
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


@pytest.fixture
def site(server: EmbeddedServer, tmp_path: Path) -> Iterator[Site]:
    """The session's server, whose clocks may be moved."""
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(server.connect())
    yield Site(server.address, tmp_path, loop, client)
    loop.close()


@pytest.mark.parametrize("lives", [2, pytest.param(8, marks=(pytest.mark.fault, pytest.mark.long))])
@pytest.mark.timeout(0 if IS_SEARCH else 300)
def test_messages_are_as_a_small_model_says(site: Site, lives: int) -> None:
    """Never early, never lost, never twice alive, no version left out; what is due runs, whatever was done before."""
    in_suite = hypothesis.settings(IN_SUITE, max_examples=lives)
    options = hypothesis.settings.get_profile("search") if IS_SEARCH else in_suite
    run_state_machine_as_test(
        lambda: Messages(site),  # pyright: ignore[reportArgumentType] — any factory will do
        settings=options,
    )
