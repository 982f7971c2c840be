"""The operations page without a browser: who gets in, what it costs the server, and what it says of silent packs."""

import dataclasses
import re
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio import service
from temporalio.client import Client

from activities import Pack
from bench.pack_filling import Filling, start_sorted
from shared.keepers.gates import GateClosure
from shared.messages.envelope import Envelope
from shared.messages.signals import Reprioritize
from shared.settings import Settings
from starter.control import Control
from starter.extras.web.page.server_snapshots import GROUPED_MAX
from starter.extras.web.page.sign_in import UNKNOWN
from starter.extras.web.tokens import Tokens
from starter.steering.keepers import GateControl
from starter.steering.packs.packs import ASKED_MAX
from starter.steering.pages import PACKS_ASKED
from starter.steering.selection import Selection
from starter.steering.sender import SignalCounts
from tests.conftest import serving, wait_until
from tests.support.operations_pages import ServedPage, empty_server, make_handlers, serve_page, start_all
from tests.support.subjects import names

pytestmark = pytest.mark.timeout(180)

LATER = datetime.now(UTC) + timedelta(hours=2)
VIEWS = ("/", "/messages", "/parked", "/gates", "/dead-letters", "/workers")
PACK = Pack(packs=2, size=1000, coalesce=timedelta(0))
MANY = Pack(packs=ASKED_MAX + 60, size=1000, coalesce=timedelta(0))


@pytest.fixture(scope="module")
async def own_client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """A client of a server that holds only what these tests start."""
    async with empty_server(tmp_path_factory.mktemp("page")) as (_, client):
        yield client


