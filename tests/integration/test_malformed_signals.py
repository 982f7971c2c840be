"""Malformed signals: whatever somebody sends to a workflow, it goes on, and says what it has ignored."""

import json
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError, WorkflowUpdateFailedError

from activities import Again, Context, Done, Message, handler
from shared.keepers.capacity import CAPACITY_WORKFLOW, MEASURED
from shared.keepers.gates import CLOSE, GATES_WORKFLOW, OPEN
from shared.keepers.idle import IDLE_WORKFLOW
from shared.lanes import task_queue
from shared.messages.placement import LAYOUT_MEMO, LAYOUT_WORKFLOW
from shared.messages.signals import RunNow
from shared.settings import Settings
from tests.conftest import Begin, Serve, wait_until

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

LAYOUT = {"lane": "short", "packs": 3, "size": 1000, "coalesce": 60.0}


def payload(data: bytes, encoding: bytes = b"json/plain", **metadata: bytes) -> Payload:
    """Write an argument as no converter would."""
    return Payload(metadata={"encoding": encoding, **metadata}, data=data)


ODD: list[list[Payload]] = [
    [payload(b"{}"), payload(b"{}")],
    [payload(b"\x00", b"binary/plain")],
    [payload(b"", b"binary/null"), payload(b"", b"binary/null")],
    [payload(b"x", b"something/else")],
    [payload(b"x", b"\xff\xfe")],
    [Payload(data=b"x")],
    [payload(b"{")],
    [payload(b"\xff")],
    [payload(b"NaN")],
    [payload(b'"x"')],
    [payload(b"[1]")],
    [payload(b"[" * 5000 + b"]" * 5000)],
    [payload(b'{"due_at":5,"priority":"1","payload":' + b"[" * 200 + b"]" * 200 + b"}")],
    [payload(b"no key at all", b"binary/encrypted")],
]
"""Inputs that no signal takes."""


async def send_raw(client: Client, workflow_id: str, name: str, arguments: Iterable[Payload] | None) -> None:
    """Send a signal as it is."""
    await client.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            signal_name=name,
            input=None if arguments is None else Payloads(payloads=arguments),
        )
    )


async def count_failed_tasks(handle: WorkflowHandle[Any, Any]) -> int:
    """Count the workflow tasks that have failed in the present run."""
    failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    return sum([event.event_type == failed async for event in handle.fetch_history_events()])


def to_json(value: Any) -> list[Payload]:
    """Write one argument that is JSON, of a wrong kind."""
    return [payload(json.dumps(value).encode())]


