"""What all tests share: one real server for the session, a client, and workers on task queues of their own."""

import asyncio
import contextlib
import functools
import gc
import inspect
import itertools
import os
import signal
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from temporalio.client import Client, WorkflowHandle

from activities.api.handler import Handler
from activities.registry import Registry
from bench.serving import run_plan
from cluster.cluster import Cluster, find_folder
from examples.ledger import LEDGER_VARIABLE, Ledger
from shared.exit import find_stop_signals
from shared.lanes import LANES
from shared.messages.envelope import Envelope
from shared.settings import ENV_PREFIX, Settings
from shared.telemetry.sdk import Telemetry
from spark.session.session import build_session
from spark.source.source import packages_for
from starter.control import Control
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.kafka.broker import BrokerOptions, EmbeddedBroker, run_broker
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.support.disks import mounted
from tests.support.subjects import ENCODINGS, Subject, declare
from worker.lanes.profiles import PROFILES
from worker.run import WorkerPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.moving_in import Move

# a slow machine fails no example: no time is asserted
_TIMELESS = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("suite", _TIMELESS)
hypothesis.settings.load_profile("suite")
hypothesis.settings.register_profile(
    "search",
    _TIMELESS,
    max_examples=10_000,
    stateful_step_count=30,
    database=None,
    print_blob=True,
)
"""For hours of `--hypothesis-profile=search`; the suite itself uses each test's own numbers."""

TEST_SECONDS = 55.0
"""What one test may take: less than pytest-timeout's limit, which can't end what a coroutine has under way."""

SPARE_SECONDS = 5.0
"""By how much less, where a test's mark gives it a limit of its own."""

Serve = Callable[..., AbstractAsyncContextManager[None]]
Start = Callable[..., Awaitable[WorkflowHandle[Any, Any]]]
Begin = Callable[..., Awaitable[Subject]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the suite run against the real server on PostgreSQL that './run cluster up' has brought up."""
    parser.addoption("--cluster", action="store_true", help="run against the cluster of './run cluster up'")


def pytest_configure() -> None:
    """Let every Java of the tests compile fast code only, and let a stop signal end what the tests have started.

    The best code does not pay within seconds. Each stop signal interrupts, also where SIGINT was ignored at the start.
    """
    for number in find_stop_signals():
        signal.signal(number, signal.default_int_handler)
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_finish() -> None:
    """Keep what is imported out of garbage collections: a full one could take the 2 s that a workflow may take."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound coroutine tests from within, so that a test that takes too long ends its workers before it fails.

    What needs the broker runs in one of the suite's processes, so that there is one broker; so does what needs Spark's
    session, and what else is heavy.
    """
    for item in items:
        if "broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("broker"))
        elif item.get_closest_marker("heavy"):
            needs_session = "spark" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("spark" if needs_session else "heavy"))
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            mark = item.get_closest_marker("timeout")
            item.obj = _bounded(item.obj, mark.args[0] - SPARE_SECONDS if mark else TEST_SECONDS)


def _bounded(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(seconds):
            await test(*args, **kwargs)

    return run


@pytest.fixture(scope="session", autouse=True)
def _clean_environment() -> Iterator[None]:
    """Nobody's own settings change what the suite proves."""
    kept = {k: v for k, v in os.environ.items() if k.startswith((ENV_PREFIX, "TEMPORAL_"))}
    for key in kept:
        del os.environ[key]
    yield
    os.environ.update(kept)


@pytest.fixture(scope="session")
async def server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> AsyncIterator[EmbeddedServer]:
    """The embedded server, slimmed as users get it; time skipping is switched on for tests of long delays.

    With `--cluster` the server that runs already, which the tests neither start nor stop; its folder is for their logs.
    """
    data = tmp_path_factory.mktemp("temporal")
    if pytestconfig.getoption("--cluster"):
        cluster = Cluster(find_folder())
        assert cluster.process is not None, "no cluster runs; './run cluster up' starts it"
        yield EmbeddedServer(EmbeddedOptions(data=data, port=cluster.port, ui_port=None))
        return

    options = EmbeddedOptions(
        data=data,
        port=find_free_port(),
        ui_port=find_free_port(),
        extra_config=("frontend.WorkflowTimeSkippingEnabled=true",),
    )
    async with run_embedded(options) as running:
        yield running


@pytest.fixture(scope="session")
async def client(server: EmbeddedServer) -> Client:
    """A client of the session's server."""
    return await server.connect()


@pytest.fixture(scope="session")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBroker]:
    """The embedded broker; tests make topics of their own on it. It looks every moment for topics to compact."""
    options = BrokerOptions(
        data=tmp_path_factory.mktemp("kafka"),
        port=find_free_port(),
        extra_properties={"log.cleaner.backoff.ms": "500"},
    )
    async with run_broker(options) as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Spark on two cores of this machine; whoever uses it bears the mark `heavy`."""
    conf = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    }
    session = build_session(Settings(), master="local[2,3]", conf=conf, packages=packages_for("jdbc:postgresql:"))
    yield session
    session.stop()


@pytest.fixture
def settings() -> Settings:
    """Settings with task queues of the test's own, no sandbox, as in production.

    tests/fundamentals, the replays and test_cancellation.py use the sandbox, where a worker starts in half a second.
    """
    return Settings(task_queue_prefix=f"test-{uuid.uuid4().hex[:10]}", patience=timedelta(seconds=45))


@pytest.fixture
def control(client: Client, settings: Settings) -> Control:
    """The verbs."""
    return Control(client, settings)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 20 MB of this test's own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with mounted(folder, 20) as disk:
        yield disk


@pytest.fixture
def message_id() -> Callable[[], str]:
    """Make ids that no other test uses."""
    prefix = uuid.uuid4().hex[:10]
    counter = itertools.count()
    return lambda: f"{prefix}-{next(counter)}"


@pytest.fixture
def kind(message_id: Callable[[], str]) -> str:
    """A kind of this test's own: lists hold its messages alone, and how it is packed is nobody else's business."""
    return f"kind-{message_id()}"


@pytest.fixture(params=ENCODINGS)
def encoding(request: pytest.FixtureRequest) -> str:
    """Run the test once for each way in which messages become workflows."""
    return request.param


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger that `@ledgered` handlers of this test keep, in this process and in its children."""
    path = tmp_path / "ledger.jsonl"
    monkeypatch.setenv(LEDGER_VARIABLE, str(path))
    return Ledger(path)


