"""The bulk starter: everything is accepted in the end, nothing is started twice, and the server is never overrun."""

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client

from activities import Context, Done, Message, handler
from shared.errors import Misconfigured
from shared.messages.encoding import SIZE_MAX, Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import workflow_id
from shared.settings import Settings
from shared.temporal.search_attributes import REQUIRED
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting import bulk
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import Receipt, StartOutcome
from tests.conftest import Serve, wait_until

LATER = datetime.now(UTC) + timedelta(days=1)


def asleep(ids: Iterable[str]) -> list[Envelope]:
    """Make envelopes of messages that are due tomorrow, so that no worker is needed."""
    return [Envelope(kind="sleeper", id=id_, lane="short", scheduled_at=LATER) for id_ in ids]


async def load(starter: BulkStarter, envelopes: Iterable[Envelope]) -> list[Receipt[str]]:
    """Start them all, tagged with their ids."""
    return [receipt async for receipt in starter.start_all((envelope.id, envelope) for envelope in envelopes)]


def kill(server: EmbeddedServer) -> None:
    """End the server process itself with SIGKILL, as the kernel does when memory runs out."""
    assert server.process_id is not None
    for child in psutil.Process(server.process_id).children():
        child.kill()


def outcomes(receipts: Iterable[Receipt[Any]]) -> dict[str, str]:
    """Give outcome by tag."""
    return {receipt.tag: receipt.outcome.value for receipt in receipts}


@pytest.fixture
def ids(message_id: Callable[[], str]) -> list[str]:
    """A hundred ids."""
    return [message_id() for _ in range(100)]


async def test_every_message_gets_a_receipt_with_its_run(client: Client, settings: Settings, ids: list[str]) -> None:
    """The receipt names what was asked for, and the run that the server made of it."""
    receipts = await load(BulkStarter(client, settings), asleep(ids))

    assert len(receipts) == len(ids)
    assert outcomes(receipts) == dict.fromkeys(ids, "started")
    for receipt in receipts[:3]:
        described = await client.get_workflow_handle(receipt.workflow_id).describe()
        assert (described.id, described.run_id) == (workflow_id("sleeper", receipt.tag), receipt.run_id)


async def test_a_second_load_finds_all_of_them_running(client: Client, settings: Settings, ids: list[str]) -> None:
    """The receipt of one that is alive names the run that is."""
    first = await load(BulkStarter(client, settings), asleep(ids))

    second = await load(BulkStarter(client, settings), asleep(ids))

    assert outcomes(second) == dict.fromkeys(ids, "already running")
    assert {r.tag: r.run_id for r in second} == {r.tag: r.run_id for r in first}


async def test_the_same_id_twice_in_one_load_is_started_once(
    client: Client, settings: Settings, ids: list[str]
) -> None:
    """The second one is a message that is running already, whichever of the two came first."""
    twice = [(f"{number}-{e.id}", e) for number in (1, 2) for e in asleep(ids[:20])]

    receipts = [receipt async for receipt in BulkStarter(client, settings).start_all(twice)]

    for message_id in ids[:20]:
        both = sorted(r.outcome.value for r in receipts if r.workflow_id == workflow_id("sleeper", message_id))
        assert both == ["already running", "started"]


async def test_in_one_session_the_same_start_is_one_wish(client: Client, settings: Settings, ids: list[str]) -> None:
    """A caller that is retried as a whole gets the receipts of its first try again."""
    first = await load(BulkStarter(client, settings, session="task 7"), asleep(ids[:5]))

    again = await load(BulkStarter(client, settings, session="task 7"), asleep(ids[:5]))
    other = await load(BulkStarter(client, settings, session="task 8"), asleep(ids[:5]))

    assert {r.tag: (r.outcome, r.run_id) for r in again} == {r.tag: (r.outcome, r.run_id) for r in first}
    assert outcomes(other) == dict.fromkeys(ids[:5], "already running")


