"""Fuzzed signals: thousands of inputs that nobody has thought of, of every name, and each workflow goes on."""

import asyncio
import copy
import json
import random
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from activities import Again, Context, Message, handler, server_calls
from activities.api.limit import Limit
from shared.keepers.capacity import CAPACITY_WORKFLOW, MEASURED
from shared.keepers.gates import CLOSE, GATES_WORKFLOW, OPEN
from shared.keepers.idle import IDLE_WORKFLOW
from shared.keepers.limits import LIMITS_WORKFLOW, limits_queue
from shared.lanes import task_queue
from shared.messages.placement import LAYOUT_MEMO, LAYOUT_WORKFLOW
from shared.messages.signals import Reschedule, Resume, RunNow
from shared.settings import Settings
from tests.conftest import Begin, Serve, wait_until
from tests.integration.test_malformed_signals import ODD, payload, send_raw
from tests.support.subjects import Subject

AT_ONCE = 8
LAYOUT = {"lane": "short", "packs": 5000, "size": 1000, "coalesce": 0.0}  # as many as any junk asks for
MOMENT = "2099-01-01T00:00:00Z"
NEAR = datetime(2030, 1, 1, tzinfo=UTC)  # less than ten years ahead, beyond which moments are cut
LARGE_SHARE = 0.002  # of the values; the server refuses signals of more than 2 MB

JUNK: list[Any] = [
    *(None, True, False, "", "x", "short", "\x00", "ü" * 300, "x" * 5000, [], {}, [None], [[]], {"x": 1}),
    *(0, 1, -1, 5, 7, 5000, 2**31, 2**53, 2**63, -(2**63), 10**30, 10**4000, 0.5, -0.5, 1e9, 1e12, 1e15, 1e18, 1e308),
    *(MOMENT, "9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00+14:00", "2026-11-21T20:00:00", "now"),
    *([7], [[5000, {}]], ["a", "a"], [["a", 1, 0, 0, 0, None, []]], {"turn": 7}, {"ids": 1}, {"due_at": 5}),
]

ENTRY: list[Any] = [
    "new",
    4_000_000_000_000,
    0,
    0,
    0,
    {"n": 1},
    [[0, 0, "started", 0, ""]],
    {
        "attempt": 1,
        "priority": 2,
        "tenant": "a",
        "correlation_id": "c",
        "is_paused": True,
        "parked_reason": "p",
        "parked_at": 1e9,
        "result": 1,
        "revision": 1,
        "sources": {"t/0": 1},
        "trace": {"traceparent": "x"},
        "turn": [1e9, False, "k"],
        "started_at": 1e9,
        "skipped": 1,
        "expires_at": 4e9,
        "lane": "medium",
    },
]
STEERING: dict[str, dict[str, Any]] = {
    "run_now": {"reason": "r"},
    "reschedule": {"due_at": MOMENT, "reason": "r"},
    "reprioritize": {"priority": 2, "due_at": MOMENT, "reason": "r"},
    "revise": {
        "payload": {"n": 2},
        "source": "t/0",
        "offset": 1,
        "lane": "medium",
        "due_at": MOMENT,
        "priority": 4,
        "trace": {"traceparent": "x"},
        "if_version": 0,
        "if_due_before": MOMENT,
    },
    "pause": {"reason": "r"},
    "resume": {"reason": "r"},
    "pull_forward": {"expected_due_at": MOMENT, "reason": "r"},
}
OF_PACKS: dict[str, dict[str, Any]] = {
    "stop": {"ids": ["a", "b"], "token": "t", "reason": "r", "source": "t/0", "offset": 1},
    "pull": {"count": 1, "at": 1e9, "until": 4e9, "token": "t"},
    "admit": {"token": "t", "entries": [ENTRY], "ended": [], "sent_at": 1e9, "restarts": True, "revises": True},
    "report": {"batch": 1, "outcomes": [[0, {"verdict": "again", "turn": 7, "tolerance": 1e308}]], "ended_at": 1e9},
}
OF_KEEPERS: dict[str, dict[str, Any]] = {
    GATES_WORKFLOW: {
        CLOSE: {"gate": "host:x", "opens_at": 4e9, "reason": "r", "replaces": True},
        OPEN: {"gate": "host:x"},
    },
    IDLE_WORKFLOW: {
        "limits": {"reserve": 0.5, "quiet_seconds": 3.0, "pack_messages": 5, "reach_seconds": 900.0},
        "on": {},
        "off": {},
    },
    CAPACITY_WORKFLOW: {MEASURED: ["worker", 5.5]},
    LAYOUT_WORKFLOW: {"grow": {"packs": 4}},
    LIMITS_WORKFLOW: {"take": {"asks": [], "ended": []}},
}