@pytest.fixture
def move(
    server: EmbeddedServer, settings: Settings, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> "Callable[..., Move]":
    """Make the move of a section of docs/moving-in.md; solo, unless the test takes the encodings."""
    from tests.support.moving_in import make_move  # noqa: PLC0415 — it needs this module

    encoding = request.getfixturevalue("encoding") if "encoding" in request.fixturenames else "solo"
    return make_move(server, settings.task_queue_prefix, kind, encoding, tmp_path)


@contextlib.asynccontextmanager
async def serving(
    client: Client,
    settings: Settings,
    *handlers: Handler,
    lanes: tuple[str, ...] = tuple(LANES),
    telemetry: Telemetry | None = None,
    slots: int = 0,
    calls: int = 0,
) -> AsyncGenerator[None]:
    """Run workers in this process for the length of an `async with` block.

    Each lane takes `slots` workflow tasks and `calls` activities at once.
    """
    profiles = {
        name: replace(known, workflow_slots=slots or known.workflow_slots, activity_slots=calls or known.activity_slots)
        for name, known in PROFILES.items()
    }
    plan = WorkerPlan(
        settings=settings,
        registry=Registry([("the test", h) for h in handlers]),
        lanes=lanes,
        drain=timedelta(seconds=5),
        telemetry=telemetry or Telemetry(is_on=False),
        profiles=profiles,
    )
    async with run_plan(client, plan):
        yield


@pytest.fixture
def serve(client: Client, settings: Settings) -> Serve:
    """Give what runs workers on the test's own task queues, with `lanes`, or settings changed by name."""

    def serve(
        *handlers: Handler, lanes: tuple[str, ...] = tuple(LANES), **changes: Any
    ) -> AbstractAsyncContextManager[None]:
        return serving(client, replace(settings, **changes), *handlers, lanes=lanes)

    return serve


@pytest.fixture
def start(client: Client, settings: Settings, message_id: Callable[[], str]) -> Start:
    """Start one message and give its workflow handle."""

    async def start(kind: str = "echo", id: str | None = None, **fields: Any) -> WorkflowHandle[Any, Any]:  # noqa: A002 — the envelope's own word
        fields.setdefault("lane", "short")
        envelope = Envelope(kind=kind, id=id or message_id(), **fields)
        receipt = await BulkStarter(client, settings).start(envelope, None)
        assert receipt.run_id, receipt
        return client.get_workflow_handle(receipt.workflow_id)

    return start


@pytest.fixture
def begin(client: Client, settings: Settings, message_id: Callable[[], str], encoding: str) -> Begin:
    """Start one message in the encoding of this run; a pack that is there already answers only while it is served."""

    @functools.cache
    def starter(kind: str) -> BulkStarter:
        return BulkStarter(client, settings, encodings=declare(encoding, kind))

    async def begin(kind: str, id: str | None = None, **fields: Any) -> Subject:  # noqa: A002 — the envelope's own word
        fields.setdefault("lane", "short")
        envelope = Envelope(kind=kind, id=id or message_id(), **fields)
        receipt = await starter(kind).start(envelope, None)
        assert receipt.outcome is StartOutcome.STARTED, receipt
        return Subject(client, Control(client, settings), encoding, kind, envelope.id)

    return begin


async def wait_until(
    predicate: Callable[[], Any] | Callable[[], Awaitable[Any]], description: str, seconds: float = 45.0
) -> Any:
    """Wait until the predicate gives something true, and give that; fail with the description otherwise."""
    deadline = time.monotonic() + seconds
    while True:
        found: Any = predicate()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {description}")
        await asyncio.sleep(0.05)
