"""The client of the HTTP API: every verb against the real API, and what it does when the API goes away and returns."""

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pydantic
import pytest
from temporalio.client import Client as TemporalClient

import dormice
from activities import Again, Context, Done, Message, Reject, handler
from activities.api.handler import Handler
from dormice import client as client_module
from dormice import errors
from shared.settings import Settings
from starter.extras.web.documents import Installation
from starter.extras.web.serving.application import make_application
from starter.extras.web.serving.server import serving
from starter.extras.web.tokens import Tokens
from starter.local.supervised_process import find_free_port
from tests.conftest import Serve, wait_until
from tests.integration.test_control import registry_of
from tests.support.subjects import Subject

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
ID = "a/b:c"
README = Path(__file__).parents[2] / "client" / "README.md"


@pytest.fixture
def sleeper(kind: str) -> Handler:
    """A handler that is done, rejects, or comes back tomorrow, as the payload says."""

    @handler(kind)
    async def sleep(message: Message, ctx: Context) -> Again | Done | Reject:
        match message.payload:
            case "last":
                return Done({"was": message.version})
            case "bad":
                return Reject("it is bad")
            case _:
                return Again(after=timedelta(days=1))

    return sleep


@pytest.fixture
def installation(client: TemporalClient, settings: Settings, sleeper: Handler, encoding: str) -> Installation:
    """What the API speaks for."""
    return Installation(client=client, settings=settings, registry=registry_of(sleeper, encoding))


@dataclass
class Api:
    """The API at an address of its own, which it keeps when it goes away and comes back."""

    installation: Installation
    tokens: Tokens | None = None

    def __post_init__(self) -> None:
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def serving(self) -> AbstractAsyncContextManager[str]:
        """Serve for the length of an `async with` block."""
        application = make_application(self.installation, "1", self.tokens, {"127.0.0.1"})
        return serving(application, "127.0.0.1", self.port)


@pytest.fixture
def api(installation: Installation) -> Api:
    """The API, which does not run yet."""
    return Api(installation)


@pytest.fixture
async def herd(api: Api) -> AsyncIterator[dormice.Client]:
    """A client of the API, which runs without a worker."""
    async with api.serving(), dormice.connect(api.url) as herd:
        yield herd


@pytest.fixture
async def worked(herd: dormice.Client, serve: Serve, sleeper: Handler) -> AsyncIterator[dormice.Client]:
    """A client of the API beside a worker."""
    async with serve(sleeper):
        yield herd


@pytest.fixture
def subject(installation: Installation, kind: str, encoding: str) -> Subject:
    """The message of these tests, asked without the API."""
    return Subject(installation.client, installation.control, encoding, kind, ID)


async def test_a_message_is_started_shown_steered_and_stopped(
    worked: dormice.Client, subject: Subject, kind: str
) -> None:
    """Each verb reaches its message, and what it gives says what the message itself says."""
    ada = await worked.start(kind, ID, {"n": 1}, at=LATER, priority=2, correlation_id="order 7")
    with pytest.raises(errors.MessageAlive):
        await worked.start(kind, ID)
    shown = await ada.show()
    hidden = await ada.show(payload=False)
    await ada.reschedule(after=timedelta(hours=2), reason="she asked")
    await ada.reprioritize(4)
    await ada.revise({"n": 2}, reason="corrected")
    await wait_until(lambda: subject.has(priority=4, payload={"n": 2}), "all signals took effect")
    due_at = (await ada.show()).due_at
    paused = await ada.pause()
    await wait_until(lambda: subject.has(state="paused"), "it is paused")
    waiting = await worked.message(kind, ID).run_now()
    await ada.resume()
    await ada.stop("enough")

    assert ada.receipt is not None
    assert (ada.receipt.outcome, ada.id) == ("started", ID)
    assert (shown.payload, shown.priority, shown.correlation_id, shown.due_at) == ({"n": 1}, 2, "order 7", LATER)
    assert shown.decisions
    assert shown.decisions[0]["what"] == "started"
    assert hidden.payload is None
    assert due_at is not None
    assert timedelta(hours=1) < due_at - datetime.now(UTC) <= timedelta(hours=2)
    assert (paused.outcome, paused.reason) == ("taken", "")
    assert waiting.reason.startswith(f"{kind}:{ID} is paused and runs once")
    with pytest.raises(errors.NoResult, match="enough"):
        await ada.result(timeout=timedelta(seconds=30))


