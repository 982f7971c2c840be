"""The `webhook` handler against a real receiver on loopback: what it posts, and what each answer leads to."""

import asyncio
import gzip
import hashlib
import hmac
import json
import logging
import zlib
from codecs import BOM_UTF8, BOM_UTF16_LE
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities import Again, Context, Done, Message, Reject, RetryAfter
from activities.api.outcome import to_outcome
from activities.handlers.webhook.handler import webhook
from activities.http.client import HttpClient
from shared.errors import RetryLater
from shared.settings import Settings
from tests.conftest import Begin, Serve
from tests.integration.web_site import NOW, Reply, Visit, WebSite

H = timedelta(hours=1)
AT = datetime(2026, 12, 1, 8, tzinfo=UTC)
NOTICE = b"<br />\n<b>Notice</b>: Undefined index"  # what PHP writes before an answer


@pytest.fixture
def site() -> Iterator[WebSite]:
    """A receiver of the test's own."""
    with WebSite() as site:
        yield site


async def post(payload: Any, *, lane: str = "short", id: str = "42", **changes: Any) -> Any:  # noqa: A002 — the envelope's own word
    """Run one cycle as a worker would; gives its outcome, or the exception of RetryAfter or of a failed attempt."""
    settings = replace(Settings(http_allow_private=True, http_timeout=timedelta(seconds=20)), **changes)
    message = Message(kind="webhook", id=id, version=3, lane=lane, payload=payload, priority=2, tenant="t")

    async with HttpClient(settings) as http:
        ctx = Context(
            attempt=2,
            idempotency_key=f"webhook:{id}:3",
            due_at=NOW,
            started_at=NOW,
            settings=settings,
            get_session=http.get_session,
            logger=logging.LoggerAdapter(logging.getLogger(__name__), {}),
        )
        try:
            outcome = await webhook(message, ctx)
        except (RetryAfter, RetryLater) as exc:
            return exc

    to_outcome(outcome, settings.payload_max_bytes)
    return outcome


def said(**answer: Any) -> bytes:
    """Write an answer."""
    return json.dumps(answer).encode()


OUTCOMES: list[tuple[int, bytes, Any]] = [
    (204, b"", Done()),
    (200, b"", Done()),
    (200, b" \r\n", Done()),
    (201, said(done={"sum": 5}), Done({"sum": 5})),
    (200, said(done=None), Done()),
    (200, said(again={"after": "PT1H"}), Again(after=H)),
    (202, said(again={"after": 90}), Again(after=timedelta(seconds=90))),
    (200, said(again={"after": "P1DT2H", "reason": "later"}), Again(after=26 * H, reason="later")),
    (200, said(again={"at": "2026-12-01T09:00:00+01:00"}), Again(at=AT)),
    (200, said(again={"after": 60, "earliest": 30}), Again(after=H / 60, earliest=H / 120)),
    (200, said(again={"at": "2026-12-01T08:00:00Z", "earliest": "2026-12-01T08:00:00Z"}), Again(at=AT, earliest=AT)),
    (
        200,
        said(again={"after": "PT1H", "tolerance": "PT1M", "lane": "long"}),
        Again(after=H, tolerance=H / 60, lane="long"),
    ),
    (200, said(reject="no such customer"), Reject("no such customer")),
    (422, said(reject="no such customer"), Reject("no such customer")),
    (500, said(reject="no such customer"), Reject("no such customer")),
]
"""Status, body, outcome."""


@pytest.mark.parametrize(("status", "body", "outcome"), OUTCOMES)
async def test_an_answer_says_what_is_next(site: WebSite, status: int, body: bytes, outcome: object) -> None:
    """The body says it, and a 2xx with an empty body is done."""
    site.pages["/"] = Reply(status, body)

    assert await post({"url": site.url("/")}) == outcome


