"""The examples of the documentation do what it says."""

import asyncio
import contextlib
import importlib
import itertools
import re
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from aiohttp import web

import activities
from activities import Again, Done, Reject, RetryAfter
from activities.api.handler import Handler
from activities.api.outcome import to_outcome
from activities.api.resources import Resources
from activities.http.client import HttpClient
from activities.testing import live, make_context, make_message, open_site
from shared.settings import Settings
from starter.extras.rehearsal.generator import DAY, GeneratorOptions, generate
from starter.extras.rehearsal.history_file import ChangeHistories
from starter.extras.rehearsal.policies import read_policy
from starter.extras.rehearsal.rehearsal import LocalHistories, RehearsalOptions, rehearse
from tests.support.sources import PAGES, blocks

SAVED_BLOCK = re.compile(r"`(\w+\.py)`[^`]*?:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

Load = Callable[[str], ModuleType]


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_compiles(page: str) -> None:
    """Examples can be copied as they stand."""
    for block in blocks("python", page):
        compile(block, page, "exec")


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Write the files that the pages say to save, and import one; nothing stays behind."""
    for text in PAGES.values():
        for name, body in SAVED_BLOCK.findall(text):
            (tmp_path / name).write_text(body, "utf-8")
    path = list(sys.path)
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module
    sys.path[:] = path
    for saved in tmp_path.glob("*.py"):
        sys.modules.pop(saved.stem, None)


@dataclass
class Port:
    """A real port on loopback that answers every HTTP request with one status; `requests` are what it got."""

    number: int
    requests: list[str] = field(default_factory=list[str])


@contextlib.asynccontextmanager
async def listening(status: int = 200) -> AsyncGenerator[Port]:
    """Listen at a free port for the length of a `with` block."""
    port = Port(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            port.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(f"HTTP/1.1 {status} So\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port.number = server.sockets[0].getsockname()[1]
        yield port


async def call(module: ModuleType, name: str, payload: Any, version: int = 0, **context: Any) -> Any:
    """Call a module's handler as a worker would, with the client that workers give it."""
    settings = Settings(http_allow_private=True)
    found = getattr(module, name)
    message = make_message(found, payload, id="a", version=version)
    async with HttpClient(settings) as client:
        return await found(message, make_context(message, settings=settings, http=client.get_session(), **context))


async def test_the_readmes_handler_does_what_the_readme_says(load: Load) -> None:
    """It posts with its idempotency key, comes back in a week, ends at 410, waits at 429, fails at 500."""
    module = load("reminder")
    week = Again(after=timedelta(days=7), tolerance=timedelta(minutes=10), reason="sent, 200")

    async def post(status: int) -> Any:
        async with listening(status) as port:
            outcome = await call(module, "remind", {"to": f"http://127.0.0.1:{port.number}/"}, version=3)
            assert "idempotency-key: reminder:a:3" in port.requests[0].lower()
            return outcome

    assert await post(200) == week
    assert await post(410) == Done({"sent": 3})
    with pytest.raises(RetryAfter):
        await post(429)
    with pytest.raises(RuntimeError, match="answered 500"):
        await post(500)


async def test_the_quickstarts_handler_does_what_the_quickstart_says(load: Load) -> None:
    """It doubles its interval while the port answers, up to an hour, and is back to ten seconds when it does not."""
    module = load("watch")
    async with listening() as port:
        payload: dict[str, Any] = {"port": str(port.number)}
        seen: list[Again] = []
        for _ in range(11):
            seen.append(await call(module, "watch", payload))
            payload = seen[-1].payload
    silent = await call(module, "watch", payload)
    rejected = await call(module, "watch", {"port": "smtp"})

    assert [again.after for again in seen] == [min(timedelta(seconds=20 * 2**n), timedelta(hours=1)) for n in range(11)]
    assert {again.reason for again in seen} == {"answers"}
    assert (silent.after, silent.reason) == (timedelta(seconds=10), "silent")
    assert rejected == Reject("payload.port: is 'smtp'; give a number")


async def test_the_report_comes_back_on_the_next_working_day(load: Load) -> None:
    """At eight in Berlin, whatever the weekday; a run within half an hour before it counts for it."""
    again = await call(load("report"), "report", None)
    friday = datetime(2026, 11, 27, 7, 50, tzinfo=ZoneInfo("Europe/Berlin"))

    assert again.at.next(friday + again.at.early) == datetime(2026, 11, 30, 7, tzinfo=UTC)
    assert again.at.next(friday - timedelta(minutes=30) + again.at.early) == datetime(2026, 11, 27, 7, tzinfo=UTC)


async def test_the_orders_hook_writes_into_the_chat(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A post to the address in the environment, which says which message and why."""
    module = load("order")
    async with listening() as port:
        monkeypatch.setenv("ORDERS_CHAT", f"http://127.0.0.1:{port.number}/chat")
        rejected = await call(module, "deliver", {})
        settings = Settings(http_allow_private=True)
        message = make_message(module.deliver, {}, id="a")
        async with HttpClient(settings) as client:
            ctx = make_context(message, settings=settings, http=client.get_session())
            await module.deliver.on_parked(message, ctx, rejected.reason)

    assert await call(module, "deliver", {"address": "here"}) == Done()
    assert port.requests[0].startswith("POST /chat ")


async def test_the_example_of_what_handlers_share_works(load: Load) -> None:
    """Its client is open for both calls, and closed afterwards."""
    module = load("partner")
    async with Resources() as resources, listening() as port:
        url = f"http://127.0.0.1:{port.number}/"
        outcomes = [await call(module, "fetch_state", {"url": url}, resources=resources) for _ in range(2)]
        client = await resources.get(module.open_partner, Settings())

    assert outcomes == [Again(after=timedelta(hours=1), reason="asked, 200")] * 2
    assert client.closed


async def test_the_example_of_packed_records_sends_as_the_built_in_handler_does(load: Load) -> None:
    """It is packed, declares the same gate, and refuses the same payloads."""
    module = load("forward")

    assert module.forward.encoding == activities.Pack()
    assert module.forward.gate_of(make_message(module.forward, {"topic": "t"})) == ("topic:t")
    assert (await call(module, "forward", {"value": "v"})).reason.startswith("payload.topic: is no name of a topic")


async def test_the_handler_of_the_page_about_limits_has_the_limit_that_it_says(load: Load) -> None:
    """Sixty calls a minute and three at once for each customer; it looks at the account, and comes back in a day."""
    module = load("accounts")
    found: Handler = module.check_account
    async with listening() as port:
        payload = {"customer": "customer-7", "url": f"http://127.0.0.1:{port.number}/"}
        outcome = await call(module, "check_account", payload)

    message = make_message(found, payload)
    assert outcome == Again(after=timedelta(days=1))
    assert found.limit is not None
    assert (found.limit.key_of(message), found.limit.summary) == ("customer-7", "60 in 1 min, 3 at once")


async def test_the_orders_of_the_handlers_page_are_read_and_written_as_it_says(load: Load) -> None:
    """One of the older form becomes one of the present form, and is reminded of three times."""
    module = load("orders")
    model = module.remind.payload
    payload = {"price": 2}
    reminders: list[int] = []
    for _ in range(3):
        payload = to_outcome(await call(module, "remind", model.read(payload)), 4096, model).payload
        reminders.append(payload["reminders"])

    assert reminders == [1, 2, 3]
    assert await call(module, "remind", model.read(payload)) == Done({"unpaid": 2.0})


def test_the_examples_of_tests_pass(load: Load) -> None:
    """The tests in the handlers page run as they stand, against the handler of the README."""
    module = load("test_reminder")
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]

    assert len(tests) == 2
    for test in tests:
        test()


async def test_the_order_of_the_handlers_page_is_given_up_after_three_days(load: Load) -> None:
    """It is looked at every hour on the first day, every six hours later, and then somebody is told."""
    check_payment = load("unpaid").check_payment
    told = list[Any]()

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.method == "POST":
            told.append(await request.json())
        return web.json_response({"is_paid": False})

    async with open_site(answer) as session:
        life = await live(check_payment, make_message(check_payment, id="7"), http=session)

    assert life.state == "expired"
    assert life.cycles[-1].at - life.cycles[0].at == timedelta(days=3)
    assert told == [{"order": "7", "looks": len(life.cycles) - 1}]
    assert 24 + 4 < len(life.cycles) < 24 + 10


def test_the_policy_of_the_rehearse_page_is_what_it_says(load: Load) -> None:
    """Fresher than one interval for all pages and than `adaptive`, for the same budget."""
    load("crawl")
    made = GeneratorOptions(pages=300, begin=0, length=timedelta(days=30), per_day=0.7, burst=1.5, rhythm=0.6)
    histories = {name: [at for _, at in rows if at] for name, rows in itertools.groupby(generate(made), itemgetter(0))}
    policies = {name: read_policy(name) for name in ("adaptive", "crawl:by_root")}
    options = RehearsalOptions(policies=policies, warm_up=10 * DAY, budget=150, is_daily=True)
    found = rehearse(LocalHistories(ChangeHistories(histories)), options)
    fresh = {each.name: each.freshness for each in found.policies}

    assert max(fresh["adaptive"], fresh["uniform"], fresh["proportional"]) < fresh["crawl:by_root"] < fresh["optimum"]