async def test_a_malformed_signal_stops_no_message(
    client: Client, serve: Serve, begin: Begin, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of any name, encoding, number and type; what follows is applied; what was ignored is remembered, in one line."""

    @handler(kind)
    async def quick(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(hours=1), payload={"calls": message.version + 1})

    async with serve(quick, lanes=("short",)):
        message = await begin(kind)
        await wait_until(lambda: message.has(version=1), "it sleeps")
        handle = message.handle
        ids = [message.id]
        with caplog.at_level(logging.WARNING):
            for arguments in ODD:
                await send_raw(client, handle.id, "pause", arguments)
            internal = ("admit", "report", "spread") if message.is_packed else ()
            for name in (*internal, "reschedule", "reprioritize", "revise", "pull_forward", "no_such_signal"):
                await send_raw(client, handle.id, name, None)
                await send_raw(client, handle.id, name, ODD[0])
            wrong = [
                ("reprioritize", {"priority": "1"}),
                ("reschedule", {"due_at": 5}),
                ("revise", {"payload": "x" * 5000}),
            ]
            for name, fields in wrong:
                await send_raw(client, handle.id, name, to_json({"ids": ids, **fields}))
            for name, chunk in WRONG_FOR_PACKS if message.is_packed else ():
                await send_raw(client, handle.id, name, to_json(chunk))
            if message.is_packed:
                await message.send_from_sdk(RunNow())
            else:
                await handle.signal("run_now", RunNow())
            await wait_until(lambda: message.has(version=2, payload={"calls": 2}), "it hears what comes after them")
        neighbour = await begin(kind, id=(message.neighbours(1) or [f"{message.id}-other"])[0])
        await wait_until(lambda: neighbour.has(version=1), "another one runs")
        ignored = [decision["reason"] for decision in await message.explain() if decision["what"] == "ignored"]
        failed = await count_failed_tasks(handle)

    assert failed == 0
    assert ignored[-3:] == [
        "Reprioritize: priority is '1'; give a whole number from 1 to 5",
        "Reschedule: due_at is 5; give a moment, for example 2026-11-21T20:00:00Z",
        "Revise: the payload is 5002 bytes of JSON, the limit is 4096; keep bulk data elsewhere and send its key",
    ]
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.message for record in warnings if record.exc_info or "ignored" not in record.message] == []
    assert len(warnings) > len(ODD)


WRONG_FOR_PACKS: list[tuple[str, Any]] = [
    ("pause", {"ids": {}}),
    ("pause", {"ids": ["\ud800"]}),
    ("pause", {"ids": [1]}),
    ("report", {"batch": []}),
    ("report", {"batch": 1}),
    ("report", {"batch": 1, "outcomes": [[0, {"verdict": "x"}]], "ended_at": 1}),
    ("admit", {"token": "t", "entries": [["a"]]}),
    ("admit", {"token": "t", "entries": [["a", 10**30, 0, 0, 0, None, []]]}),
    ("admit", {"token": "t", "entries": [["a", 1, 0, 0, 0, None, [[0, 0, "started", 0]]]]}),
    ("admit", {"token": "t", "entries": [["a", 1, 0, 0, 0, None, [], {"priority": "x"}]]}),
    ("admit", {"token": "t", "entries": [["a", 1, 0, 0, 0, None, [], {"tenant": "x"}]], "revises": True}),
    ("admit", {"token": [], "entries": []}),
    ("spread", {"packs": True}),
    ("spread", {"packs": 1e9}),
    ("pull_forward", {"count": True, "at": 1, "until": 2, "token": "t"}),
    ("pull_forward", {"count": 1, "at": 1e300, "until": 2, "token": "t"}),
]


BESIDE: list[tuple[str, list[tuple[str, Any]], str, list[Any]]] = [
    (
        GATES_WORKFLOW,
        [
            (CLOSE, {"gate": "x", "opens_at": "soon", "reason": ""}),
            (CLOSE, {"gate": "x", "opens_at": 1e300}),
            (CLOSE, {"gate": 5, "opens_at": 1e9}),
            (CLOSE, {"gate": "x", "opens_at": True}),
            (OPEN, {"gate": []}),
        ],
        CLOSE,
        [{"gate": "host:right", "opens_at": 4e9, "reason": "r" * 1000}],
    ),
    (
        IDLE_WORKFLOW,
        [("limits", {"reserve": "x"}), ("limits", {"nothing": 1}), ("on", {"x": 1})],
        "limits",
        [{"reserve": 0.5}],
    ),
    (CAPACITY_WORKFLOW, [(MEASURED, {"x": 1}), (MEASURED, "alone")], MEASURED, ["right", 5.5]),
    (LAYOUT_WORKFLOW, [("grow", {"packs": 0}), ("grow", {"packs": "x"}), ("grow", 9)], "grow", [{"packs": 7}]),
]


@pytest.mark.parametrize(("workflow", "wrong", "name", "right"), BESIDE, ids=[row[0] for row in BESIDE])
async def test_a_malformed_signal_stops_no_workflow_beside_messages(  # noqa: PLR0917 — fixtures and the row of a table
    serve: Serve,
    client: Client,
    settings: Settings,
    workflow: str,
    wrong: list[tuple[str, Any]],
    name: str,
    right: list[Any],
) -> None:
    """Gates, idle capacity, measured capacity and layouts take the next signal that they can read."""

    @handler("unused")
    async def unused(message: Message, ctx: Context) -> Done:
        return Done()

    async with serve(unused, lanes=("short",)):
        queue = task_queue(settings.task_queue_prefix, "short")
        handle = await client.start_workflow(
            workflow, id=f"{queue}-{workflow}", task_queue=queue, memo={LAYOUT_MEMO: LAYOUT}
        )
        for arguments in (None, *ODD, [*ODD[0], *ODD[0]]):
            await send_raw(client, handle.id, name, arguments)
        for other, value in wrong:
            await send_raw(client, handle.id, other, to_json(value))
        await send_raw(client, handle.id, "no_such_signal", ODD[1])
        before = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        await handle.signal(name, args=right)
        after = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        memo = await (await handle.describe()).memo()
        failed = await count_failed_tasks(handle)
        await handle.terminate()

    assert failed == 0
    # a layout's memo changes when the kind has grown, and this is none
    assert "right" in json.dumps(memo) or memo != {LAYOUT_MEMO: LAYOUT} or workflow == LAYOUT_WORKFLOW
    assert before.current_details
    assert (workflow == IDLE_WORKFLOW) or after.current_details != before.current_details


async def test_a_malformed_query_or_update_is_answered_with_an_error(serve: Serve, begin: Begin, kind: str) -> None:
    """With no, too many and wrong arguments; the workflow goes on."""

    @handler(kind)
    async def quick(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(hours=1))

    async with serve(quick, lanes=("short",)):
        message = await begin(kind)
        await wait_until(lambda: message.has(version=1), "it sleeps")
        wrong: list[list[Any]] = [[], [5], [["a"]], [b"\x00"]] if message.is_packed else []
        for name, arguments in [
            *(("status", given) for given in wrong),
            *(("no_such", given) for given in ([], [1, 2])),
        ]:
            with pytest.raises(WorkflowQueryFailedError):
                await message.handle.query(name, args=arguments)
        with pytest.raises(WorkflowUpdateFailedError):
            await message.handle.execute_update("pause", args=[1, 2])  # pyright: ignore[reportUnknownMemberType] — the SDK leaves a type argument open
        failed = await count_failed_tasks(message.handle)
        assert await message.has(version=1)

    assert failed == 0
