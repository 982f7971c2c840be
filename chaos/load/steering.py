"""Steering: sends verbs to a sample of the messages during a run, and malformed signals."""

import asyncio
import contextlib
import random
import time
from datetime import UTC, datetime, timedelta

from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from chaos.ledger import Ledger, What
from chaos.load.groups import GROUPS, MEDIUM, NUMBER_OF, PACKED, PACKED_MEDIUM, SOLO
from chaos.load.workload import Sizes
from shared.errors import DormiceError, MessageNotFound, PackNotServed, StandsStill
from shared.keepers.gates import GateClosure, gates_workflow_id
from shared.messages.placement import pack_workflow_id, workflow_id
from shared.messages.signals import Pause, Reprioritize, Reschedule, Resume, Revise, RunNow, Signal
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT
from starter.control import Control
from starter.steering.keepers import GateControl

VERBS_A_SECOND = 1.0
SAMPLE_EVERY = 16
"""One message in 16 is steered; most others keep the times that their handlers asked for."""

REVISED_REMAINDER = 8
"""Messages with this remainder modulo SAMPLE_EVERY are only revised, so that a call must see each revision."""

PAUSE_SECONDS = (3.0, 8.0)
LATER_SECONDS = (2.0, 15.0)
SOURCE = "chaos/0"

ODD_INPUTS: tuple[tuple[Payload, ...], ...] = (
    (
        Payload(metadata={"encoding": b"json/plain"}, data=b"{}"),
        Payload(metadata={"encoding": b"json/plain"}, data=b"{}"),
    ),
    (Payload(metadata={"encoding": b"binary/plain"}, data=b"\x00\xff"),),
    (Payload(metadata={"encoding": b"json/plain"}, data=b'"x"'),),
    (Payload(metadata={"encoding": b"json/plain"}, data=b"[1]"),),
    (Payload(metadata={"encoding": b"json/plain"}, data=b'{"priority":"1","due_at":7,"ids":7}'),),
    (Payload(metadata={"encoding": b"json/plain"}, data=b"{"),),
    (),
)
ODD_NAMES = ("run_now", "reschedule", "reprioritize", "revise", "pull_forward")
"""Signals that may be sent with malformed input: even if a workflow accepts one, it stops or pauses no message."""

GATE = "chaos"
GATE_SIGNALS = ("close", "open")
GATE_CLOSED = timedelta(seconds=1)


class Steering:
    """Sends verbs, and writes to the ledger which were sent and acknowledged."""

    def __init__(self, client: Client, settings: Settings, ledger: Ledger, sizes: Sizes, seed: int) -> None:
        self._client = client
        self._settings = settings
        self._control = Control(client, settings)
        self._ledger = ledger
        self._draw = random.Random(seed + 1)
        counts = {SOLO: sizes.solo, MEDIUM: sizes.medium, PACKED: sizes.packed, PACKED_MEDIUM: sizes.packed_medium}
        self._counts = {NUMBER_OF[group.kind]: count for group, count in counts.items()}
        self._marks: dict[tuple[int, int], int] = {}
        self.acknowledged = self.repeated = self.malformed = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Steer until `stopping` is set; returns when every verb in flight and every pause has ended."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._begin_gates())
            while not stopping.is_set():
                tasks.create_task(self._steer_one())
                tasks.create_task(self._send_malformed())
                await asyncio.sleep(1 / VERBS_A_SECOND)

    async def _begin_gates(self) -> None:
        """Close a gate that no handler uses, so that the gates' workflow exists and can be signalled."""
        with contextlib.suppress(DormiceError):
            await GateControl(self._client, self._settings).close(GATE, GateClosure.lasting(GATE_CLOSED))

    async def _steer_one(self) -> None:
        group = self._draw.choice(list(self._counts))
        number = self._draw.randrange(0, max(1, self._counts[group] - REVISED_REMAINDER), SAMPLE_EVERY)

        match self._draw.choice(("run_now", "reschedule", "pause", "revise", "reprioritize")):
            case "run_now":
                self._ledger.append(What.VERB_SENT, group, number)
                await self._send(group, number, RunNow("chaos"))
            case "reschedule":
                due = time.time() + self._draw.uniform(*LATER_SECONDS)
                self._ledger.append(What.VERB_SENT, group, number, due=due)
                await self._send(group, number, Reschedule(datetime.fromtimestamp(due, UTC).isoformat()))
            case "pause":
                self._ledger.append(What.PAUSE_SENT, group, number)
                await self._send(group, number, Pause("chaos"))
                await asyncio.sleep(self._draw.uniform(*PAUSE_SECONDS))
                await self._send(group, number, Resume("chaos"))
                self._ledger.append(What.RESUME_ACKNOWLEDGED, group, number)
            case "revise":
                await self._revise(group, number + REVISED_REMAINDER)
            case _:
                self._ledger.append(What.VERB_SENT, group, number)
                await self._send(group, number, Reprioritize(self._draw.randint(1, 5)))

    async def _revise(self, group: int, number: int) -> None:
        mark = self._marks[group, number] = self._marks.get((group, number), 0) + 1
        self._ledger.append(What.REVISION_SENT, group, number, due=time.time(), mark=mark)
        await self._send(group, number, Revise({"mark": mark}, source=SOURCE, offset=mark))
        self._ledger.append(What.REVISION_ACKNOWLEDGED, group, number, mark=mark)

    async def _send(self, group: int, number: int, signal: Signal) -> None:
        """Send a verb until it is acknowledged; each of these verbs may be sent twice."""
        kind = GROUPS[group].kind
        while True:
            try:
                await self._control.send(kind, str(number), signal)
            except MessageNotFound:  # the checkers report a lost message
                return
            except (PackNotServed, StandsStill):  # the server has the signal, and the pack will get it
                break
            except (DormiceError, RPCError):
                self.repeated += 1
                await asyncio.sleep(1)
            else:
                break

        self.acknowledged += 1

    async def _send_malformed(self) -> None:
        group = self._draw.choice(list(self._counts))
        names = ODD_NAMES
        kind = GROUPS[group].kind
        number = self._draw.randrange(0, self._counts[group], SAMPLE_EVERY)
        target = workflow_id(kind, str(number))
        if GROUPS[group].packs:
            target = pack_workflow_id(kind, self._draw.randrange(GROUPS[group].packs))

        if self._draw.random() < 0.1:
            target = gates_workflow_id(self._settings.task_queue_prefix)
            names = GATE_SIGNALS

        request = SignalWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=target),
            signal_name=self._draw.choice(names),
            input=Payloads(payloads=self._draw.choice(ODD_INPUTS)),
        )
        try:
            await self._client.workflow_service.signal_workflow_execution(request, timeout=CALL_TIMEOUT)
            self.malformed += 1
        except RPCError:  # the server is down, or the gates' workflow does not exist yet
            self.repeated += 1


def is_steered(number: int) -> bool:
    """Say whether verbs or revisions may move the due time of the message with this number."""
    return number % REVISED_REMAINDER == 0
