"""The HTTP API: messages by kind and id, lists, bulk and refusals, in both encodings and beside workers."""

import asyncio
import gzip
import json
import multiprocessing
import re
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from temporalio.client import Client

from activities import Again, Context, Done, Message, Reject, handler
from activities.api.handler import Handler
from shared.errors import InvalidSetting
from shared.settings import Settings
from starter.extras.web.api.bulk import SEND_AGAIN
from starter.extras.web.documents import Installation
from starter.extras.web.serving.application import make_application
from starter.extras.web.serving.server import serving
from starter.extras.web.tokens import Tokens
from tests.conftest import Serve, wait_until
from tests.integration.test_control import registry_of
from tests.support.subjects import Subject

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
AT = LATER.isoformat()
NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}
GZIP = {"Content-Encoding": "gzip"}


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
def installation(client: Client, settings: Settings, sleeper: Handler, encoding: str) -> Installation:
    """What the API speaks for."""
    return Installation(client=client, settings=settings, registry=registry_of(sleeper, encoding))


@pytest.fixture
async def api(installation: Installation) -> AsyncIterator[httpx.AsyncClient]:
    """The API on this machine, without tokens and without a worker."""
    application = make_application(installation, "1", None, {"127.0.0.1"})
    async with serving(application, "127.0.0.1", 0) as address, httpx.AsyncClient(base_url=address, timeout=60) as api:
        yield api


@pytest.fixture
async def worked(api: httpx.AsyncClient, serve: Serve, sleeper: Handler) -> AsyncIterator[httpx.AsyncClient]:
    """The API beside a worker."""
    async with serve(sleeper):
        yield api


@pytest.fixture
def message(installation: Installation, kind: str, encoding: str) -> Subject:
    """The message of these tests, whose id has a slash and a colon."""
    return Subject(installation.client, installation.control, encoding, kind, "a/b:c")


def path_of(kind: str, verb: str = "") -> str:
    """Give the path of the message of these tests."""
    return f"/v1/messages/{kind}/a%2Fb%3Ac{verb and '/'}{verb}"


async def test_a_message_is_started_shown_steered_and_stopped(
    worked: httpx.AsyncClient, message: Subject, kind: str
) -> None:
    """Each answer says what came of it; what it shows is what the message itself says."""
    body = {"payload": {"n": 1}, "scheduled_at": AT, "priority": 2, "correlation_id": "order 7"}
    started = await worked.post(path_of(kind), json=body)
    again = await worked.post(path_of(kind), json={})
    shown = (await worked.get(path_of(kind))).json()
    hidden = (await worked.get(path_of(kind), params={"payload": "false"})).json()
    moved = await worked.post(path_of(kind, "reschedule"), json={"due_at": "2036-01-01T00:00:00Z", "reason": "asked"})
    status = await message.status()
    paused = await worked.post(path_of(kind, "pause"))
    await wait_until(lambda: message.has(state="paused"), "it is paused")
    note = (await worked.post(path_of(kind, "run_now"))).json()["note"]
    waiting = asyncio.ensure_future(worked.get(path_of(kind), params={"wait": 40}))
    stopped = await worked.delete(path_of(kind), params={"reason": "enough"})

    assert (await waiting).json()["state"] == "stopped"
    assert (started.status_code, started.json()["outcome"], started.json()["id"]) == (201, "started", "a/b:c")
    assert (again.status_code, again.json()["type"]) == (409, "urn:dormice:message-alive")
    assert (shown["payload"], shown["priority"], shown["correlation_id"]) == ({"n": 1}, 2, "order 7")
    assert datetime.fromisoformat(shown["due_at"]) == LATER
    assert "payload" not in hidden
    assert (moved.status_code, status["due_at"]) == (200, "2036-01-01 00:00:00 UTC")
    assert paused.status_code == stopped.status_code == 200
    assert note.startswith(f"{kind}:a/b:c is paused and runs once")