@pytest.mark.parametrize(
    ("status", "body", "headers", "delay", "gate"),
    [
        (429, b"", {"Retry-After": "120"}, timedelta(minutes=2), "host"),
        (429, said(retry_after="PT5M"), {"Retry-After": "120"}, timedelta(minutes=5), "host"),
        (503, b"<html>", {"Retry-After": "Fri, 20 Nov 2026 21:00:00 GMT"}, H, ""),
        (408, b"", {"Retry-After": "1"}, timedelta(seconds=1), ""),
        (200, said(retry_after=3600), {}, H, ""),
        (409, said(retry_after=3600, title="busy"), {}, H, ""),
    ],
)
async def test_an_answer_that_asks_to_wait_uses_up_no_attempt(
    site: WebSite, status: int, body: bytes, headers: dict[str, str], *, delay: timedelta, gate: str
) -> None:
    """A 429 also closes the gate of the host, which is that of the handler `http` too."""
    site.pages["/"] = Reply(status, body, headers)

    found = await post({"url": site.url("/")})

    assert isinstance(found, RetryAfter), found
    assert (found.delay, found.gate) == (delay, f"host:127.0.0.1:{site.port}" if gate else "")


async def test_one_answer_stops_a_host_for_a_day_at_most(site: WebSite) -> None:
    """The message itself waits as long as was asked for."""
    site.pages["/"] = Reply(429, b"", {"Retry-After": "864000"})

    found = await post({"url": site.url("/")})

    assert (found.delay, found.gate_delay) == (timedelta(days=10), timedelta(days=1))


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, b'{"again":', "answer: is no JSON"),
        (200, b'{"done": 1, "done": 2}', "answer: "),
        (
            200,
            said(done=1, ok=True),
            "answer.ok: is not a field of an answer; use one of again, done, reject, retry_after",
        ),
        (200, said(done=1, again={"after": 5}), "answer: says done and again; say one thing"),
        (200, said(again=5), "answer.again: is no object"),
        (200, said(again={}), "answer.again: needs exactly one of after and at"),
        (
            200,
            said(again={"after": 5, "at": "2026-12-01T08:00:00Z"}),
            "answer.again: needs exactly one of after and at",
        ),
        (200, said(again={"after": 5, "afer": 5}), "answer.again.afer: is not a field of again"),
        (200, said(again={"after": "1h"}), "answer.again.after: is '1h', no duration"),
        (200, said(again={"after": "P"}), "answer.again.after: is 'P', no duration"),
        (200, said(again={"after": True}), "answer.again.after: is True, no duration"),
        (
            200,
            said(again={"at": "2026-12-01T08:00:00"}),
            "answer.again.at: is '2026-12-01T08:00:00', which has no offset",
        ),
        (200, said(again={"at": 5}), "answer.again.at: is '5', no moment"),
        (200, said(again={"after": 5, "earliest": "soon"}), "answer.again.earliest: is 'soon', no duration"),
        (200, said(again={"after": 5, "lane": "fast"}), "answer.again.lane: is 'fast'; use one of short, medium, long"),
        (200, said(again={"after": 5, "reason": ["x"]}), "answer.again.reason: is ['x']; give a string"),
        (200, said(again={"after": 5, "data": "x" * 5000}), "answer.again.data: the payload with it is 50"),
        (200, said(done="x" * 5000), "answer.done: is 5002 bytes of JSON"),
        (200, b'{"done": [1e400]}', "answer.done: holds inf, which JSON does not know"),
        (200, said(again={"after": 5, "reason": None}), "answer.again.reason: is None; give a string"),
        (200, said(again={"after": 5, "lane": ["short"]}), "answer.again.lane: is ['short']"),
        (200, said(reject=5), "answer.reject: is 5; give a string"),
        (422, said(reject=5), "answer.reject: is 5; give a string"),
        (200, said(retry_after="soon"), "answer.retry_after: is 'soon', no duration"),
        (408, b"", "answered 408; it will be posted again"),
        (425, b"", "answered 425; it will be posted again"),
        (429, b"", "answered 429; it will be posted again"),
        (500, b"<html>", "answered 500; it will be posted again"),
        (503, said(type="about:blank", title="down"), "answered 503; it will be posted again"),
    ],
)
async def test_an_answer_that_can_not_be_followed_fails_the_attempt(
    site: WebSite, status: int, body: bytes, problem: str
) -> None:
    """So whoever deploys the receiver may still mend it; the sentence names the answer's field."""
    site.pages["/"] = Reply(status, body)

    found = await post({"url": site.url("/")})

    assert isinstance(found, RetryLater), found
    assert str(found).startswith(problem)


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, said(again={"after": "PT1H"}), Again(after=H)),
        (200, said(done=7), Done(7)),
        (200, said(ok=True), Done()),
        (200, b"", Done()),
        (422, said(reject="no such customer"), Reject("no such customer")),
    ],
)
async def test_a_byte_order_mark_before_an_answer_is_skipped(
    site: WebSite, status: int, body: bytes, outcome: object
) -> None:
    """An answer that begins with the byte order mark of UTF-8 says the same as one without it."""
    site.pages["/"] = Reply(status, BOM_UTF8 + body)

    assert await post({"url": site.url("/")}) == outcome


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        said(ok=True),
        said(status="success", id="0190", request_id="0190", attempt="0190"),  # Zapier
        said(message="Workflow was started"),  # n8n
        said(agian={"after": "PT1H"}),
    ],
)
async def test_an_object_with_none_of_the_four_fields_means_that_the_message_is_delivered(
    site: WebSite, body: bytes
) -> None:
    """A service that does not know dormice answers in its own words, and its message is done."""
    site.pages["/"] = Reply(200, body)

    assert await post({"url": site.url("/")}) == Done()
    assert await post({"url": site.url("/"), "strict": False}) == Done()