async def test_finished_messages_are_started_anew_only_when_asked(
    client: Client, settings: Settings, serve: Serve, ids: list[str]
) -> None:
    """Loading a file again does not repeat the work that is done; `restarts_finished` does."""

    @handler("errand")
    async def run(message: Message, ctx: Context) -> Done:
        return Done()

    errands = [Envelope(kind="errand", id=id_, lane="short") for id_ in ids[:5]]
    async with serve(run, lanes=("short",)):
        for receipt in await load(BulkStarter(client, settings), errands):
            await client.get_workflow_handle(receipt.workflow_id).result()

        again = await load(BulkStarter(client, settings), errands)
        anew = await load(BulkStarter(client, settings, restarts_finished=True), errands)
        for receipt in anew:
            await client.get_workflow_handle(receipt.workflow_id).result()

    assert outcomes(again) == dict.fromkeys(ids[:5], "already running")
    assert outcomes(anew) == dict.fromkeys(ids[:5], "started")


async def test_an_idempotency_key_holds_over_loads(client: Client, settings: Settings, ids: list[str]) -> None:
    """The sender's own key makes both loads one wish: the same run is the answer to both."""
    envelope = asleep(ids[:1])[0].model_copy(update={"idempotency_key": "order 66"})

    first = await BulkStarter(client, settings).start(envelope, None)
    second = await BulkStarter(client, settings, restarts_finished=True).start(envelope, None)

    assert (first.outcome, first.run_id) == (second.outcome, second.run_id)


async def test_what_can_never_be_started_is_rejected_and_the_rest_goes_on(
    client: Client, settings: Settings, ids: list[str]
) -> None:
    """Rejected by our own rule (no lane) or by the server (an id beyond its limit), with the reason."""
    no_lane = Envelope(kind="sleeper", id="no-lane", scheduled_at=LATER)
    too_long = no_lane.model_copy(update={"id": "x" * 2000, "lane": "short"})

    receipts = await load(BulkStarter(client, settings), [no_lane, too_long, *asleep(ids[:3])])
    by_tag = {receipt.tag: receipt for receipt in receipts}

    assert by_tag["no-lane"].outcome is StartOutcome.REJECTED
    assert by_tag["no-lane"].reason == "lane: is not resolved; pass envelopes through parse_envelope first"
    assert by_tag["x" * 2000].outcome is StartOutcome.REJECTED
    assert by_tag["x" * 2000].reason.startswith("the server refuses it (")
    assert {by_tag[id_].outcome for id_ in ids[:3]} == {StartOutcome.STARTED}


async def test_a_scheduled_message_is_never_due_a_fraction_early(client: Client, settings: Settings) -> None:
    """Due times are kept in milliseconds: those of the future are rounded up."""
    moment = LATER.replace(microsecond=123_456)
    envelope = Envelope(kind="sleeper", id=f"fraction-{settings.task_queue_prefix}", lane="short", scheduled_at=moment)

    receipt = await BulkStarter(client, settings).start(envelope, None)
    started = await anext(client.get_workflow_handle(receipt.workflow_id).fetch_history_events())
    payloads = started.workflow_execution_started_event_attributes.input.payloads
    (state,) = await client.data_converter.decode(payloads, [dict[str, Any]])

    assert state["due_at"] == state["earliest_at"] == round(LATER.replace(microsecond=124_000).timestamp(), 3)


class Gauge:
    """A stream that knows how many of its items were taken."""

    def __init__(self, envelopes: list[Envelope]) -> None:
        self.taken = 0
        self._envelopes = envelopes

    def has_given(self, count: int) -> bool:
        """Say whether at least `count` were taken."""
        return self.taken >= count

    async def __aiter__(self) -> AsyncIterator[tuple[int, Envelope]]:
        """Give the envelopes, numbered."""
        for number, envelope in enumerate(self._envelopes):
            self.taken += 1
            yield number, envelope


async def test_the_stream_is_read_only_as_fast_as_receipts_are_taken(
    client: Client, settings: Settings, ids: list[str]
) -> None:
    """However slow the consumer, at most `in_flight` items more than it has taken are out of the stream."""
    starter = BulkStarter(client, dataclasses.replace(settings, in_flight=8))
    gauge = Gauge(asleep(ids))
    received = 0

    async for _ in starter.start_all(gauge):
        received += 1
        expected = min(received + 7, len(ids))
        await wait_until(functools.partial(gauge.has_given, expected), "the stream is read ahead")
        assert gauge.taken <= received + 9  # eight in flight, and one in hand that waits for room

    assert received == 100