async def test_an_upsert_is_one_call_once_a_key(worked: httpx.AsyncClient, message: Subject, kind: str) -> None:
    """It starts or changes, by header or field; with a condition that does not hold it is refused with 412."""
    first = await worked.put(path_of(kind), json={"payload": 1, "scheduled_at": AT})
    second = await worked.put(path_of(kind), json={"payload": 2, "scheduled_at": AT}, headers={"Idempotency-Key": "k"})
    third = await worked.put(path_of(kind), json={"payload": 2, "scheduled_at": AT, "idempotency_key": "k"})
    unmet = await worked.put(path_of(kind), json={"payload": 3}, params={"if_version": 9})
    nobody = await worked.put(f"/v1/messages/{kind}/nobody", json={}, params={"if_due_before": "+1d"})

    assert [each.status_code for each in (first, second, third, unmet, nobody)] == [201, 200, 200, 412, 404]
    assert (unmet.json()["type"], unmet.headers["content-type"]) == (
        "urn:dormice:condition-unmet",
        "application/problem+json",
    )
    assert await message.has(payload=2, revision=1)


async def test_a_key_stands_for_one_body(worked: httpx.AsyncClient, message: Subject, kind: str) -> None:
    """On each way in: the same body is answered as before, another one is refused with the key's name."""
    bodies = [{"payload": n, "scheduled_at": AT} for n in range(3)]

    async def call(method: str, n: int, key: str, **query: Any) -> tuple[int, str]:
        headers = {"Idempotency-Key": key}
        answer = await worked.request(method, path_of(kind), json=bodies[n], headers=headers, params=query)
        document = answer.json()
        assert answer.status_code != 422 or (document["field"], repr(key)) == (
            "idempotency_key",
            document["detail"][17:21],
        )
        return answer.status_code, document.get("outcome", "")

    async def bulk(n: int, key: str, *, upsert: bool) -> str:
        content = json.dumps({"kind": kind, "id": message.id} | bodies[n])
        options: dict[str, Any] = {"headers": NDJSON | {"Idempotency-Key": key}, "params": {"upsert": upsert}}
        found = json.loads((await worked.post("/v1/messages:bulk", content=content, **options)).text)
        return found.get("field") or found["outcome"]

    async def steer(verb: str, key: str, **body: str) -> int:
        return (await worked.post(path_of(kind, verb), json=body, headers={"Idempotency-Key": key})).status_code

    assert await call("PUT", 0, "k1") == (201, "started")
    assert (await call("PUT", 0, '"k1"'))[0] in (200, 201)
    assert (await call("PUT", 1, "k1"))[0] == 422
    assert await call("POST", 0, "k1") == (201, "started")
    assert (await call("POST", 1, "k1"))[0] == 422
    assert [await bulk(n, "k1", upsert=False) for n in (0, 1)] == ["started", "idempotency_key"]
    assert await bulk(1, "k1", upsert=True) == "idempotency_key"
    assert await call("PUT", 1, "k2") == (200, "revised")
    assert (await call("PUT", 2, "k2"))[0] == 422
    assert (await call("PUT", 2, "k2", if_version=0))[0] == 422
    assert await message.has(payload=1, revision=1)

    later = (LATER + timedelta(hours=1)).isoformat()
    assert [await steer("reschedule", "v1", due_at=at) for at in (later, later, AT)] == [200, 200, 422]
    assert [await steer("pause", '"v2"', reason=reason) for reason in ("a", "a", "b")] == [200, 200, 422]
    assert await steer("run_now", "v1") == 422
    assert await message.has(state="paused", due_at_epoch=LATER.timestamp() + 3600)

    await worked.delete(path_of(kind))
    await message.wait_ended()
    assert (await call("PUT", 0, "k1"))[1] in ("started", "ignored")  # a repetition may be answered as the first time
    assert await call("POST", 0, "k1") == (201, "started")
    assert [(await call(method, 2, "k2"))[0] for method in ("PUT", "POST")] == [422, 422]
    assert (await worked.get(path_of(kind))).json()["state"] == "stopped"


async def test_what_is_due_at_once_is_said_to_be(worked: httpx.AsyncClient, kind: str) -> None:
    """By a start and an upsert without a moment, or with one that has passed."""
    started = await worked.post(path_of(kind), json={"scheduled_at": "2020-01-01T00:00:00Z"})
    later = await worked.put(path_of(kind), json={"scheduled_at": AT})
    changed = await worked.put(path_of(kind), json={})

    assert [each.json()["is_due_now"] for each in (started, later, changed)] == [True, False, True]


