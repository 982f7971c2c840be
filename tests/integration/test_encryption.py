"""Encryption: the server keeps nothing of a payload or a failure that can be read, through rotation and wrong keys."""

import asyncio
import base64
import dataclasses
import functools
import os
import time
import uuid
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHistory
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities import Again, Context, Done, Message, handler
from activities.admission.gates import Gates
from activities.admission.limits import Limits
from activities.api.handler import Handler
from activities.calls.batch import BatchDispatch
from activities.calls.dispatch import Dispatch
from activities.http.client import HttpClient
from activities.registry import Registry
from shared.errors import PayloadKeyMissing
from shared.keepers.gates import GateClosure
from shared.lanes import task_queue
from shared.messages.envelope import Envelope
from shared.messages.signals import Revise, RunNow
from shared.settings import Secret, Settings
from shared.telemetry.sdk import Telemetry
from shared.temporal.encryption import KEY_ID
from starter.control import Control
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from starter.steering.keepers import GateControl, IdleControl
from starter.steering.selection import Selection
from tests.conftest import serving, wait_until
from tests.support.replayer import make_replayer
from tests.support.subjects import Subject, declare
from workflows.guards import sealed_signals
from workflows.guards.sealed_signals import NO_KEY, NO_ROOM
from workflows.keepers import LayoutWorkflow
from workflows.message_workflow import MessageWorkflow
from workflows.pack_workflow import PackWorkflow

HOUR = timedelta(hours=1)


def new_key(key_id: str) -> str:
    """Make a key as a person would."""
    return f"{key_id}:{base64.b64encode(os.urandom(32)).decode()}"


OLD = new_key("old")
NEW = new_key("new")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A server, what one side knows of the keys, and one kind of messages; `having` gives the other side."""

    server: EmbeddedServer
    client: Client
    settings: Settings
    encoding: str
    kind: str
    word: str
    """Nobody else writes it into the server's files."""

    async def having(self, *keys: str) -> "Stage":
        """Give the same with other keys, the first of which encrypts."""
        settings = dataclasses.replace(self.settings, encryption_keys=Secret(",".join(keys)))
        return dataclasses.replace(self, settings=settings, client=await self.server.connect(settings))

    @property
    def control(self) -> Control:
        """The verbs."""
        return Control(self.client, self.settings)

    def serve(self, **options: Any) -> AbstractAsyncContextManager[None]:
        """Run workers that have the keys of this side."""
        return serving(self.client, self.settings, tell(self.kind), **options)

    async def begin(self, name: str, lane: str = "short", **payload: Any) -> Subject:
        """Start a message with the word in its payload."""
        starter = BulkStarter(self.client, self.settings, encodings=declare(self.encoding, self.kind))
        payload["word"] = self.word
        envelope = Envelope(kind=self.kind, id=name, lane=lane, payload=payload)
        receipt = await starter.start(envelope, None)
        assert receipt.outcome is StartOutcome.STARTED, receipt
        return self.see(name)

    def see(self, name: str) -> Subject:
        """Give a message that is there, as this side sees it."""
        return Subject(self.client, self.control, self.encoding, self.kind, name)

    def find_in_files(self, *words: str) -> set[str]:
        """Give which of some words can be read in the server's database files."""
        files = [*self.server.options.data.glob("temporal.db*")]
        assert len(files) > 1, files  # the journal is one of them
        content = b"".join(file.read_bytes() for file in files)
        return {word for word in words if word.encode() in content}


@pytest.fixture
async def stage(server: EmbeddedServer, settings: Settings, kind: str, encoding: str) -> Stage:
    """Everything is encrypted with the old key, and each cycle begins a new run."""
    settings = dataclasses.replace(settings, cycles_per_run=1, index_after=timedelta(0))
    plain = Stage(
        server=server,
        client=await server.connect(),
        settings=settings,
        encoding=encoding,
        kind=kind,
        word=f"secret-{uuid.uuid4().hex}",
    )
    return await plain.having(OLD)


def tell(kind: str) -> Handler:
    """Make a handler that says its payload's word in all the ways there are."""

    @handler(kind, max_attempts=1)
    async def say(message: Message, ctx: Context) -> Again | Done:
        word = message.payload["word"]
        if message.payload.get("fails"):
            raise RuntimeError(f"{word} went wrong")
        if message.version < message.payload.get("cycles", 0):
            lane = "medium" if message.version % 2 else "short"
            payload = {**message.payload, "seen": f"{word}-{message.version}"}
            return Again(after=timedelta(seconds=1), payload=payload, lane=lane, reason=f"{word} again")
        return Done(f"{word} done") if message.payload.get("ends") else Again(after=HOUR, reason=f"{word} sleeps")

    return say