async def test_an_upsert_counts_once_for_its_key(worked: dormice.Client, subject: Subject, kind: str) -> None:
    """It starts or changes; a condition that does not hold changes nothing, and starts nothing."""
    first = await worked.upsert(kind, ID, 1, at=LATER, tolerance=timedelta(minutes=10))
    for _ in range(2):
        await worked.upsert(kind, ID, 2, at=LATER, idempotency_key="k")
    with pytest.raises(errors.ConditionUnmet):
        await worked.upsert(kind, ID, 3, if_version=9)
    with pytest.raises(errors.MessageNotFound):
        await worked.upsert(kind, "nobody", if_due_before=LATER)
    changed = await worked.upsert(kind, ID, 4, at=LATER, if_due_before=LATER + timedelta(days=1))

    assert first.receipt is not None
    assert first.receipt.outcome == "started"
    assert changed.receipt is not None
    assert changed.receipt.outcome == "revised"
    assert await subject.has(payload=4, revision=2)


async def test_a_repeated_start_is_the_first_one(worked: dormice.Client, kind: str) -> None:
    """With its idempotency key, in both encodings; that is what lets the client send it again."""
    starts = [await worked.start(kind, ID, "x", at=LATER, idempotency_key="k") for _ in range(2)]

    assert [start.receipt and start.receipt.outcome for start in starts] == ["started", "started"]
    with pytest.raises(errors.MessageAlive):
        await worked.start(kind, ID, "x", at=LATER, idempotency_key="another")


async def test_a_result_is_waited_for(worked: dormice.Client, kind: str) -> None:
    """Each way to have none has an error of its own, which says what is known."""
    done = await worked.start(kind, "done", "last", after=timedelta(seconds=1))
    bad = await worked.start(kind, "bad", "bad")
    asleep = await worked.start(kind, "asleep", at=LATER)

    assert await done.result(timeout=timedelta(seconds=60)) == {"was": 0}
    with pytest.raises(errors.NoResult, match="parked: it is bad, so it has no result"):
        await bad.result()
    with pytest.raises(
        errors.RetryLater, match=f"{kind}:asleep is due {LATER.date()}.*, and has not ended within 0:00:01"
    ):
        await asleep.result(timeout=timedelta(seconds=1))
    with pytest.raises(TimeoutError, match="has not ended within 0:00:00"):
        await asleep.result(timeout=timedelta(0))
    with pytest.raises(errors.MessageNotFound):
        await worked.message(kind, "nobody").result()


@pytest.mark.parametrize("encoding", ["solo"], indirect=True)
async def test_a_workflow_that_is_ended_from_outside_has_no_result(
    herd: dormice.Client, kind: str, subject: Subject
) -> None:
    """Its error says how it was ended."""
    ada = await herd.start(kind, ID, at=LATER)
    await subject.handle.terminate()

    with pytest.raises(errors.NoResult, match="ended as terminated"):
        await ada.result()


@pytest.mark.parametrize("encoding", ["pack"], indirect=True)
async def test_what_no_worker_has_taken_is_kept(herd: dormice.Client, kind: str, subject: Subject) -> None:
    """It is no error: the receipt, or the effect, says so, and why."""
    await herd.start(kind, ID, at=LATER)  # a pack that begins answers at once
    started = await herd.start(kind, subject.neighbours(1)[0], at=LATER)
    moved = await started.run_now()

    assert started.receipt is not None
    assert started.receipt.outcome == "kept"
    assert "no worker" in started.receipt.reason
    assert moved.outcome == "kept"
    assert "no worker" in moved.reason


@dataclass(frozen=True)
class Reminder:
    """A payload as an application has it."""

    to: str
    on: datetime


class Order(pydantic.BaseModel):
    """A payload as another application has it."""

    number: int
    reminders: list[Reminder]