async def test_what_no_worker_can_answer_is_kept(
    api: httpx.AsyncClient, serve: Serve, sleeper: Handler, message: Subject, kind: str
) -> None:
    """A packed message or a signal that waits for a worker is answered with 202, and takes effect once there is one."""
    await api.post(f"/v1/messages/{kind}/first", json={"scheduled_at": AT})  # a pack that begins answers at once
    neighbours = message.neighbours(1)
    started = await api.post(path_of(kind), json={"payload": 1, "scheduled_at": AT})
    if neighbours:
        started = await api.post(f"/v1/messages/{kind}/{quote(neighbours[0], safe='')}", json={"scheduled_at": AT})
    moved = await api.post(path_of(kind, "reprioritize"), json={"priority": 1})

    assert started.json()["is_due_now"] is False
    assert started.status_code == (202 if neighbours else 201)
    assert moved.status_code == (202 if neighbours else 200)
    async with serve(sleeper, lanes=("short",)):
        await wait_until(lambda: message.has(priority=1), "the signal takes effect")


async def test_lists_are_read_by_pages_to_their_end(worked: httpx.AsyncClient, kind: str) -> None:
    """Each message comes once, whatever the size of the pages; counts, kinds and filters agree with it."""
    lines = "".join(f'{{"kind":"{kind}","id":"{n:03}","scheduled_at":"{AT}"}}\n' for n in range(23))
    lines += f'{{"kind":"{kind}","id":"bad","payload":"bad"}}\n'
    receipts = (await worked.post("/v1/messages:bulk", content=lines, headers=NDJSON)).text.splitlines()
    await wait_until(lambda: _count(worked, kind=kind, state="parked", is_exact=1), "one is parked, and indexed")
    await wait_until(lambda: _count(worked, kind=kind, is_exact=24), "all are indexed")

    found = [each["id"] async for each in _list(worked, kind=kind, limit="5")]
    parked = [each async for each in _list(worked, kind=kind, state="parked")]
    kinds = (await worked.get("/v1/kinds")).json()["kinds"]

    assert {json.loads(line)["outcome"] for line in receipts} == {"started"}
    assert sorted(found) == [*(f"{n:03}" for n in range(23)), "bad"]
    assert [(each["id"], each["parked_reason"]) for each in parked] == [("bad", "it is bad")]
    assert [each["kind"] for each in kinds] == [kind]


async def _count(api: httpx.AsyncClient, *, is_exact: int, **filters: str) -> bool:
    return (await api.get("/v1/messages:count", params=filters)).json()["count"] == is_exact


async def _list(api: httpx.AsyncClient, **parameters: str) -> AsyncIterator[dict[str, Any]]:
    cursor: str | None = ""
    while cursor is not None:
        page = (await api.get("/v1/messages", params={**parameters, "cursor": cursor})).json()
        for each in page["messages"]:
            yield each
        cursor = page["cursor"]


async def test_a_bulk_answers_each_line(worked: httpx.AsyncClient, message: Subject, kind: str) -> None:
    """Wrong lines are rejected with their field; an upsert changes what is alive; a key makes it once."""
    line = {"kind": kind, "id": message.id, "payload": 1, "scheduled_at": AT}
    sent = [line, {**line, "id": "", "kind": kind}, {**line, "kind": "alien"}, line]

    async def post(*lines: dict[str, Any], **options: Any) -> dict[int, dict[str, Any]]:
        content = "\n\n".join(map(json.dumps, lines))
        response = await worked.post("/v1/messages:bulk", content=content, headers=NDJSON, **options)
        return {(found := json.loads(text))["line"]: found for text in response.text.splitlines()}

    first = await post(*sent)
    second = await post({**line, "payload": 2}, params={"upsert": "true"})
    third = await post({**line, "payload": 2})
    at_once = await post({"kind": kind, "id": "other"})

    assert {n: each["outcome"] for n, each in first.items()} == {
        1: "started",
        3: "rejected",
        5: "rejected",
        7: "already running",
    }
    assert (first[3]["field"], first[5]["field"]) == ("id", "kind")
    assert (second[1]["outcome"], third[1]["outcome"]) == ("revised", "already running")
    assert [each[1].get("is_due_now") for each in (first, second, third, at_once)] == [False, False, None, True]
    assert await message.has(payload=2, revision=1)