@pytest.mark.parametrize("body", [b"ok", b"OK\r\n", b"Accepted.", b"\xef\xbb\xbftrue", b"1", b'"received"'])
async def test_one_word_of_a_receipt_is_done_unless_the_payload_asks_for_the_strict_reading(
    site: WebSite, body: bytes
) -> None:
    """A service that acknowledges in plain text has the message; posting it again would only repeat it."""
    site.pages["/"] = Reply(200, body)

    assert await post({"url": site.url("/")}) == Done()
    assert isinstance(await post({"url": site.url("/"), "strict": True}), RetryLater)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (said(agian={}), "answer.agian: is not a field of an answer; use one of again, done, reject, retry_after"),
        (said(ok=True), "answer.ok: is not a field of an answer; use one of again, done, reject, retry_after"),
        (b"{}", "answer: says nothing; use one of again, done, reject, retry_after"),
    ],
)
async def test_the_strict_reading_takes_only_an_object_with_one_of_the_four_fields(
    site: WebSite, body: bytes, problem: str
) -> None:
    """With `strict` a misspelt field fails the attempt; what dormice knows, and an empty body, are read as ever."""
    site.pages = {"/": Reply(200, body), "/again": Reply(200, said(again={"after": "PT1H"})), "/empty": Reply(204)}

    found = await post({"url": site.url("/"), "strict": True})
    again = await post({"url": site.url("/again"), "strict": True})
    empty = await post({"url": site.url("/empty"), "strict": True})

    assert isinstance(found, RetryLater), found
    assert str(found) == problem
    assert (again, empty) == (Again(after=H), Done())


@pytest.mark.parametrize(
    ("body", "problem", "start"),
    [
        (NOTICE + said(done=1), "is no JSON (expecting value at character 1)", repr(f'{NOTICE.decode()}{{"done": 1}}')),
        (said(done=1) + b"<hr>", "is no JSON (extra data at character 12)", """'{"done": 1}<hr>'"""),
        (b'{"again":', "is no JSON (expecting value at character 10)", """'{"again":'"""),
        (b'{"ok": 1, "ok": 2}', "is ambiguous (the key 'ok' is there twice)", """'{"ok": 1, "ok": 2}'"""),
        (BOM_UTF16_LE + "{}".encode("utf-16-le"), "is not UTF-8 text (byte 1)", r"'��{\x00}\x00'"),
        (b'[{"done": 1}]', "is no JSON object", """'[{"done": 1}]'"""),
        (b"null", "is no JSON object", "'null'"),
        (b'"done"', "is no JSON object", """'"done"'"""),
        (b"failed", "is no JSON (expecting value at character 1)", "'failed'"),
        (b"false", "is no JSON object", "'false'"),
        (b"\x1b[31m\r\xff\xe2\x80\xae", "is not UTF-8 text (byte 7)", r"'\x1b[31m\r�\u202e'"),
    ],
)
async def test_a_body_that_is_no_json_object_fails_the_attempt_and_the_reason_shows_how_it_begins(
    site: WebSite, body: bytes, problem: str, start: str
) -> None:
    """A receiver that is out of order never ends a message, and one line that is safe to print shows what it sent."""
    site.pages["/"] = Reply(200, body)

    found = await post({"url": site.url("/")})

    assert isinstance(found, RetryLater), found
    assert str(found) == f"answer: {problem}; send a JSON object or nothing, not {start}"
    assert str(found).isprintable()