@pytest.mark.parametrize("encoding", ["solo"], indirect=True)
async def test_payloads_are_plain_json(worked: dormice.Client, kind: str) -> None:
    """Dataclasses, models and moments, nested as you like; what has no JSON is refused by its name."""
    reminder = Reminder("ada", LATER)
    plain = {"to": "ada", "on": LATER.isoformat()}
    one = await worked.start(kind, "1", {"all": [reminder]}, at=LATER)
    two = await worked.start(kind, "2", Order(number=7, reminders=[reminder]), at=LATER)

    assert (await one.show()).payload == {"all": [plain]}
    assert (await two.show()).payload == {"number": 7, "reminders": [{**plain, "on": f"{LATER:%Y-%m-%dT%H:%M:%SZ}"}]}
    for payload, sentence in [
        (Reminder("ada", datetime(2030, 1, 1)), "payload: 2030-01-01T00:00:00 has no time zone"),  # noqa: DTZ001 — refused
        ({"x": {1, 2}}, "payload: can't be written as JSON .set is none of its types"),
        (float("nan"), "payload: can't be written as JSON"),
    ]:
        with pytest.raises(errors.InvalidEnvelope, match=sentence) as raised:
            await worked.start(kind, "3", payload)
        assert raised.value.field == "payload"
    with pytest.raises(errors.InvalidEnvelope, match="at: is given beside after"):
        await worked.message(kind, "1").reschedule(at=LATER, after=timedelta(1))
    with pytest.raises(dormice.GiveUp, match="reschedule: due_at"):
        await worked.message(kind, "1").reschedule()
    with pytest.raises(errors.InvalidEnvelope, match="id: is empty; give a text, such as 'ada'"):
        await worked.start(kind, "")
    with pytest.raises(errors.InvalidEnvelope, match=r"at: 2030.* has no time zone"):
        await worked.start(kind, "3", at=datetime(2030, 1, 1))  # noqa: DTZ001 — refused
    with pytest.raises(errors.InvalidEnvelope, match="priority: is 9") as raised:
        await worked.start(kind, "3", priority=9)
    assert (raised.value.field, raised.value.status) == ("priority", 422)


async def test_whatever_else_the_api_has_is_called(worked: dormice.Client, kind: str, encoding: str) -> None:
    """A list is read page by page to its end; counts, kinds and gates are as the API's."""
    envelopes = [dormice.Envelope(kind, f"{n:04}", at=LATER) for n in range(1100 if encoding == "pack" else 10)]
    receipts = [receipt async for receipt in worked.start_many(envelopes)]
    await worked.start(kind, "bad", "bad")

    async def count(state: str) -> int:
        return (await worked.call("GET", "/v1/messages:count", {"kind": kind, "state": state}))["count"]

    await wait_until(lambda: count("parked"), "one is parked, and indexed")
    await wait_until(lambda: _is(count("active"), len(envelopes)), "all are indexed")
    query = {"kind": kind, "state": "active", "due_before": LATER + timedelta(days=1), "limit": 1000}
    found = list[dict[str, Any]]()
    cursor = ""
    while cursor is not None:
        page = await worked.call("GET", "/v1/messages", {**query, "cursor": cursor})
        found = found + page["messages"]
        cursor = page["cursor"]
    (parked,) = (await worked.call("GET", "/v1/messages", {"kind": kind, "state": "parked"}))["messages"]
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    path = f"/v1/gates/{kind}.example"
    closing = {"opens_at": until, "reason": "asked for it"}
    closure = await worked.call("PUT", path, body=closing)
    closed = [each["gate"] for each in (await worked.call("GET", "/v1/gates"))["gates"]]
    await worked.call("DELETE", path)

    assert {receipt.outcome for receipt in receipts} == {"started"}
    assert {each["id"] for each in found} == {envelope.id for envelope in envelopes}
    assert {datetime.fromisoformat(each["due_at"]) for each in found} == {LATER}
    assert (parked["id"], parked["parked_reason"]) == ("bad", "it is bad")
    assert [each["kind"] for each in (await worked.call("GET", "/v1/kinds"))["kinds"]] == [kind]
    assert closure["gate"] in closed
    assert closure["reason"] == "asked for it"


async def _is(found: Any, expected: Any) -> bool:
    return await found == expected