async def test_lines_of_one_message_take_effect_in_order_and_once(
    worked: httpx.AsyncClient, message: Subject, kind: str
) -> None:
    """The same body may come again after a fault; what is no such body is refused, and loses nothing in silence."""

    async def post(*payloads: int, upsert: bool = True) -> list[tuple[int, str, str]]:
        line = {"kind": kind, "id": message.id, "scheduled_at": AT}
        content = "\n".join(json.dumps({**line, "payload": payload}) for payload in payloads)
        options: dict[str, Any] = {"headers": NDJSON | {"Idempotency-Key": "k"}, "params": {"upsert": upsert}}
        answer = await worked.post("/v1/messages:bulk", content=content, **options)
        found = [json.loads(text) for text in answer.text.splitlines()]
        return [(each["line"], each["outcome"], each.get("reason", "")) for each in found]

    first = await post(1, 2, 1)
    again = await post(1, 2, 1)
    unchanged = await message.has(payload=1, revision=2)
    part = await post(2, 1)
    started = await post(1, 5, upsert=False)

    assert [each[:2] for each in first] == [(1, "started"), (2, "revised"), (3, "revised")]
    assert [line for line, _, _ in again] == [1, 2, 3]
    assert unchanged
    assert part == [
        (1, "rejected", "'k' was used before for another body; send that body again, or take a new key"),
        (2, "failed", f"line 1 of the same message was not taken; correct that one, then {SEND_AGAIN}"),
    ]
    assert started[0][:2] == (1, "started")
    assert started[1][1] in ("rejected", "already running")
    assert await message.has(payload=1, revision=2)


async def test_a_packed_body_is_unpacked(worked: httpx.AsyncClient, kind: str) -> None:
    """Of one message and of a bulk, whose files may follow one another; what is cut off starts nothing by halves."""
    lines = [f'{{"kind":"{kind}","id":"{n}","scheduled_at":"{AT}"}}\n'.encode() for n in range(4)]
    files = gzip.compress(lines[0]) + gzip.compress(b"\n" * 10**6 + lines[1])

    async def post(content: bytes, **headers: str) -> list[dict[str, Any]]:
        response = await worked.post("/v1/messages:bulk", content=content, headers=NDJSON | headers)
        return [json.loads(text) for text in response.text.splitlines()]

    one = await worked.put(path_of(kind), content=gzip.compress(b"{}"), headers=JSON | {"Content-Encoding": "x-gzip"})
    whole = await post(files, **GZIP)
    cut = await post(gzip.compress(lines[2] + lines[3][:-2])[:-4], **GZIP)
    unnamed = await post(files)

    assert one.status_code == 201
    assert {each["line"]: each["outcome"] for each in whole} == {1: "started", 1_000_002: "started"}
    assert [(each.get("id"), each.get("outcome")) for each in cut] == [("2", "started"), (None, None)]
    assert cut[-1]["problem"]["detail"] == "body: ends within its gzip data; send it again, whole"
    assert unnamed[-1]["problem"]["detail"] == "body: is packed; send it with Content-Encoding: gzip"


async def test_a_caller_that_sends_all_before_it_reads_is_served(worked: httpx.AsyncClient, kind: str) -> None:
    """Receipts wait outside of the connection, so neither side blocks the other."""
    lines = (f'{{"kind":"alien","id":"{"x" * 150}{n}"}}\n'.encode() for n in range(60_000))
    host = worked.base_url.host
    port = worked.base_url.port
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST /v1/messages:bulk HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
    head += "Content-Type: application/x-ndjson\r\n"
    body = b"".join(lines)
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
    for begin in range(0, len(body), 1_000_000):
        writer.write(body[begin : begin + 1_000_000])
        await writer.drain()  # nothing is read before everything is written
    answer = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", await reader.read())  # without the sizes of the parts
    writer.close()

    assert answer.count(b'"outcome":"rejected"') == 60_000