class Fuzzer:
    """Makes the arguments of signals from right ones: some of their parts replaced, left out, added or repeated."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, templates: Mapping[str, Any]) -> tuple[str, list[Payload] | None]:
        """Give the name of a signal and its arguments."""
        name = self._random.choice([*templates, "no_such_signal"])
        kind = self._random.random()
        if kind < 0.05:
            return name, self._random.choice([None, *ODD])
        arguments = [self._write(self._mutate(copy.deepcopy(templates.get(name, {}))))]
        if kind > 0.95:
            arguments.append(self._write(self._junk()))
        return name, arguments

    def _write(self, value: Any) -> Payload:
        text = json.dumps(value, ensure_ascii=self._random.random() < 0.5)
        encoding = self._random.choice([b"json/plain"] * 20 + [b"json/protobuf", b"binary/plain", b"binary/zlib"])
        return payload(text.encode(errors="surrogatepass"), encoding)

    def _mutate(self, value: Any) -> Any:
        for _ in range(self._random.choice([1, 1, 1, 2, 3])):
            value = self._mutate_once(value)
        return value

    def _mutate_once(self, value: Any) -> Any:
        if not isinstance(value, dict | list) or not value or self._random.random() < 0.05:
            return self._junk()

        parts = cast("Any", value)
        is_object = isinstance(value, dict)
        keys: list[Any] = list(parts) if is_object else list(range(len(parts)))
        key = self._random.choice(keys)

        match self._random.choice(["replace", "replace", "descend", "descend", "leave out", "add"]):
            case "replace":
                parts[key] = self._junk()
            case "descend":
                parts[key] = self._mutate_once(parts[key])
            case "leave out":
                del parts[key]
            case _ if is_object:
                parts[self._random.choice(["turn", "due_at", "token", "ids", "x", ""])] = self._junk()
            case _:
                parts.append(self._junk())

        return parts

    def _junk(self) -> Any:
        if self._random.random() < LARGE_SHARE:
            return "x" * self._random.choice([300_000, 1_900_000])
        return copy.deepcopy(self._random.choice(JUNK))


async def send_many(client: Client, targets: list[tuple[str, Mapping[str, Any]]], count: int, fuzzer: Fuzzer) -> None:
    """Send signals to workflows in turn, some at once."""
    rounds = targets * (count // len(targets))
    chosen = iter([(workflow_id, *fuzzer.choose(templates)) for workflow_id, templates in rounds])

    async def send_in_turn() -> None:
        for workflow_id, name, arguments in chosen:
            await send(client, workflow_id, name, arguments)

    await asyncio.gather(*(send_in_turn() for _ in range(AT_ONCE)))


async def send(client: Client, workflow_id: str, name: str, arguments: list[Payload] | None) -> None:
    """Send one signal, again while the workflow continues as new; one that is too large for the server is left out."""
    async with asyncio.timeout(60):
        while True:
            try:
                await send_raw(client, workflow_id, name, arguments)
            except RPCError as exc:
                if exc.status is RPCStatusCode.INVALID_ARGUMENT:
                    return
                if exc.status is RPCStatusCode.NOT_FOUND:
                    raise
                await asyncio.sleep(0.1)
            else:
                return


async def read_life(client: Client, handle: WorkflowHandle[Any, Any]) -> AsyncIterator[Any]:
    """Give the events of all runs of a workflow, the last run first."""
    run_id: str | None = (await handle.describe()).run_id
    while run_id:
        before = ""
        async for event in client.get_workflow_handle(handle.id, run_id=run_id).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                before = event.workflow_execution_started_event_attributes.continued_execution_run_id
            yield event
        run_id = before


async def find_failures(client: Client, handle: WorkflowHandle[Any, Any]) -> list[str]:
    """Give why tasks of a workflow have failed, in all of its runs."""
    # the server repeats a task when a signal comes while its workflow continues as new, or a hundred while it is done
    harmless = {
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
    }
    return [
        f"{WorkflowTaskFailedCause.Name(failed.cause)}: {failed.failure.message}"
        async for event in read_life(client, handle)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        and (failed := event.workflow_task_failed_event_attributes).cause not in harmless
    ]


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(5_000, marks=pytest.mark.timeout(240)),
        pytest.param(100_000, marks=[pytest.mark.fault, pytest.mark.long, pytest.mark.timeout(3000)]),
    ],
)
async def test_no_signal_stops_any_workflow(  # noqa: PLR0917 — fixtures and the row of a table
    client: Client,
    settings: Settings,
    serve: Serve,
    begin: Begin,
    kind: str,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is sent to a message, a pack or a keeper, no task fails, and what is sent after it takes effect."""
    seed = random.randrange(10**6)
    # the runs that a pack has left are read in the end
    monkeypatch.setattr(server_calls, "DELETE_AFTER", timedelta(hours=1))

    # a limit that nobody reaches brings the worker of the limits' workflows along
    @handler(kind, limit=Limit(key="fuzzed", at_once=1000))
    async def quick(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(hours=1))

    async with serve(quick, lanes=("short", "medium")):
        message = await begin(kind)
        templates: Mapping[str, Any] = {**OF_PACKS, **name_messages(message.id)} if message.is_packed else STEERING
        targets: list[tuple[str, Mapping[str, Any]]] = [(message.handle.id, templates)]
        keepers = await start_keepers(client, settings) if message.is_packed else []
        targets += [(keeper.id, OF_KEEPERS[workflow]) for workflow, keeper in keepers]
        await send_many(client, targets, count, Fuzzer(seed))

        await check_goes_on(message)
        for _, keeper in keepers:
            await keeper.query("__temporal_workflow_metadata")
        handles = [message.handle, *(keeper for _, keeper in keepers)]
        failures = [failure for handle in handles for failure in await find_failures(client, handle)]
        for _, keeper in keepers:
            await keeper.terminate()

    assert failures == [], f"seed {seed}"