async def test_a_slow_stream_holds_no_receipt_up(client: Client, settings: Settings, ids: list[str]) -> None:
    """The receipt of what was started is there while the stream is still waiting for its next item."""
    is_received = asyncio.Event()

    async def trickle() -> AsyncIterator[tuple[str, Envelope]]:
        for envelope in asleep(ids[:3]):
            yield envelope.id, envelope
            await is_received.wait()
            is_received.clear()

    receipts: list[Receipt[str]] = []
    async for receipt in BulkStarter(client, settings).start_all(trickle()):
        receipts.append(receipt)
        is_received.set()

    assert outcomes(receipts) == dict.fromkeys(ids[:3], "started")


async def test_an_error_of_the_stream_is_raised_and_leaves_nothing_behind(
    client: Client, settings: Settings, ids: list[str]
) -> None:
    """What the stream gave before is started or given up, no task lives on."""

    def break_off() -> Iterable[tuple[str, Envelope]]:
        yield from ((envelope.id, envelope) for envelope in asleep(ids[:3]))
        raise RuntimeError("the disk is gone")

    before = asyncio.all_tasks()
    with pytest.raises(RuntimeError, match="the disk is gone"):
        async for _ in BulkStarter(client, settings).start_all(break_off()):
            pass

    assert asyncio.all_tasks() <= before


async def test_a_server_that_refuses_the_client_as_such_ends_it_all(
    server: EmbeddedServer, settings: Settings, ids: list[str]
) -> None:
    """A namespace that does not exist is no property of a message: one error, not a thousand receipts."""
    stranger = await Client.connect(server.address, namespace="nowhere")
    before = asyncio.all_tasks()
    impatient = dataclasses.replace(settings, patience=timedelta(seconds=1))

    with pytest.raises(Misconfigured, match="the server refuses the call"):
        await load(BulkStarter(stranger, impatient), asleep(ids))

    assert asyncio.all_tasks() <= before


@pytest.mark.long
async def test_a_server_at_its_limit_is_given_time(tmp_path: Path, settings: Settings) -> None:
    """A server that takes ten calls a second objects to more: the starter slows down, and all are accepted."""
    options = EmbeddedOptions(
        data=tmp_path, port=find_free_port(), ui_port=None, slim=False, extra_config=("frontend.namespaceRPS=10",)
    )
    numbered = [f"paced-{number}" for number in range(60)]

    async with run_embedded(options) as busy:
        starter = BulkStarter(await busy.connect(), dataclasses.replace(settings, patience=timedelta(minutes=1)))
        receipts = await load(starter, asleep(numbered))

    assert outcomes(receipts) == dict.fromkeys(numbered, "started")
    assert starter.caller.throttled > 0
    assert max(receipt.attempts for receipt in receipts) > 1


async def test_attributes_that_the_server_has_only_just_got_are_waited_for(client: Client, settings: Settings) -> None:
    """Services learn of them one after the other: what is started meanwhile is no bad message."""
    namespace = f"new-{settings.task_queue_prefix}"
    request = RegisterNamespaceRequest(namespace=namespace)
    request.workflow_execution_retention_period.FromTimedelta(timedelta(days=1))
    await client.workflow_service.register_namespace(request)
    fresh = Client(client.service_client, namespace=namespace, data_converter=client.data_converter)
    starter = BulkStarter(fresh, settings)
    loading = asyncio.create_task(load(starter, asleep(["a", "b", "c"])))
    await wait_until(lambda: starter.caller.retried > 5, "the starter has noticed")
    assert not loading.done()
    types = {name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}") for name, kind in REQUIRED.items()}
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=namespace, search_attributes=types)
    )

    assert outcomes(await loading) == dict.fromkeys("abc", "started")