REFUSED: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("GET", "/", {}, 404, ""),
    ("GET", "/v1", {}, 404, ""),
    ("GET", "/v1/messages/{kind}", {}, 404, ""),
    ("GET", "/v1/messages/{kind}/a/b/c", {}, 404, ""),
    ("POST", "/v1/messages", {}, 405, ""),
    ("PATCH", "/v1/messages/{kind}/a", {}, 405, ""),
    ("PUT", "/v1/messages/{kind}/a/pause", {}, 405, ""),
    ("POST", "/v1/messages/{kind}/a/dance", {}, 404, ""),
    ("GET", "/v1/messages/{kind}/nobody", {}, 404, ""),
    ("GET", "/v1/messages/{kind}/%FF", {}, 400, "id"),
    ("GET", "/v1/messages/{kind}/%2E", {}, 422, "id"),
    ("PUT", "/v1/messages/{kind}/%2e%2E", {"json": {}}, 422, "id"),
    ("POST", "/v1/messages/{kind}/%2E/run_now", {}, 422, "id"),
    ("GET", "/v1/messages/{kind}/a?payload=maybe", {}, 400, "payload"),
    ("GET", "/v1/messages/{kind}/a?colour=red", {}, 400, "colour"),
    ("DELETE", "/v1/messages/{kind}/nobody", {}, 404, ""),
    ("DELETE", "/v1/messages/{kind}/a?reason=a&reason=b", {}, 400, "reason"),
    ("POST", "/v1/messages/alien/a", {"json": {}}, 422, "kind"),
    ("POST", "/v1/messages/Alien/a", {"json": {}}, 422, "kind"),
    ("POST", "/v1/messages/{kind}/%00", {"json": {}}, 422, "id"),
    ("POST", "/v1/messages/{kind}/" + "x" * 201, {"json": {}}, 422, "id"),
    ("POST", "/v1/messages/{kind}/a?upsert=true", {"json": {}}, 400, "upsert"),
    ("POST", "/v1/messages/{kind}/a", {"json": []}, 400, "body"),
    ("POST", "/v1/messages/{kind}/a", {"json": "text"}, 400, "body"),
    ("POST", "/v1/messages/{kind}/a", {"content": b"{", "headers": JSON}, 400, "body"),
    ("POST", "/v1/messages/{kind}/a", {"content": b"\xff", "headers": JSON}, 400, "body"),
    ("POST", "/v1/messages/{kind}/a", {"content": b'{"a":1,"a":2}', "headers": JSON}, 400, "body"),
    ("POST", "/v1/messages/{kind}/a", {"content": b"NaN", "headers": JSON}, 400, "body"),
    ("POST", "/v1/messages/{kind}/a", {"content": b"{}"}, 415, "Content-Type"),
    ("POST", "/v1/messages/{kind}/a", {"data": {"payload": "1"}}, 415, "Content-Type"),
    ("POST", "/v1/messages/{kind}/a", {"content": b"1", "headers": {"Content-Type": "text/x"}}, 415, "Content-Type"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"payload": "x" * 30_000}}, 413, "body"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"payload": "x" * 4095}}, 422, "payload"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"kind": "b"}}, 422, "kind"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"id": "b"}}, 422, "id"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"colour": "red"}}, 422, "colour"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"lane": "fast"}}, 422, "lane"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"priority": 6}}, 422, "priority"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"priority": True}}, 422, "priority"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"tenant": 7.5}}, 422, "tenant"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"tenant": "x" * 65}}, 422, "tenant"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"scheduled_at": "soon"}}, 422, "scheduled_at"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"scheduled_at": "2026-01-01T00:00:00"}}, 422, "scheduled_at"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"scheduled_at": 5}}, 422, "scheduled_at"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"tolerance_seconds": -1}}, 422, "tolerance_seconds"),
    ("POST", "/v1/messages/{kind}/a", {"json": {"schema_version": 2}}, 422, "schema_version"),
    (
        *("POST", "/v1/messages/{kind}/a"),
        *({"json": {"idempotency_key": "a"}, "headers": {"Idempotency-Key": "b"}}, 422, "idempotency_key"),
    ),
    *(
        ("PUT", "/v1/messages/{kind}/a", {"json": {}, "headers": {b"Idempotency-Key": key}}, 400, "Idempotency-Key")
        for key in (b'"k', b'"a"b"', b'""', b'"k";a=1', b"k" * 201, b"k\xe9")
    ),
    (
        *("POST", "/v1/messages:bulk"),
        *({"headers": [*NDJSON.items(), *[("Idempotency-Key", "k")] * 2]}, 400, "Idempotency-Key"),
    ),
    ("PUT", "/v1/messages/{kind}/a?if_version=-1", {"json": {}}, 400, "if_version"),
    ("PUT", "/v1/messages/{kind}/a?if_version=x", {"json": {}}, 400, "if_version"),
    ("PUT", "/v1/messages/{kind}/a?if_version=" + "9" * 40, {"json": {}}, 400, "if_version"),
    ("PUT", "/v1/messages/{kind}/a?if_due_before=soon", {"json": {}}, 400, "if_due_before"),
    ("POST", "/v1/messages/{kind}/a/reschedule", {"json": {}}, 422, "due_at"),
    ("POST", "/v1/messages/{kind}/a/reschedule", {"json": {"due_at": "soon"}}, 422, "due_at"),
    ("POST", "/v1/messages/{kind}/a/reschedule", {"json": {"due_at": 7}}, 422, "due_at"),
    ("POST", "/v1/messages/{kind}/a/reprioritize", {"json": {"priority": 9}}, 422, "priority"),
    ("POST", "/v1/messages/{kind}/a/revise", {"json": {}}, 422, "payload"),
    ("POST", "/v1/messages/{kind}/a/revise", {"json": {"payload": 1, "source": "t/0"}}, 422, "source"),
    ("POST", "/v1/messages/{kind}/a/revise", {"json": {"payload": 1, "lane": "fast"}}, 422, "lane"),
    ("POST", "/v1/messages/{kind}/a/pause", {"json": {"reason": 7}}, 422, "reason"),
    ("POST", "/v1/messages/{kind}/a/pause", {"json": {"why": "so"}}, 422, "why"),
    ("POST", "/v1/messages:bulk", {"json": []}, 415, "Content-Type"),
    ("POST", "/v1/messages:bulk?upsert=1", {"content": b"", "headers": NDJSON}, 400, "upsert"),
    ("GET", "/v1/messages?state=asleep", {}, 400, "state"),
    ("GET", "/v1/messages?lane=fast", {}, 400, "lane"),
    ("GET", "/v1/messages?due_before=then", {}, 400, "due_before"),
    ("GET", "/v1/messages?limit=0", {}, 400, "limit"),
    ("GET", "/v1/messages?limit=1001", {}, 400, "limit"),
    ("GET", "/v1/messages?cursor=x", {}, 422, ""),
    ("GET", "/v1/messages?cursor=WzEsMiwzXQ==", {}, 422, ""),
    ("GET", "/v1/messages:count?exact=yes", {}, 400, "exact"),
    ("GET", "/v1/forecast?hours=0", {}, 400, "hours"),
    ("PUT", "/v1/gates/%0A", {"json": {}}, 422, "gate"),
    ("PUT", "/v1/gates/lane:fast", {"json": {}}, 422, "gate"),
    ("PUT", "/v1/gates/g", {"json": {"opens_at": "later"}}, 422, "opens_at"),
    ("PUT", "/v1/gates/g", {"json": {"opens_at": ""}}, 422, "opens_at"),
    ("PUT", "/v1/gates/g", {"json": {"opens_at": "2020-01-01T00:00:00Z"}}, 422, "opens_at"),
    ("PUT", "/v1/gates/g", {"json": {"opens_at": "now"}}, 422, "opens_at"),
    ("PUT", "/v1/gates/g", {"json": {"opens_at": "2099-01-01T00:00:00Z"}}, 422, "opens_at"),
    ("PUT", "/v1/gates/g", {"json": {"for": "1h"}}, 422, "for"),
    ("PUT", "/v1/gates/g", {}, 400, "body"),
    ("PUT", "/v1/messages/{kind}/a", {"json": {}, "headers": GZIP}, 400, "body"),
    ("PUT", "/v1/messages/{kind}/a", {"content": gzip.compress(b"{}")[:-1], "headers": JSON | GZIP}, 400, "body"),
    ("PUT", "/v1/messages/{kind}/a", {"content": gzip.compress(b" " * 10**7), "headers": JSON | GZIP}, 413, "body"),
    ("PUT", "/v1/messages/{kind}/a", {"content": gzip.compress(b"{}"), "headers": JSON}, 415, "Content-Encoding"),
    (
        *("PUT", "/v1/messages/{kind}/a"),
        *({"json": {}, "headers": {"Content-Encoding": "br"}}, 415, "Content-Encoding"),
    ),
    (
        *("POST", "/v1/messages:bulk"),
        *({"content": b"", "headers": NDJSON | {"Content-Encoding": "gzip, zstd"}}, 415, "Content-Encoding"),
    ),
    ("PUT", "/v1/messages/{kind}/a", {}, 400, "body"),
    ("PUT", "/v1/messages/{kind}/a", {"content": b" \n", "headers": JSON}, 400, "body"),
    ("POST", "/v1/messages/{kind}/a", {}, 400, "body"),
    ("GET", "/v1/kinds", {"headers": {"Host": "evil.example"}}, 421, "Host"),
    ("POST", "/v1/messages/{kind}/a", {"json": {}, "headers": {"Origin": "http://evil.example"}}, 403, "Origin"),
    ("GET", "/v1/kinds", {"headers": {"Origin": "null"}}, 403, "Origin"),
    ("GET", "/v1/kinds", {"headers": {"Origin": "http://["}}, 403, "Origin"),
]