@workflow.defn(name="fails-with-text")
class FailsWithText:
    """Fails with a text of its activity's, and one of its own."""

    @workflow.run
    async def run(self, word: str) -> None:
        """Fail."""
        once = RetryPolicy(maximum_attempts=1)
        await workflow.execute_activity(fail_with_text, word, start_to_close_timeout=HOUR, retry_policy=once)


@activity.defn
async def fail_with_text(word: str) -> None:
    """Fail for good, with details."""
    raise ApplicationError(f"{word} in a message", f"{word} in details")


AT_ONCE = "2020-01-01T00:00:00Z"


async def test_the_files_hold_no_plaintext_of_a_payload(stage: Stage) -> None:
    """Through cycles on two lanes, new runs, signals, queries, results, parking; what is not encrypted is found."""
    word = stage.word
    control = stage.control
    async with stage.serve():
        living = await stage.begin("living", cycles=3)
        ending = await stage.begin("ending", ends=True)
        parked = await stage.begin("parked", fails=True)
        await wait_until(lambda: living.has(version=4), "four cycles are decided")
        await living.send(Revise({"word": word, "new": f"{word} revised"}, due_at=AT_ONCE, reason=f"{word} wished"))
        await wait_until(lambda: living.has(version=5), "the revision has run")
        assert (await ending.wait_ended())["result"] == f"{word} done"
        await wait_until(lambda: parked.has(phase="parked"), "it is parked")
        view = await control.show(stage.kind, "living")
        selection = Selection(kind=stage.kind, state="parked")
        listed = await wait_until(lambda: anext(aiter(control.list(selection)), None), "it is listed")

    name = living.handle.id
    plain = await stage.having()
    await plain.client.start_workflow("nobody", f"plain {word}", id=f"plain-{name}", task_queue="nobody")
    # names are plain: by them the server finds a workflow
    assert stage.find_in_files(f"plain {word}", f"{word} ", f'"{word}"', f"{word}-", name) == {f"plain {word}", name}
    assert any(f"{word} sleeps" in decision["reason"] for decision in view.decisions)
    assert listed.parked_reason == f"attempt 1 of 1: RuntimeError: {word} went wrong"


async def test_the_files_hold_no_plaintext_of_a_failure(stage: Stage) -> None:
    """Neither messages, details nor traces; who has the key reads all of it."""
    word = stage.word
    queue = stage.settings.task_queue_prefix
    runner = UnsandboxedWorkflowRunner()
    flows = [FailsWithText]
    activities = [fail_with_text]
    async with Worker(stage.client, task_queue=queue, workflows=flows, activities=activities, workflow_runner=runner):
        with pytest.raises(WorkflowFailureError) as caught:
            await stage.client.execute_workflow(FailsWithText.run, word, id=f"fails-{queue}", task_queue=queue)

    cause = caught.value.cause.__cause__
    assert isinstance(cause, ApplicationError)
    assert (cause.message, *cause.details) == (f"{word} in a message", f"{word} in details")
    assert stage.find_in_files(word, f"fails-{queue}", "fail_with_text") == {f"fails-{queue}", "fail_with_text"}


async def test_what_is_kept_beside_messages_is_encrypted_and_read_again(stage: Stage) -> None:
    """Gates with a person's reason, and what idle capacity is about, which comes in heartbeats."""
    gates = GateControl(stage.client, stage.settings)
    idle = IdleControl(stage.client, stage.settings)

    async def tell_doing() -> str:
        doing = (await idle.status("medium")).doing
        return "" if "waits for a worker" in doing else doing

    async with stage.serve():
        await idle.switch("medium", is_on=True)
        await gates.close("host:example.org", GateClosure.lasting(HOUR, f"{stage.word} closed"))
        closed = await wait_until(lambda: gates.fetch(time.time()), "the gate is closed")
        doing = await wait_until(tell_doing, "the shift tells what it is about")

    assert closed["host:example.org"].reason == f"{stage.word} closed"
    assert "begun again" not in doing
    assert stage.find_in_files(stage.word) == set()