async def test_a_reason_shows_only_the_first_characters_of_a_long_body(site: WebSite) -> None:
    """A character of several bytes is shown whole or not at all."""
    site.pages["/"] = Reply(200, "€".encode() * 1000)

    found = await post({"url": site.url("/")})

    assert str(found).endswith(f"not '{'€' * 80}'")


async def test_a_content_coding_that_was_not_asked_for_fails_the_attempt(site: WebSite) -> None:
    """It is named in the reason; gzip was asked for and is read, and a plain body is read whatever it is said to be."""
    coded = said(again={"after": "PT1H"})
    site.pages = {
        "/deflate": Reply(200, zlib.compress(coded), {"Content-Encoding": "deflate"}),
        "/twice": Reply(200, gzip.compress(gzip.compress(coded)), {"Content-Encoding": "gzip, gzip"}),
        "/gzip": Reply(200, gzip.compress(coded), {"Content-Encoding": "gzip"}),
        "/plain": Reply(200, coded, {"Content-Encoding": "utf-8"}),
    }

    found = {name: await post({"url": site.url(name)}) for name in site.pages}

    assert isinstance(found["/deflate"], RetryLater)
    assert str(found["/deflate"]).startswith(
        "answer: has the content coding 'deflate', which was not asked for; send a JSON object or nothing, not 'x"
    )
    assert isinstance(found["/twice"], RetryLater)
    assert str(found["/twice"]).startswith("answer: has the content coding 'gzip, gzip', which was not asked for; ")
    assert (found["/gzip"], found["/plain"]) == (Again(after=H), Again(after=H))


@pytest.mark.parametrize(
    ("status", "headers"), [(400, {}), (404, {}), (409, {}), (410, {}), (302, {"Location": "/other"}), (304, {})]
)
async def test_an_answer_that_can_not_change_parks_the_message(
    site: WebSite, status: int, headers: dict[str, str]
) -> None:
    """Redirects too: a POST follows none."""
    site.pages["/"] = Reply(status, b"", headers)

    found = await post({"url": site.url("/")})

    assert isinstance(found, Reject), found
    assert f"answered {status}; " in found.reason
    assert len(site.visits) == 1


async def test_the_data_of_an_answer_replaces_that_of_the_payload(site: WebSite) -> None:
    """Beside it everything stays."""
    site.pages["/"] = Reply(200, said(again={"after": 5, "data": None}))

    again = await post({"url": site.url("/"), "data": {"n": 1}, "headers": {"X-Shop": "berlin"}})

    assert again.payload == {"url": site.url("/"), "data": None, "headers": {"X-Shop": "berlin"}}


async def test_the_request_says_which_call_it_is_and_is_signed(site: WebSite, tmp_path: Path) -> None:
    """Over its body, with the keys of the file; the id is whatever a header can't carry."""
    keys = ["k" * 32, "l" * 32]
    (tmp_path / "keys").write_text("\n".join(keys))
    site.pages["/"] = Reply(204)

    await post(
        {"url": site.url("/"), "data": {"n": 1}, "headers": {"X-Shop": "berlin"}},
        id="käfer 7",
        webhook_key_file=str(tmp_path / "keys"),
    )

    (visit,) = site.visits
    stamp, *signatures = visit.headers["dormice-signature"].split(",")
    signed = stamp.removeprefix("t=").encode() + b"." + visit.body
    assert signatures == [f"v1={hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()}" for key in keys]
    assert visit.headers["idempotency-key"] == "webhook:k%C3%A4fer%207:3"
    assert (visit.headers["x-shop"], visit.headers["content-type"]) == ("berlin", "application/json")
    assert json.loads(visit.body) == {
        "schema_version": 1,
        "kind": "webhook",
        "id": "käfer 7",
        "version": 3,
        "attempt": 2,
        "lane": "short",
        "due_at": "2026-11-20T20:00:00.000Z",
        "priority": 2,
        "tenant": "t",
        "correlation_id": "",
        "data": {"n": 1},
    }


