"""Liveness: after the last fault, everything due runs, everything sent arrives, and every sender gets its answer."""

# The checks read the private states of workflows.
# pyright: reportPrivateUsage=false
# ruff: noqa: SLF001

from typing import Any

from chaos.simulation.handlers import PACKED, SILENT, SOLO, TIMEOUT
from chaos.simulation.ledger.ledger import Ledger, Violation
from chaos.simulation.server.client import find_view
from chaos.simulation.server.run import Run
from chaos.simulation.server.server import Server
from chaos.simulation.users.bridge import SOURCE, Bridge
from shared.messages.message import MessageState
from shared.messages.placement import PACK_WORKFLOW, workflow_id
from starter.starting.receipts import StartOutcome

GRACE_SECONDS = 20.0
"""Most lateness of a message beyond its tolerance."""

TASK_SECONDS = 10.0
"""Most seconds since the last event while a workflow task is under way: nothing is lost after the last fault."""

CALL_SECONDS = TIMEOUT.total_seconds() + GRACE_SECONDS
"""Most lateness of a message beyond its tolerance while its handler is at work."""


def check_end(server: Server, ledger: Ledger, bridge: Bridge) -> None:
    """Check that no message stands still and none is lost; raises Violation."""
    found: dict[str, MessageState] = {}
    for run in server.current.values():
        if run.workflow_type == PACK_WORKFLOW:
            _check_pack(run, ledger.now, found)
        elif run.is_open:
            state: MessageState = _view(run)._state
            _check_late(run.workflow_id, state, ledger.now)
            _check_parked(state)

    _check_found(server, ledger, found)
    _check_records(ledger, bridge, found)


def _view(run: Run) -> Any:
    return find_view(run).object


def _check_pack(run: Run, now: float, found: dict[str, MessageState]) -> None:
    if not run.is_open:
        raise Violation(f"{run.workflow_id} is closed")

    if run.task is not None or run.is_task_scheduled:
        begun = max(event.at for event in run.history)
        if now - begun > TASK_SECONDS:
            raise Violation(f"a task of {run.workflow_id} has been under way for {now - begun:.0f} s")
        view = None
    else:
        view = _view(run)._pack

    pack = view or _view(run)._pack
    for state in (*pack.messages.alive(), *pack.messages.finished()):
        if state.id in found and not found[state.id].ended and not state.ended:
            raise Violation(f"{state.id} is alive in two packs")
        found[state.id] = state
        if not state.ended:
            _check_late(f"{run.workflow_id}, {state.id}", state, now)
            _check_parked(state)

    if view is not None and (len(pack.forwarding) or pack.messages.leaving):
        raise Violation(
            f"{run.workflow_id} still has {len(pack.forwarding)} messages of other packs, "
            f"and {len(pack.messages.leaving)} that leave"
        )


def _check_late(name: str, state: MessageState, now: float) -> None:
    late = now - max(state.due_at, state.latest_at)
    maximum = CALL_SECONDS if state.is_running else GRACE_SECONDS
    if not state.is_held and late > maximum:
        raise Violation(
            f"{name} stands still: {late:.0f} s late at version {state.version}, last {state.decisions[-1:]}"
        )


def _check_parked(state: MessageState) -> None:
    """Check that a message whose site never answers was parked after its attempts; nobody sends it signals."""
    if state.id.startswith(SILENT) and not state.is_parked:
        raise Violation(f"{state.id} is not parked, but at version {state.version}, attempt {state.attempt}")


def _check_found(server: Server, ledger: Ledger, found: dict[str, MessageState]) -> None:
    for (kind, message_id), tracked in ledger.messages.items():
        is_there = workflow_id(kind, message_id) in server.current if kind == SOLO else message_id in found
        if tracked.is_acknowledged and not is_there and not tracked.may_be_over:
            raise Violation(f"{kind}:{message_id} was acknowledged and is lost")
        if kind == PACKED and tracked.sent and sum(tracked.outcomes.values()) < tracked.sent and not tracked.asking:
            raise Violation(f"{message_id} was sent {tracked.sent} times, its senders know of {dict(tracked.outcomes)}")
        if is_there and kind == PACKED and set(tracked.outcomes) == {StartOutcome.REJECTED}:
            raise Violation(f"{message_id} was refused, says its receipt, and is there")


def _check_records(ledger: Ledger, bridge: Bridge, found: dict[str, MessageState]) -> None:
    if bridge.committed != len(bridge.topic):
        raise Violation(f"{len(bridge.topic)} records were written, {bridge.committed} are committed")
    for message_id, state in found.items():
        offset = ledger.of(PACKED, message_id).offsets.get(SOURCE, -1)
        if state.sources.get(SOURCE, -1) < offset:
            raise Violation(f"{message_id} was acknowledged up to record {offset}, it has {dict(state.sources)}")