async def test_old_messages_live_on_after_a_rotation(stage: Stage) -> None:
    """The new key encrypts what is written from then on, the old one still opens what there is."""
    async with stage.serve():
        subject = await stage.begin("old")
        await wait_until(lambda: subject.has(version=1), "it sleeps under the old key")
        await subject.send(RunNow(f"{stage.word} asked"))
        await wait_until(lambda: subject.has(version=2), "it has run under the old key")

    rotated = await stage.having(NEW, OLD)
    forgetful = await stage.having(NEW)
    subject = rotated.see("old")
    async with rotated.serve():
        await subject.send(RunNow("asked"))
        await wait_until(lambda: subject.has(version=3), "it has run under the new key")
        reasons = [decision["reason"] for decision in await subject.explain()]
    payloads = await _input_and_signals(subject)

    assert f"{stage.word} asked" in " ".join(reasons)
    assert payloads[-1].metadata[KEY_ID] == b"new"
    assert len(await rotated.client.data_converter.decode(payloads)) == len(payloads)
    with pytest.raises(PayloadKeyMissing, match="this process lacks key 'new'"):
        await stage.client.data_converter.decode(payloads)
    with pytest.raises(PayloadKeyMissing, match="this process lacks key 'old'"):
        await forgetful.client.data_converter.decode(await _input_and_signals(stage.see("old"), first=True))


async def _input_and_signals(subject: Subject, *, first: bool = False) -> list[Payload]:
    history = await subject.handle.fetch_history()
    if first:
        run_id = history.events[0].workflow_execution_started_event_attributes.first_execution_run_id
        history = await subject.client.get_workflow_handle(subject.handle.id, run_id=run_id).fetch_history()
    started = history.events[0].workflow_execution_started_event_attributes.input.payloads
    signalled = [event.workflow_execution_signaled_event_attributes.input.payloads for event in history.events]
    return [*started, *(payload for payloads in signalled for payload in payloads)]


async def test_messages_from_before_encryption_live_on_encrypted(stage: Stage) -> None:
    """Plain payloads pass; what workers without keys can't read is held, through new runs too, and nothing waits."""
    plain = await stage.having()
    async with plain.serve():
        subject = await plain.begin("early")
        await wait_until(lambda: subject.has(version=1), "it sleeps, unencrypted")
        signal = Revise({"word": stage.word, "ends": True}, due_at=AT_ONCE)
        # whoever sends to a pack waits for its word, which nobody can give yet
        sending = asyncio.create_task(stage.see("early").send(signal))
        await wait_until(lambda: _holds_signals(plain, "early", "revise"), "the worker without keys holds the signal")
        for version in (2, 3):
            await subject.send(RunNow("asked"))
            await wait_until(functools.partial(subject.has, version=version), "it goes on meanwhile")
        assert await _holds_signals(plain, "early", "revise")
    async with stage.serve():
        await sending
        ended = await stage.see("early").wait_ended()

    assert ended["result"] == f"{stage.word} done"