@pytest.mark.parametrize("encoding", ["solo"], indirect=True)
async def test_each_wrong_request_gets_one_sentence(api: httpx.AsyncClient, kind: str) -> None:
    """A problem with its status, the sentence and the field that it is about; nothing is started by any of them."""
    for method, path, options, status, field in REFUSED:
        response = await api.request(method, path.format(kind=kind), **options)
        problem = response.json()
        case = (method, path, options)

        assert (response.status_code, problem.get("field", "")) == (status, field), (case, problem)
        assert response.headers["content-type"] == "application/problem+json", case
        assert problem["status"] == status, case
        assert 10 < len(problem["detail"]) < 400, case
        assert "\n" not in problem["detail"], case
    assert (await api.get("/v1/messages:count", params={"kind": kind})).json()["count"] == 0


TOKENS = """
[reader]
token = "reader-0123456789"

[shop]
token = "shop-0123456789abc"
write = true
kinds = ["{kind}"]

[acme]
token = "acme-0123456789abc"
write = true
tenants = ["acme"]
"""


@pytest.fixture
async def guarded(installation: Installation, kind: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The API with tokens."""
    file = tmp_path / "tokens.toml"
    file.write_text(TOKENS.replace("{kind}", kind))
    application = make_application(installation, "1", Tokens.load(file), set())
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(application, "127.0.0.1", 0))
        yield await stack.enter_async_context(httpx.AsyncClient(base_url=address, timeout=60))


async def test_a_token_allows_what_its_file_says(
    guarded: httpx.AsyncClient, serve: Serve, sleeper: Handler, kind: str
) -> None:
    """Reading or writing, some kinds, some tenants; who has none may only ask whether the process is well."""

    async def status_of(method: str, path: str, token: str, **options: Any) -> int:
        headers = {b"Authorization": f"Bearer {token}".encode("latin-1")} if token else {}
        return (await guarded.request(method, path, headers=headers, **options)).status_code

    reader = "reader-0123456789"
    shop = "shop-0123456789abc"
    acme = "acme-0123456789abc"
    mine: dict[str, Any] = {"json": {"tenant": "acme", "scheduled_at": AT}}
    one = f"/v1/messages/{kind}/one"
    other = f"/v1/messages/{kind}/other"
    async with serve(sleeper, lanes=("short",)):
        assert [await status_of("GET", path, "") for path in ("/healthz", "/readyz", "/openapi.json")] == [
            200,
            200,
            200,
        ]
        assert [await status_of("GET", "/v1/kinds", token) for token in ("", "wrong-0123456789", "ré")] == [
            401,
            401,
            401,
        ]
        assert [await status_of(m, one, reader, **mine) for m in ("POST", "PUT", "DELETE")] == [403, 403, 403]
        assert await status_of("POST", one, acme, **mine) == 201
        assert await status_of("POST", other, shop, json={"scheduled_at": AT}) == 201
        readable = (one, other, f"/v1/messages?kind={kind}", "/v1/gates")
        assert [await status_of("GET", path, reader) for path in readable] == [200] * 4
        assert [await status_of("GET", path, acme) for path in (one, other)] == [200, 404]
        assert [await status_of("PUT", path, acme, **mine) for path in (one, other)] == [200, 404]
        others = [await status_of("POST", f"/v1/messages/{kind}/new", acme, json={"tenant": t}) for t in ("evil", 7)]
        assert others == [403, 403]
        assert [await status_of("POST", f"{path}/pause", acme) for path in (one, other)] == [200, 404]
        whole = ("/v1/messages", "/v1/messages:count", "/v1/gates")
        assert [await status_of("GET", path, acme) for path in whole] == [403] * 3
        assert await status_of("POST", "/v1/messages/echo/x", shop, json={}) == 403
        lists = ("/v1/messages", f"/v1/messages?kind={kind}", "/v1/messages?kind=echo", "/v1/forecast")
        assert [await status_of("GET", path, shop) for path in lists] == [403, 200, 403, 403]


async def test_the_document_describes_every_route(worked: httpx.AsyncClient, kind: str) -> None:
    """Each path and method of it is routed: nothing in it is answered as unknown, whatever else is wrong."""
    document = (await worked.get("/openapi.json")).json()
    values = {"{kind}": kind, "{id}": "x", "{gate}": "g"}

    for path, methods in document["paths"].items():
        address = path
        for name, value in values.items():
            address = address.replace(name, value)
        for method, operation in methods.items():
            has_kind = any(each["name"] == "kind" and each["in"] == "query" for each in operation.get("parameters", ()))
            response = await worked.request(method.upper(), address, params={"kind": kind} if has_kind else {})
            assert response.status_code != 405, (method, path)
            assert "there is nothing at" not in response.text, (method, path)
            assert str(response.status_code) in operation["responses"], (method, path, response.text)


@schemathesis.serializer("application/x-ndjson")
def _write_lines(_: Any, value: list[Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in value)


@pytest.mark.long
@pytest.mark.timeout(240)  # hundreds of requests
async def test_no_request_that_the_document_allows_fails(worked: httpx.AsyncClient, kind: str) -> None:
    """Whatever a generator makes of the document, the API never answers that it has a defect."""
    document = (await worked.get("/openapi.json")).json()
    for methods in document["paths"].values():
        for parameter in (each for operation in methods.values() for each in operation.get("parameters", ())):
            if parameter["name"] == "kind":  # others are refused before anything happens, or are those of other tests
                parameter |= {"schema": {"enum": [kind]}, "required": True}
            elif parameter["name"] == "id":
                parameter["schema"] = {"anyOf": [{"enum": ["one"]}, parameter["schema"]]}

    # In a process of its own, which has one thread: the generator reads its own source and goes through sys.modules.
    # Python 3.11 fails when two threads build syntax trees (https://github.com/python/cpython/issues/106905).
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        call = asyncio.get_running_loop().run_in_executor(pool, send_what_is_allowed, document, str(worked.base_url))
        seen = await call

    assert {200, 201} <= set(seen), seen


def send_what_is_allowed(document: dict[str, Any], base_url: str) -> Counter[int]:
    """Send generated requests to each operation; give how often each status came back."""
    schema: Any = schemathesis.openapi.from_dict(document)
    seen: Counter[int] = Counter()

    def call(operation: Any) -> None:
        @hypothesis.settings(
            max_examples=2 if "forecast" in operation.path else 8,  # it asks the packs of all tests
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        )
        @hypothesis.given(case=operation.as_strategy())
        def run(case: Any) -> None:
            response = case.call(base_url=base_url, timeout=60)
            seen[response.status_code] += 1
            assert response.status_code != 500, response.text

        run()

    for found in schema.get_all_operations():
        call(found.ok())

    return seen


def test_a_wrong_file_of_tokens_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """It names the table and what to write."""
    file = tmp_path / "tokens.toml"
    for text, sentence in (
        ("", "holds no token"),
        ("x", "can't be read as TOML"),
        ("a = 1", "a: is no table"),
        ("[a]\nwrite = true", "token has fewer than 16 characters"),
        ('[a]\ntoken = "0123456789abcdef"\nwrites = true', "has writes, which is no field"),
        ('[a]\ntoken = "0123456789abcdef"\nwrite = 1', "write is 1; write true or false"),
        ('[a]\ntoken = "0123456789abcdef"\nkinds = []', "kinds is"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidSetting, match=sentence) as caught:
            Tokens.load(file)
        assert "0123456789abcdef" not in str(caught.value)