@pytest.fixture
async def emptied(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a server that holds only what this one test starts."""
    async with empty_server(tmp_path) as (_, client):
        yield client


@pytest.fixture
def own_settings(settings: Settings) -> Settings:
    """Settings of this test's own, with a page on which things may be changed."""
    return dataclasses.replace(settings, page_writes=True)


def browse(served: ServedPage, **options: Any) -> httpx.AsyncClient:
    """Give what keeps cookies as a browser does."""
    return httpx.AsyncClient(base_url=served.address, timeout=60, **options)


async def test_without_page_writes_it_shows_no_form_and_takes_none(own_client: Client, settings: Settings) -> None:
    """Each view answers; whatever is sent is refused with a sentence."""
    async with serve_page(own_client, settings) as served, browse(served) as browser:
        shown = {path: await browser.get(path) for path in VIEWS}
        sent = await browser.post("/gates/close", data={"gate": "a"})
        deep = await browser.post("/messages/echo/a/stop", data={"sure": "yes"})

    assert {path: page.status_code for path, page in shown.items()} == dict.fromkeys(VIEWS, 200)
    assert [path for path, page in shown.items() if 'method="post"' in page.text] == []
    assert (sent.status_code, deep.status_code) == (403, 403)
    assert "start it with --page-writes" in sent.text


async def test_a_sign_in_with_the_token_of_the_start_lets_a_person_change_things(
    own_client: Client, own_settings: Settings
) -> None:
    """The session stands in a cookie that no script can read, the token nowhere; another origin is refused."""
    async with serve_page(own_client, own_settings) as served, browse(served) as browser:
        before = await browser.post("/gates/close", data={"gate": "a"})
        wrong = await browser.post("/sign-in", data={"token": "guessed"})
        signed_in = await browser.post("/sign-in", data={"token": served.page.token, "next": "//evil.example/x"})
        foreign = await browser.post("/gates/close", data={"gate": "a"}, headers={"Origin": "http://evil.example"})
        forms = await browser.get("/gates")
        # as an API, the same process asks no browser's session anything
        unhelped = await browser.get("/v1/kinds")
        await browser.post("/sign-out")
        after = await browser.get("/gates")

    cookie = signed_in.headers["set-cookie"]
    assert (before.status_code, wrong.status_code, foreign.status_code) == (403, 403, 403)
    assert UNKNOWN in wrong.text
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/")
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Max-Age=43200"))
    assert served.page.token not in cookie + forms.text
    assert 'action="/gates/close"' in forms.text
    assert 'action="/gates/close"' not in after.text
    assert unhelped.status_code == 200


async def test_the_overview_names_gates_whose_messages_it_can_not_count(
    emptied: Client, own_settings: Settings
) -> None:
    """Of a gate that handlers declare, only messages know that they need it, so they count as due."""
    closure = GateClosure.lasting(timedelta(hours=1), "down")
    await GateControl(emptied, own_settings).close("host:example.org", closure)

    async with serve_page(emptied, own_settings) as served, browse(served) as browser:
        overview = await browser.get("/")

    assert "What needs 1 other closed gate counts here, and waits." in overview.text


async def test_tokens_of_the_api_open_the_page_as_far_as_they_go(
    own_client: Client, own_settings: Settings, tmp_path: Path
) -> None:
    """Without a session every view leads to the form; a token for a kind sees that kind, one that reads only reads."""
    file = tmp_path / "tokens.toml"
    file.write_text(
        '[reader]\ntoken = "reads-everything-0"\n[some]\ntoken = "writes-one-kind-00"\nwrite = true\nkinds = ["echo"]\n'
    )
    async with serve_page(own_client, own_settings, tokens=Tokens.load(file)) as served:
        async with browse(served) as browser:
            asked = await browser.get("/messages", params={"kind": "echo", "state": "parked"})
            blind = await browser.post("/gates/close", data={"gate": "a"})
            styles = re.findall(r'href="(/static/page[^"]+)"', (await browser.get("/sign-in")).text)
            static = await browser.get(styles[0])
            await browser.post("/sign-in", data={"token": "reads-everything-0"})
            read = await browser.get("/")
            refused = await browser.post("/gates/close", data={"gate": "a"})
        async with browse(served) as browser:
            await browser.post("/sign-in", data={"token": "writes-one-kind-00"})
            limited = [(await browser.get(path)).status_code for path in ("/", "/messages", "/messages?kind=http")]
            allowed = (await browser.get("/messages", params={"kind": "echo"})).status_code
        port = httpx.URL(served.address).port
        async with browse(served, cookies={f"dormice_session_{port}": "0.99999999999.0"}) as browser:
            forged = await browser.get("/")

    assert (asked.status_code, asked.headers["location"]) == (
        303,
        "/sign-in?next=%2Fmessages%3Fkind%3Decho%26state%3Dparked",
    )
    assert (blind.status_code, static.status_code, forged.status_code) == (401, 200, 303)
    assert (read.status_code, refused.status_code) == (200, 403)
    assert "read-only as reader" in read.text
    assert (limited, allowed) == ([403, 403, 403], 200)


def test_a_session_ends_and_can_not_be_made_without_the_token() -> None:
    """It is bound to its place, its end and its token."""
    tokens = Tokens.of_one("the only token there is")
    now = 1_000_000.0
    session = tokens.open_session("the only token there is", now)
    assert session is not None
    place, ends_at, code = session.split(".")

    assert tokens.find_session(session, now) is not None
    assert tokens.find_session(session, now + 12 * 3600) is None
    assert Tokens.of_one("another token, as long").find_session(session, now) is None
    for wrong in (
        f"{place}.{int(ends_at) + 1}.{code}",
        f"1.{ends_at}.{code}",
        f"{place}.{ends_at}.é",
        "",
        "..",
        "a.b.c",
    ):
        assert tokens.find_session(wrong, now) is None, wrong
    assert tokens.open_session("guessed", now) is None


async def test_nothing_of_other_places_is_let_in(own_client: Client, settings: Settings) -> None:
    """Its headers allow our own files alone; empty fields of a form leave the address; what is wrong is a sentence."""
    async with serve_page(own_client, settings) as served, browse(served) as browser:
        page = await browser.get("/")
        cleaned = await browser.get("/messages", params={"kind": "", "lane": "short", "state": ""})
        wrong = await browser.get("/messages", params={"lane": "fast"})
        missing = await browser.get("/messages/echo/nobody")
        api = await browser.get("/v1/nothing")

    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert not re.search(r"<script(?! src=\"/static/)|<style| style=| on\w+=", page.text)
    assert (cleaned.status_code, cleaned.headers["location"]) == (303, "/messages?lane=short")
    assert (wrong.status_code, missing.status_code, api.status_code) == (400, 404, 404)
    assert "lane is &#39;fast&#39;; use one of short, medium, long" in wrong.text
    assert api.headers["content-type"] == "application/problem+json"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls to the server that the page makes, by name; workers make theirs elsewhere."""
    found = Counter[str]()
    bridge: Any = service._BridgeServiceClient  # pyright: ignore[reportPrivateUsage] — where all calls go out
    call = bridge._rpc_call

    async def count(self: Any, rpc: str, *arguments: Any, **options: Any) -> Any:
        found[rpc] += 1
        return await call(self, rpc, *arguments, **options)

    monkeypatch.setattr(bridge, "_rpc_call", count)
    return found


@pytest.mark.parametrize(
    "pack",
    [pytest.param(PACK, id="few packs"), pytest.param(MANY, id="many packs", marks=pytest.mark.long)],
)
async def test_a_view_makes_few_calls_however_many_messages_there_are(
    own_client: Client, own_settings: Settings, calls: Counter[str], pack: Pack
) -> None:
    """The calls grow with packs up to a bound, and not with the messages in them."""
    solo = f"solo-{uuid.uuid4().hex[:8]}"
    packed = f"packed-{uuid.uuid4().hex[:8]}"
    handlers = make_handlers(solo, packed, pack)
    patient = dataclasses.replace(own_settings, patience=timedelta(seconds=100))  # hundreds of packs answer at once

    async def start(first: int, number: int) -> None:
        envelopes = [
            Envelope(kind=packed, id=f"{n}", lane="short", scheduled_at=LATER) for n in range(first, first + number)
        ]
        await start_all(own_client, patient, envelopes, {packed: pack})

    async def measure(path: str) -> int:
        async with serve_page(own_client, own_settings, handlers) as served, browse(served) as browser:
            calls.clear()
            answer = await browser.get(path)
            assert answer.status_code == 200
            return calls.total()

    async def is_indexed() -> bool:
        found = (await own_client.count_workflows(Selection(kind=packed).to_pack_query())).count
        return found > (ASKED_MAX if pack is MANY else 0)

    paths = ("/", f"/messages?kind={packed}", f"/parked?kind={packed}", "/gates", "/workers")
    async with serving(own_client, own_settings, *handlers, lanes=("short",)):
        await start(0, 3 * pack.packs)
        await wait_until(is_indexed, "the index knows the packs")
        few = {path: await measure(path) for path in paths}
        await start(3 * pack.packs, 6 * pack.packs)
        many = {path: await measure(path) for path in paths}

    spare = 2 * PACKS_ASKED  # a pack that is at work is asked, one that is not is read
    assert all(many[path] <= few[path] + spare for path in paths), (few, many)
    assert max(many["/gates"], many["/workers"]) <= 40
    assert many[f"/messages?kind={packed}"] <= 10 + 5 * PACKS_ASKED + ASKED_MAX
    assert many["/"] <= 100 + 5 * PACKS_ASKED + 4 * ASKED_MAX


@pytest.mark.heavy
@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_a_view_makes_few_calls_beside_thousands_of_packs(
    own_settings: Settings, calls: Counter[str], kind: str, tmp_path: Path
) -> None:
    """No view asks more than its bound, and the overview says how many there are, by the packs' own counts."""
    filling = Filling(prefix=kind, count=600_000, size=200, delay=3600, due_in=36_000)
    settings = dataclasses.replace(own_settings, task_queue_prefix=kind)
    handlers = make_handlers(f"{kind}-solo", kind, Pack(packs=filling.packs, size=300))
    async with empty_server(tmp_path) as (_, client):
        sent = await start_sorted(client, filling)  # no worker takes them in: the counts are those of first chunks
        await wait_until(lambda: is_indexed(client, filling), "the index knows all packs")
        made = dict[str, int]()
        async with serve_page(client, settings, handlers) as served, browse(served) as browser:

            async def is_counted() -> bool:
                """Say whether the overview knows about how many there are; it is counted behind what is shown first."""
                text = (await browser.get("/")).text
                counts = [int(number.replace(",", "")) for number in re.findall(r"\d+(?:,\d{3})+", text)]
                return any(abs(count / filling.count - 1) < 0.01 for count in counts)

            calls.clear()
            await wait_until(is_counted, "the overview has the number of messages")
            made["/"] = calls.total()
            for path in (f"/messages?kind={kind}", f"/parked?kind={kind}", "/gates", "/workers"):
                calls.clear()
                assert (await browser.get(path)).status_code == 200
                made[path] = calls.total()

    assert sent.failed == 0
    assert max(made["/gates"], made["/workers"]) <= 40, made
    assert made[f"/messages?kind={kind}"] <= 10 + 5 * PACKS_ASKED + ASKED_MAX, made
    assert made["/"] <= 100 + 5 * PACKS_ASKED + 4 * ASKED_MAX, made


async def is_indexed(client: Client, filling: Filling) -> bool:
    """Say whether the index has all packs of a filling."""
    return (await client.count_workflows(Selection(kind=filling.prefix).to_pack_query())).count == filling.packs


@pytest.mark.long
async def test_a_pack_without_a_worker_does_not_hide_the_others(
    emptied: Client, own_settings: Settings, kind: str
) -> None:
    """The page and the API show what can be shown within seconds, and one sentence says what is missing."""
    solo = f"{kind}-solo"
    silent = f"{kind}-silent"
    handlers = make_handlers(solo, silent, PACK)
    elsewhere = dataclasses.replace(own_settings, task_queue_prefix=f"{own_settings.task_queue_prefix}-gone")
    await start_all(emptied, own_settings, [Envelope(kind=solo, id="seen", lane="short", scheduled_at=LATER)], {})
    ids = [f"{n}" for n in range(20)]
    control = Control(emptied, elsewhere)
    async with serving(emptied, elsewhere, *handlers, lanes=("short",)):
        envelopes = [Envelope(kind=silent, id=each, lane="short") for each in ids]
        await start_all(emptied, elsewhere, envelopes, {silent: PACK})
        await wait_until(lambda: have_run(control, silent, ids), "they have run")
        # once its messages are steered, only a worker knows what a pack holds
        await control.send_to_each(names(*((silent, each) for each in ids)), Reprioritize(1), SignalCounts())
    async with serve_page(emptied, own_settings, handlers) as served, browse(served) as browser:
        begun = time.monotonic()
        page = await browser.get("/messages")
        took = time.monotonic() - begun
        document = (await browser.get("/v1/messages")).json()
    left_out = list[str]()
    listed = [each.id async for each in served.control.list(Selection(), pass_over=left_out.append)]

    assert f"/messages/{solo}/seen" in page.text
    assert "2 packs are missing: " in page.text
    assert took < 15
    assert solo in {each["kind"] for each in document["messages"]}
    assert len(document["left_out"]) == len(left_out) == 2
    assert "seen" in listed
    assert len(listed) < GROUPED_MAX


async def have_run(control: Control, kind: str, ids: list[str]) -> bool:
    """Say whether each has come back once."""
    views = [await control.show(kind, each) for each in ids[:2]]
    return all(view.status is not None and view.status["version"] >= 1 for view in views)