@pytest.mark.parametrize("left_seconds", [3, 3600], ids=["for 3 seconds", "for an hour"])
async def test_a_signal_that_nobody_can_read_stops_nobody(
    stage: Stage, left_seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers without its key go on at once, and ignore it when its time is over; workers with the key replay that."""
    monkeypatch.setattr(sealed_signals, "KEY_PATIENCE", timedelta(seconds=left_seconds))
    plain = await stage.having()
    async with plain.serve():
        subject = await plain.begin("foreign")
        await wait_until(lambda: subject.has(version=1), "it sleeps")
        run_id = (await subject.handle.describe()).run_id
        sealed = await stage.client.data_converter.encode([{"ids": ["foreign"], "reason": "sealed"}])
        await plain.client.workflow_service.signal_workflow_execution(
            SignalWorkflowExecutionRequest(
                namespace=plain.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=subject.handle.id),
                signal_name="run_now",
                input=Payloads(payloads=sealed),
            )
        )
        await wait_until(lambda: _holds_signals(plain, "foreign", "run_now"), "it waits for the key")
        if left_seconds < 10:
            await wait_until(lambda: _holds_nothing(plain, "foreign"), "it has ignored the signal")
            if not subject.is_packed:  # for whom it was, a pack can't read
                assert f"RunNow: {NO_KEY}" in [decision["reason"] for decision in await subject.explain()]
        await subject.send(RunNow("asked"))
        await wait_until(lambda: subject.has(version=2), "it hears what comes after it")
        history = await plain.client.get_workflow_handle(subject.handle.id, run_id=run_id).fetch_history()

    assert await _replay(stage, history) is None


async def test_more_sealed_signals_than_there_is_room_for_are_ignored_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody fills a workflow's state with what can't be read; who sent it is told in the message's decisions."""
    monkeypatch.setattr(sealed_signals, "HELD_BYTES_MAX", 10)
    plain = await stage.having()
    async with plain.serve():
        subject = await plain.begin("full")
        await wait_until(lambda: subject.has(version=1), "it sleeps")
        run_id = (await subject.handle.describe()).run_id
        sealed = RunNow("sealed")
        await stage.client.get_workflow_handle(subject.handle.id).signal("run_now", {"ids": ["full"], **asdict(sealed)})
        await subject.send(RunNow("asked"))
        await wait_until(lambda: subject.has(version=2), "it goes on")
        assert await _holds_nothing(plain, "full")
        if not subject.is_packed:  # for whom it was, a pack can't read
            assert f"RunNow: {NO_ROOM}" in [decision["reason"] for decision in await subject.explain()]
        history = await plain.client.get_workflow_handle(subject.handle.id, run_id=run_id).fetch_history()

    monkeypatch.undo()  # who replays it may have room
    assert await _replay(stage, history) is None


async def test_gates_go_on_beside_a_signal_that_nobody_can_read(stage: Stage) -> None:
    """A closing that is sealed waits for a worker with its key; one that can be read counts at once."""
    plain = await stage.having()
    gates = {side: GateControl(side.client, side.settings) for side in (stage, plain)}
    async with plain.serve():
        await gates[plain].close("first", GateClosure.lasting(HOUR, "plain"))
        await gates[stage].close("sealed", GateClosure.lasting(HOUR, "sealed"))
        await gates[plain].close("second", GateClosure.lasting(HOUR, "plain"))
        await wait_until(lambda: _are_closed(gates[plain], "first", "second"), "two gates are closed")
    async with stage.serve():
        await wait_until(lambda: _are_closed(gates[stage], "first", "second", "sealed"), "the key has come")


async def _replay(stage: Stage, history: WorkflowHistory) -> Exception | None:
    """Replay a run as a worker with the keys does."""
    replayer = make_replayer(
        workflows=[MessageWorkflow, PackWorkflow],
        workflow_runner=UnsandboxedWorkflowRunner(),
        data_converter=stage.client.data_converter,
    )
    return (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure


async def _are_closed(gates: GateControl, *names: str) -> bool:
    return set(await gates.fetch(time.time())) == set(names)


async def _holds_signals(stage: Stage, name: str, signal: str) -> bool:
    return f"until a worker has their key: {signal} (" in await _tell_why(stage, name)


async def _holds_nothing(stage: Stage, name: str) -> bool:
    return "until a worker has" not in await _tell_why(stage, name)


async def _tell_why(stage: Stage, name: str) -> str:
    view = await stage.control.show(stage.kind, name)
    return view.status["why"] if view.status else ""


async def test_a_worker_without_the_key_parks_nothing(stage: Stage) -> None:
    """The message waits a minute, says why, and no attempt is used up."""
    prefix = stage.settings.task_queue_prefix
    lame = await stage.having()
    queue = task_queue(prefix, "medium")
    runner = UnsandboxedWorkflowRunner()
    async with HttpClient(stage.settings) as http:
        registry = Registry([("the test", tell(stage.kind))])
        dispatch = Dispatch(
            registry, stage.settings, http.get_session, Gates(prefix), Limits(prefix), Telemetry(is_on=False)
        )
        activities = [dispatch.run_handler, BatchDispatch(dispatch).run_batch]
        flows = [MessageWorkflow, PackWorkflow, LayoutWorkflow]
        async with (
            Worker(stage.client, task_queue=queue, workflows=flows, workflow_runner=runner),
            Worker(lame.client, task_queue=queue, activities=activities),
        ):
            subject = await stage.begin("patient", lane="medium", ends=True)

            async def is_put_off() -> bool:
                return any("lacks key 'old'" in decision["reason"] for decision in await subject.explain())

            await wait_until(is_put_off, "it waits for a worker with the key")
            assert await subject.has(attempt=0, phase="active")
    async with stage.serve():
        await subject.send(RunNow("the key is there"))
        assert (await subject.wait_ended())["result"] == f"{stage.word} done"


async def test_the_longest_name_still_starts_when_all_is_encrypted(stage: Stage) -> None:
    """The server's limit for a workflow's summary holds for the encrypted one too, with the longest id of a key."""
    longest = (stage.word + "\u00fc" * 200).encode()[:200].decode(errors="ignore")
    sealed = dataclasses.replace(await stage.having(new_key("k" * 32)), kind=f"{'k' * 10}-{stage.kind}"[:50])

    await sealed.begin(longest)