def name_messages(message_id: str) -> dict[str, dict[str, Any]]:
    """Give a pack's signals that steer a message, and one that the pack does not have."""
    return {name: {"ids": [message_id, "a"], "token": "t", **fields} for name, fields in STEERING.items()}


async def start_keepers(client: Client, settings: Settings) -> list[tuple[str, WorkflowHandle[Any, Any]]]:
    """Start each workflow that keeps something for all messages; give them with their types."""
    prefix = settings.task_queue_prefix

    async def start(workflow: str) -> WorkflowHandle[Any, Any]:
        is_limits = workflow == LIMITS_WORKFLOW
        return await client.start_workflow(
            workflow,
            args=[{}] if is_limits else [],
            id=f"{prefix}-{workflow}",
            task_queue=limits_queue(prefix) if is_limits else task_queue(prefix, "short"),
            memo={LAYOUT_MEMO: LAYOUT},
        )

    return [(workflow, await start(workflow)) for workflow in OF_KEEPERS]


async def check_goes_on(message: Subject) -> None:
    """Check that a message still does what it is told, after whatever it was told before."""
    await message.send_from_sdk(Resume())
    before = (await message.status())["version"]
    await message.send_from_sdk(RunNow())

    async def has_run() -> bool:
        return (await message.status())["version"] > before

    await wait_until(has_run, "it runs when it is asked to")
    await message.send_from_sdk(Reschedule(NEAR.isoformat()))
    await wait_until(lambda: message.has(due_at_epoch=NEAR.timestamp()), "it is due when it is asked to be")