async def test_without_a_key_the_request_is_unsigned_and_with_a_wrong_file_there_is_none(site: WebSite) -> None:
    """A file that can't be read is the installation's fault, so the message waits and is not parked."""
    site.pages["/"] = Reply(204)

    assert await post({"url": site.url("/")}) == Done()
    found = await post({"url": site.url("/")}, webhook_key_file="/nowhere/keys")

    assert "dormice-signature" not in site.visits[0].headers
    assert isinstance(found, RetryAfter), found
    assert str(found).startswith("webhook_key_file: /nowhere/keys can't be read")
    assert len(site.visits) == 1


async def test_only_public_addresses_are_posted_to(site: WebSite) -> None:
    """The guard is that of the handler `http`."""
    found = await post({"url": site.url("/")}, http_allow_private=False)

    assert isinstance(found, Reject), found
    assert "a private or reserved address" in found.reason
    assert site.visits == []


async def test_an_answer_that_is_too_slow_or_too_large_fails_the_attempt(site: WebSite) -> None:
    """Whether a proxy's page is large does not matter: the status decides."""
    site.pages["/slow"] = Reply(200, b"{}", stalls_after=1)
    site.pages["/large"] = Reply(200, b"x" * 2000)
    site.pages["/proxy"] = Reply(404, b"x" * 2000)

    slow = await post({"url": site.url("/slow")}, http_timeout=timedelta(milliseconds=200))
    large = await post({"url": site.url("/large")}, http_max_bytes=1000)
    proxy = await post({"url": site.url("/proxy")}, http_max_bytes=1000)

    assert isinstance(slow, RetryLater)
    assert str(slow).startswith("no answer within 0.2 s; answer sooner, raise DORMICE_HTTP_TIMEOUT")
    assert isinstance(large, RetryLater)
    assert str(large).startswith("answer: the body is longer than 1000 bytes")
    assert isinstance(proxy, Reject)


async def test_a_longer_lane_gives_a_receiver_more_time(site: WebSite) -> None:
    """On short the setting counts, on the others the lane's own limit."""

    def answer_late(_: Visit) -> Reply:
        site.closing.wait(0.4)
        return Reply(204)

    site.pages["/"] = answer_late

    assert await post({"url": site.url("/")}, lane="medium", http_timeout=timedelta(milliseconds=200)) == Done()


async def test_an_answer_that_is_no_http_fails_the_attempt_and_shows_no_key() -> None:
    """The reason names the receiver without its query, which may hold a key."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        found = await post({"url": f"http://127.0.0.1:{port}/hook?key=secret"})

    assert isinstance(found, RetryLater)
    assert str(found).startswith(f"http://127.0.0.1:{port}/hook?… answers what is no HTTP (")
    assert "secret" not in str(found)


async def test_nobody_who_listens_fails_the_attempt() -> None:
    """It will be posted again."""
    with WebSite() as site:
        url = site.url("/")

    found = await post({"url": url})

    assert str(found).startswith("no whole answer (ClientConnectorError")


async def test_a_message_lives_by_the_answers_alone(site: WebSite, serve: Serve, begin: Begin, kind: str) -> None:
    """In either encoding: again with other data, a failed attempt, a wait, and done with a result."""
    calls: list[dict[str, Any]] = []

    def answer(visit: Visit) -> Reply:
        call = json.loads(visit.body)
        calls.append(call)

        match call["version"], call["attempt"], len(calls):
            case 0, _, _:
                return Reply(200, said(again={"after": 1, "tolerance": 0, "data": {"n": 2}}))
            case 1, 1, _:
                return Reply(500)
            case 1, 2, 3:
                return Reply(503, b"", {"Retry-After": "1"})
            case _:
                return Reply(200, said(done={"n": call["data"]["n"] + 1}))

    site.pages["/"] = answer
    own = replace(webhook, kind=kind, backoff=timedelta(seconds=1))
    async with serve(own, lanes=("short",), http_allow_private=True):
        message = await begin(kind, payload={"url": site.url("/"), "data": {"n": 1}})
        ended = await message.wait_ended()

    assert (ended["state"], ended["result"]) == ("done", {"n": 3})
    assert [(call["version"], call["attempt"], call["data"]["n"]) for call in calls] == [
        (0, 1, 1),
        (1, 1, 2),
        (1, 2, 2),
        (1, 2, 2),
    ]
    assert len({visit.headers["idempotency-key"] for visit in site.visits}) == 2