async def test_a_bulk_gives_a_receipt_for_each_item(worked: dormice.Client, subject: Subject, kind: str) -> None:
    """With the caller's own object; wrong ones are rejected with their field, and the others go on."""
    items = [
        dormice.Envelope(kind, ID, 1, at=LATER),
        dormice.Envelope(kind, "b", at=LATER),
        dormice.Envelope("alien", "c"),
        dormice.Envelope(kind, "d", {1}),
        dormice.Envelope(kind, 5),
    ]
    wrong: list[Any] = [{"kind": kind, "id": "e"}, None]

    found = {id(receipt.item): receipt async for receipt in worked.start_many(iter(items))}
    receipts = [found[id(item)] for item in items]
    refused = [receipt async for receipt in worked.start_many(wrong)]
    changed = [r async for r in worked.start_many([dormice.Envelope(kind, ID, 2, at=LATER)], upsert=True)]

    assert [each.outcome for each in receipts] == ["started", "started", "rejected", "rejected", "started"]
    assert [each.field for each in receipts] == ["", "", "kind", "payload", ""]
    assert [each.is_due_now for each in receipts] == [False, False, False, False, True]
    assert [(each.item, each.outcome, each.field) for each in refused] == [(each, "rejected", "item") for each in wrong]
    assert [each.outcome for each in changed] == ["revised"]
    assert await subject.has(payload=2)


async def test_upserts_of_one_message_in_one_bulk_take_effect_one_after_the_other(
    worked: dormice.Client, subject: Subject, kind: str
) -> None:
    """Each waits for the receipt of the one before, so the last one is what holds."""
    items = [dormice.Envelope(kind, ID, n, at=LATER) for n in range(3)]
    receipts = [receipt async for receipt in worked.start_many(items, upsert=True)]

    assert [(each.item.payload, each.outcome) for each in receipts] == [(0, "started"), (1, "revised"), (2, "revised")]
    assert await subject.has(payload=2, revision=2)


def steer(url: str, kind: str) -> list[Any]:
    """Use the client that blocks."""
    with dormice.connect_sync(url) as herd:
        ada = herd.upsert(kind, ID, 1, at=LATER)
        receipts = list(herd.start_many([dormice.Envelope(kind, "b", "last")]))
        result = herd.message(kind, "b").result(timeout=timedelta(seconds=60))
        taken = ada.run_now().outcome
        listed = [each["id"] for each in herd.call("GET", "/v1/messages", {"kind": kind})["messages"]]
        with pytest.raises(errors.InvalidEnvelope):
            ada.reprioritize(9)
        return [ada.show().payload, receipts[0].outcome, result, taken, listed]


async def test_the_twin_that_blocks_does_the_same(worked: dormice.Client, api: Api, kind: str) -> None:
    """The same verbs without `await`."""
    found = await asyncio.to_thread(steer, api.url, kind)

    assert found[:4] == [1, "started", {"was": 0}, "taken"]
    assert set(found[4]) <= {ID, "b"}


async def test_calls_wait_for_an_api_that_comes_back(
    api: Api, serve: Serve, sleeper: Handler, kind: str, subject: Subject
) -> None:
    """What is asked meanwhile happens once; after the client's timeout the error says to try again."""
    async with dormice.connect(api.url) as herd, serve(sleeper):
        starting = asyncio.ensure_future(herd.start(kind, ID, 1, at=LATER))
        async with dormice.connect(api.url, timeout=timedelta(seconds=0.5)) as hasty:
            with pytest.raises(dormice.RetryLater, match=rf"API at {api.url} does not answer .* try again later"):
                await hasty.call("GET", "/v1/kinds")
            with pytest.raises(dormice.RetryLater, match="does not answer"):
                [_ async for _ in hasty.start_many([dormice.Envelope(kind, "b")], idempotency_key="x")]

        async with api.serving():
            ada = await starting

        with pytest.raises(errors.RetryLater, match=r"the HTTP API at .* does not answer"):
            await ada.result(timeout=timedelta(seconds=1))

        revising = asyncio.ensure_future(ada.revise(2))
        async with api.serving():
            await revising
            assert await subject.has(payload=2)