async def test_a_server_killed_and_started_again_in_mid_load_loses_and_doubles_nothing(
    tmp_path: Path, settings: Settings
) -> None:
    """Starts are repeated until the server is back; one that it had accepted unseen counts as that start."""
    options = EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None, slim=False)
    numbered = [f"survivor-{number}" for number in range(300)]
    async with run_embedded(options) as server:
        client = await server.connect()
        starter = BulkStarter(client, dataclasses.replace(settings, patience=timedelta(minutes=1)))
        receipts: list[Receipt[str]] = []

        async def start_all() -> None:
            async for receipt in starter.start_all((envelope.id, envelope) for envelope in asleep(numbered)):
                receipts.append(receipt)  # noqa: PERF401 — its length is watched meanwhile

        loading = asyncio.create_task(start_all())
        await wait_until(lambda: len(receipts) >= 50, "the load is under way")
        kill(server)
        await wait_until(lambda: starter.caller.retried > 0, "the starter has noticed")
        await server.wait()
        await server.start()
        await loading
        again = await load(BulkStarter(client, settings), asleep(numbered))

    assert outcomes(receipts) == dict.fromkeys(numbered, "started")
    assert outcomes(again) == dict.fromkeys(numbered, "already running")
    assert {r.tag: r.run_id for r in again} == {r.tag: r.run_id for r in receipts}


async def test_when_patience_is_over_a_start_has_failed(tmp_path: Path, settings: Settings) -> None:
    """A server that stays away makes no exception of a message: each gets its receipt, and may be tried again."""
    options = EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None, slim=False)
    async with run_embedded(options) as server:
        starter = BulkStarter(await server.connect(), dataclasses.replace(settings, patience=timedelta(seconds=1)))

    receipts = await load(starter, asleep(["a", "b", "c"]))

    assert outcomes(receipts) == dict.fromkeys("abc", "failed")
    assert all(receipt.reason.startswith("the server did not answer (") for receipt in receipts)
    assert max(receipt.attempts for receipt in receipts) > 1


async def test_a_stream_that_trickles_has_its_messages_started_meanwhile(
    client: Client, settings: Settings, kind: str
) -> None:
    """What is packed waits for more of its pack, but not for a stream that gives one after the other without an end."""
    given = 0
    found = list[StartOutcome]()
    is_told = asyncio.Event()

    async def trickle() -> AsyncIterator[tuple[None, Envelope]]:
        nonlocal given
        while not is_told.is_set() and given < 400:
            given += 1
            yield None, Envelope(kind=kind, id=f"m{given}", lane="short", scheduled_at=LATER)
            await asyncio.sleep(0.05)  # a stream that is never idle for as long as messages linger

    async for receipt in BulkStarter(client, settings, encodings={kind: Pack(packs=1)}).start_all(trickle()):
        found.append(receipt.outcome)
        is_told.set()

    assert found[0] is StartOutcome.STARTED
    assert given < 400


async def test_a_stream_that_never_pauses_has_its_messages_started_meanwhile(
    client: Client, settings: Settings, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of more than a few that wait for others of their pack none waits for long while the server has room."""
    monkeypatch.setattr(bulk, "GATHERED_SECONDS", 3.0)
    given = 0
    found = list[StartOutcome]()
    is_told = asyncio.Event()

    async def flow() -> AsyncIterator[tuple[int, Envelope]]:
        nonlocal given
        while not is_told.is_set() and given < 10 * bulk.FEW:
            given += 1
            yield given, Envelope(kind=kind, id=f"m{given}", lane="short", scheduled_at=LATER)
            await asyncio.sleep(0.05 if given > 2 * bulk.FEW else 0)

    pack = Pack(packs=1, size=5000)
    async for receipt in BulkStarter(client, settings, encodings={kind: pack}).start_all(flow()):
        found.append(receipt.outcome)
        is_told.set()

    assert found[0] is StartOutcome.STARTED
    assert 2 * bulk.FEW < given < 3 * bulk.FEW


async def test_a_whole_pack_starts_while_no_worker_runs(client: Client, settings: Settings, kind: str) -> None:
    """Thousands of messages are in its first input, which the server takes by itself."""
    url = "https://example.org/feeds/"
    envelopes = [
        Envelope(kind=kind, id=f"message-{n:05}", lane="short", scheduled_at=LATER, payload={"url": f"{url}{n:05}"})
        for n in range(2000)
    ]
    starter = BulkStarter(client, settings, encodings={kind: Pack(packs=1, size=SIZE_MAX)})

    receipts = await load(starter, envelopes)

    assert {(receipt.outcome, receipt.reason) for receipt in receipts} == {(StartOutcome.STARTED, "")}
    assert len(receipts) == 2000