@dataclass
class Cut:
    """A port before the API that breaks a connection off once an answer has `size` bytes, `count` times."""

    port: int
    size: int
    count: int
    connections: int = 0
    passing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection on, or the first bytes of its answer only."""
        self.connections += 1
        is_cut = self.connections <= self.count
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        sending = asyncio.create_task(self._copy(reader, back))

        try:
            with contextlib.suppress(ConnectionError):
                if is_cut:
                    writer.write((await there.read(1_000_000))[: self.size])
                else:
                    await self._copy(there, writer)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            for each in (back, writer):
                each.transport.abort() if is_cut and each is back else each.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(65_536):
            writer.write(part)
            await writer.drain()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        """Listen for the length of an `async with` block; gives the address."""

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.passing.add(asyncio.create_task(self.pass_on(reader, writer)))

        async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in self.passing:
            task.cancel()
        await asyncio.gather(*self.passing, return_exceptions=True)


async def test_a_call_whose_answer_is_lost_happens_once(
    worked: dormice.Client, api: Api, subject: Subject, kind: str
) -> None:
    """It is sent again with the same key: a start then answers as the first one did, an upsert changes nothing more."""
    cut = Cut(api.port, size=20, count=2)
    async with cut.listening() as url, dormice.connect(url) as herd:
        started = await herd.start(kind, ID, 1, at=LATER)
        assert cut.connections == 3
        cut.connections = 0
        await herd.upsert(kind, ID, 2, at=LATER)
        cut.connections = 0
        shown = await herd.message(kind, ID).show()

    assert started.receipt is not None
    assert started.receipt.outcome == "started"
    assert (shown.payload, shown.revision) == (2, 1)
    assert await subject.has(revision=1)


@pytest.mark.parametrize("upsert", [False, True])
async def test_a_bulk_that_breaks_sends_again_what_has_no_receipt(
    worked: dormice.Client, api: Api, subject: Subject, kind: str, *, upsert: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each item gets one receipt, and nothing is done twice, neither a start nor a change; in parts, too."""
    monkeypatch.setattr(client_module, "PART_LINES", 20)
    items = [dormice.Envelope(kind, ID if n in (0, 49) else f"{n:03}", n, at=LATER) for n in range(50)]
    if upsert:
        for item in items[:3]:
            await worked.start(item.kind, item.id, "before", at=LATER)
    cut = Cut(api.port, size=700, count=3)
    async with cut.listening() as url, dormice.connect(url) as herd:
        receipts = [receipt async for receipt in herd.start_many(items, upsert=upsert)]

    assert cut.connections > 1
    assert sorted(receipt.item.payload for receipt in receipts) == [*range(50)]
    assert {receipt.outcome for receipt in receipts} <= {"started", "already running", "revised", "ignored"}
    assert await subject.has(payload=49 if upsert else 0, revision=2 if upsert else 0)


@pytest.mark.parametrize("encoding", ["solo"], indirect=True)
async def test_a_wrong_address_or_token_is_for_a_person_to_correct(
    api: Api, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, at once, without repeating anything; the environment is read where nothing is given."""
    (tmp_path / "tokens").write_text('[reader]\ntoken = "reader-0123456789"\n')
    (tmp_path / "token").write_text("reader-0123456789\n")

    api.tokens = Tokens.load(tmp_path / "tokens")
    async with api.serving():
        monkeypatch.setenv("DORMICE_API_URL", f"{api.url}/")
        async with dormice.connect() as herd:
            with pytest.raises(dormice.Misconfigured, match="Authorization: names no token that is known"):
                await herd.call("GET", "/v1/kinds")

        monkeypatch.setenv("DORMICE_API_TOKEN_FILE", str(tmp_path / "token"))
        async with dormice.connect() as herd:
            assert [each["kind"] for each in (await herd.call("GET", "/v1/kinds"))["kinds"]] == [kind]
            with pytest.raises(dormice.Misconfigured, match="this token is for reading"):
                await herd.start(kind, ID)
            with pytest.raises(dormice.Misconfigured, match="this token is for reading"):
                [_ async for _ in herd.start_many([dormice.Envelope(kind, ID)])]

        async with dormice.connect(f"{api.url}/else", "reader-0123456789") as herd:
            with pytest.raises(dormice.Misconfigured, match="there is nothing at '/else/v1/kinds'"):
                await herd.call("GET", "/v1/kinds")

    for url, sentence in [
        ("127.0.0.1:8235", "url: is '127.0.0.1:8235', which is no address of HTTP; write it like http://"),
        ("ftp://example.org", "url: is 'ftp://example.org', which is no address of HTTP"),
        ("http://a:b", "url: is 'http://a:b', which is no address"),
    ]:
        with pytest.raises(dormice.Misconfigured, match=sentence), dormice.connect_sync(url):
            pass

    monkeypatch.setenv("DORMICE_API_TOKEN_FILE", str(tmp_path / "nothing"))
    with pytest.raises(dormice.Misconfigured, match=r"DORMICE_API_TOKEN_FILE: .*nothing can't be read"):
        async with dormice.connect():
            pass

    with pytest.raises(dormice.Misconfigured, match="token: has characters that no HTTP header may have"):
        async with dormice.connect(token="a\nb"):  # noqa: S106 — no secret
            pass


async def test_only_what_may_pass_is_repeated() -> None:
    """An API that asks for patience is asked again; one that refuses is not, and what it refuses has its class."""
    answers: list[tuple[str, str, dict[str, Any]]] = [
        ("503 Busy", "Retry-After: 0\r\n", {"type": "urn:dormice:server-busy", "status": 503, "detail": "busy"}),
        ("429 Slow", "", {"type": "urn:else", "status": 429, "detail": "slower"}),
        ("200 OK", "", {"kinds": []}),
        ("409 Conflict", "", {"type": "urn:dormice:start-refused", "status": 409, "detail": "full"}),
        ("410 Gone", "", {"type": "urn:dormice:new-name", "status": 410, "detail": "gone", "field": "kind"}),
        ("503 Off", "", {"type": "urn:dormice:server-not-ready", "status": 503, "detail": "no namespace"}),
    ]
    left = iter(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            status, headers, document = next(left)
            kind = "json" if status.startswith("200") else "problem+json"
            body = json.dumps(document)
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/{kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}{headers}Connection: close\r\n\r\n{body}".encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, dormice.connect(url) as herd:
        assert await herd.call("GET", "/v1/kinds") == {"kinds": []}
        with pytest.raises(errors.GiveUp, match="full"):
            await herd.call("GET", "/v1/kinds")
        with pytest.raises(dormice.GiveUp, match="gone") as gone:
            await herd.call("GET", "/v1/kinds")
        with pytest.raises(dormice.Misconfigured, match="no namespace"):
            await herd.call("GET", "/v1/kinds")

    assert (gone.value.field, gone.value.status) == ("kind", 410)
    assert list(left) == []


async def test_the_readmes_example_does_what_it_says(
    api: Api,
    serve: Serve,
    *,
    kind: str,
    encoding: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It starts, moves and runs messages, and prints what its comments say; only the kind is this test's own."""

    @handler(kind)
    async def remind(message: Message, ctx: Context) -> Done:
        return Done(message.payload)

    api.installation = replace(api.installation, registry=registry_of(remind, encoding))
    (source,) = re.findall(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = {"__name__": "reminders"}
    monkeypatch.setitem(sys.modules, "reminders", ModuleType("reminders"))  # where dataclasses look for annotations
    exec(compile(source.replace('"reminder"', repr(kind)), "reminders.py", "exec"), found)  # noqa: S102 — our own page
    monkeypatch.setenv("DORMICE_API_URL", api.url)
    async with api.serving(), serve(remind):
        outcomes = await found["remind"]("https://example.org/hook", ["bob", "eve"])
    why, result = capsys.readouterr().out.splitlines()

    assert outcomes == ["started", "started"]
    assert re.fullmatch(r"due .* UTC since reschedule \(she asked\)", why)
    assert result == str({"to": "https://example.org/hook"})


@pytest.mark.parametrize("status", ["200 OK", "301 Moved", "404 Not Found", "500 So"])
async def test_another_service_at_the_address_is_named(status: str) -> None:
    """What answers like no dormice API is not taken for one."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
            writer.write(f"{head}<p>".encode())
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with dormice.connect(url) as herd:
            with pytest.raises(dormice.Misconfigured, match="is no dormice API; give the address of 'dormice serve'"):
                await herd.call("GET", "/v1/kinds")
            with pytest.raises(dormice.Misconfigured, match="is no dormice API; give the address of 'dormice serve'"):
                [_ async for _ in herd.start_many([dormice.Envelope("a", "b")])]


@pytest.mark.parametrize("encoding", ["solo"], indirect=True)
async def test_any_id_reaches_its_own_path(worked: dormice.Client, kind: str) -> None:
    """Dots, slashes, spaces, marks and other alphabets are no parts of a path."""
    for message_id in ("...", "../a", "a/../b", "a b?c#d", "%2F", "käfer:🐭"):
        started = await worked.start(kind, message_id, at=LATER)
        assert started.receipt is not None
        assert (await started.show(payload=False)).id == message_id
