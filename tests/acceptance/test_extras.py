"""Each extra, alone and in the combinations that the docs name, runs what the docs say of it."""

import asyncio
import importlib
import json
import os
import re
import signal
import tomllib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.postgres import Postgres
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.local.kafka.broker import EmbeddedBroker
from starter.local.supervised_process import find_free_port
from tests.conftest import wait_until
from tests.support.databases import run_postgres
from tests.support.outboxes import write_dsn
from tests.support.processes import run_to_end
from tests.support.topics import create_topic, produce_keys
from tests.support.wheels import ROOT, build_wheel, install_extras

pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.long, pytest.mark.timeout(600)]

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
INSTALLED = re.compile(r"pip install '\.\[([\w,-]+)\]'")
NAMED = {
    *(
        extras
        for page in ("README.md", "docs/quickstart.md")
        for extras in INSTALLED.findall((ROOT / page).read_text())
    ),
    ",".join(re.findall(r"--extra (\S+)", (ROOT / "deploy/Dockerfile").read_text())),
    "celery,web",  # docs/celery.md
}
"""What pages and the image install together."""
COMBINATIONS = ["", *EXTRAS, *sorted(NAMED)]

KEY = f"encryption_keys=mine:{'A' * 43}="
PAGES = ("/", "/messages", "/parked", "/gates", "/dead-letters", "/workers", "/openapi.json")

COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "embedded": (("dev", "--port", "0", "--no-ui"),),
    "embedded-kafka": (("dev", "--port", "0", "--no-ui", "--kafka", "0"),),
    "encryption": (("list", "--set", KEY), ("start", "echo", "sealed", "--set", KEY)),
    "frontier": (("frontier", "--listen", "127.0.0.1:0"),),
    "kafka": (("bridge", "orders"), ("bridge", "status", "orders"), ("dead-letters", "list", "orders")),
    "outbox": (("outbox", "postgresql://app@127.0.0.1:1/d"), ("outbox", "status", "postgresql://app@127.0.0.1:1/d")),
    "parquet": (("load", "rows.parquet"),),
    "rehearsal": (("rehearse", "rows.parquet"), ("rehearse", "rows.jsonl", "--png", "visits.png")),
    "spark": (("spark", "prepare", "rows.jsonl", "manifest"), ("forecast", "--png", "due.png")),
    "telemetry": (("worker", "--set", "telemetry_prometheus=127.0.0.1:1"),),
    "web": (("serve", "--port", "0"), ("serve", "--port", "0", "--no-page")),
}
"""What can't be done without an extra; the handlers of `celery` and `topic` say it of each message."""


@dataclass
class Installation:
    """An environment with some extras, and a folder in which its programs run."""

    programs: Path
    folder: Path
    environment: Mapping[str, str]
    spawned: list[asyncio.subprocess.Process] = field(default_factory=list[asyncio.subprocess.Process])

    async def run(self, *arguments: str, **changes: str) -> tuple[int, str, str]:
        """Run a command to its end; gives its exit code, output and talk."""
        environment = {**self.environment, **changes}
        return await run_to_end(str(self.programs / "dormice"), *arguments, cwd=self.folder, env=environment)

    async def begin(self, *arguments: str, until: str, **changes: str) -> "Running":
        """Start a command that goes on, and wait until it has said this, or has ended."""
        log = self.folder / f"{arguments[0]}-{len(self.spawned)}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(str(self.programs / "dormice"), *arguments),
                cwd=self.folder,
                env={**self.environment, **changes},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

        self.spawned.append(process)
        running = Running(process, log)
        await wait_until(lambda: until in running.said or process.returncode is not None, until, 90)
        assert until in running.said, running.said

        return running

    def at(self, **changes: str) -> "Installation":
        """Give the same in another environment."""
        return replace(self, environment={**self.environment, **changes})

    async def do_all(self, message_id: Callable[[], str]) -> str:
        """Load a message, start one, wait for it and show it, with a worker that runs; gives its page."""
        loaded_id = message_id()
        started_id = message_id()
        row = {"kind": "echo", "id": loaded_id, "payload": {"delay": 3600}}
        (self.folder / "rows.jsonl").write_text(json.dumps(row))
        loaded = await self.run("load", "rows.jsonl")
        done = await self.run("start", "echo", started_id, "--payload", '{"cycles": 1}', "--wait")
        shown = await self.run("show", f"echo:{loaded_id}", "--json")

        assert (loaded[0], done[0], shown[0]) == (0, 0, 0), (loaded, done, shown)
        assert "1 started" in loaded[1] + loaded[2]
        assert "echoed 1 times" in done[1]
        assert json.loads(shown[1])["id"] == loaded_id
        return f"/messages/echo/{loaded_id}"


@dataclass(frozen=True, slots=True)
class Running:
    """A command that runs, and the file that has what it says."""

    process: asyncio.subprocess.Process
    log: Path

    @property
    def said(self) -> str:
        """All that it has said so far."""
        return self.log.read_text("utf-8")

    def find(self, pattern: str) -> str:
        """Give what it has said there."""
        found = re.search(pattern, self.said)
        assert found, self.said
        return found[1]

    async def end(self) -> None:
        """End it as a service manager would; it ends well."""
        self.process.send_signal(signal.SIGTERM)
        assert await self.process.wait() == 0, self.said


Install = Callable[[str], Installation]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make the environment of some extras, once for all tests, with the versions of uv.lock; gives its programs."""
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    made: dict[str, Path] = {}

    def make(extras: str) -> Path:
        if extras not in made:
            made[extras] = install_extras(tmp_path_factory.mktemp("env"), wheel, extras)
        return made[extras]

    return make


@pytest.fixture
async def install(
    make: Callable[[str], Path], server: EmbeddedServer, settings: Settings, tmp_path: Path
) -> AsyncGenerator[Install]:
    """Give an installation with some extras, whose programs meet the session's server; what still runs is killed."""
    # without the last, a process leaves its compiled modules to the next one of its environment
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    inherited = {k: v for k, v in os.environ.items() if k not in ours and not k.startswith(("DORMICE_", "TEMPORAL_"))}
    environment = {
        **inherited,
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "DORMICE_TASK_QUEUE_PREFIX": settings.task_queue_prefix,
    }
    installations = list[Installation]()

    def install(extras: str) -> Installation:
        installations.append(Installation(make(extras), tmp_path, environment))
        return installations[-1]

    yield install
    for process in (process for each in installations for process in each.spawned):
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """A PostgreSQL of this module's own."""
    with run_postgres() as running:
        yield running


def find_brought(extras: str) -> set[str]:
    """Name all extras that these bring, also through each other."""
    found = set[str]()
    waiting = [name for name in extras.split(",") if name]
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting += [more for each in EXTRAS[name] for more in re.findall(r"^dormice\[([\w-]+)\]$", each)]
    return found


@pytest.mark.parametrize(
    ("extras", "missing"),
    # beside the bare wheel those that bring a part of another extra
    [("", COMMANDS), ("spark", ["embedded-kafka", "kafka"]), ("embedded-kafka", ["spark", "parquet", "rehearsal"])],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_missing_extra_is_named_by_what_needs_it(install: Install, extras: str, missing: Iterable[str]) -> None:
    """In one sentence with code 2, and nothing has been started or written."""
    installed = install(extras)
    (installed.folder / "rows.jsonl").write_text('{"kind": "echo", "id": "unborn"}\n')
    (installed.folder / "rows.parquet").touch()
    before = {path.name for path in installed.folder.iterdir()}
    for name in missing:
        sentence = re.compile(rf"dormice: .+ not installed; install dormice with its extra '{name}'")
        for command in COMMANDS[name]:
            code, out, err = await installed.run(*command)

            assert (code, out) == (2, ""), (command, out, err)
            assert sentence.fullmatch(err.splitlines()[-1]), (command, err)
    assert {path.name for path in installed.folder.iterdir()} == before


@pytest.mark.parametrize("extras", COMBINATIONS, ids=lambda extras: extras or "none")
async def test_messages_run_and_pages_open(install: Install, extras: str, message_id: Callable[[], str]) -> None:
    """With `dormice dev` where its server is there, and with a worker elsewhere; with `serve`; all of it ends well."""
    installed = install(extras)
    brought = find_brought(extras)
    kafka = {"DORMICE_KAFKA_SERVERS": "127.0.0.1:1"}

    if "embedded" in brought:
        ports = ("--port", "0", "--page-port", "0", "--no-ui")
        worker = await installed.begin("dev", *ports, until="nothing is lost", DORMICE_TASK_QUEUE_PREFIX="dormice")
        address = worker.find(r"server   (127\.0\.0\.1:\d+),")
        installed = installed.at(TEMPORAL_ADDRESS=address, DORMICE_TASK_QUEUE_PREFIX="dormice")
        assert ("install dormice with its extra 'web'" in worker.said) == ("web" not in brought)
    else:
        worker = await installed.begin("worker", "--processes", "1", until="worker started")

    path = await installed.do_all(message_id)
    if "embedded" in brought and "web" in brought:
        await open_pages(worker.find(r"page     (http://\S+),"), (*PAGES, path))

    if "web" in brought:
        serve = await installed.begin("serve", "--port", "0", until="page     ", **kafka)
        pages = await open_pages(serve.find(r"page     (http://\S+),"), (*PAGES, path))
        await serve.end()
        says_what_is_missing = "install dormice with its extra &#39;kafka&#39;" in pages["/dead-letters"]
        assert says_what_is_missing == ("kafka" not in brought)

    await worker.end()


async def test_the_api_is_served_without_the_page(install: Install) -> None:
    """By `--no-page`, with the extra `web` alone."""
    serve = await install("web").begin("serve", "--port", "0", "--no-page", until="HTTP API at")
    await open_pages(serve.find(r"API at (http://\S+),"), ("/healthz", "/readyz", "/openapi.json"))
    await serve.end()


async def test_kafka_bridges_records(install: Install, broker: EmbeddedBroker) -> None:
    """A record becomes a message, and `bridge status` and `dead-letters` speak with the broker."""
    installed = install("kafka")
    kafka = {"DORMICE_KAFKA_SERVERS": broker.address}
    await create_topic(broker.address, "extras")
    await produce_keys(broker.address, "extras", ["bridged"])
    bridge = await installed.begin("bridge", "extras", "--kind", "echo", "--id-from", "key", until="", **kafka)

    async def is_there() -> bool:
        return (await installed.run("show", "echo:bridged"))[0] == 0

    await wait_until(is_there, "the record is a message")
    status = await installed.run("bridge", "status", "extras", **kafka)
    letters = await installed.run("dead-letters", "list", "extras", **kafka)
    await bridge.end()

    assert (status[0], letters[0]) == (0, 0), (status, letters)


async def test_outbox_takes_rows(install: Install, database: Postgres) -> None:
    """Its own SQL makes the table, and a row becomes a message."""
    installed = install("outbox")
    _, ddl, _ = await installed.run("outbox", "ddl")
    database.run(ddl)
    database.run("INSERT INTO dormice_outbox (kind, id) VALUES ('echo', 'stored')")
    taken = await installed.run("outbox", write_dsn(database), "--once")
    status = await installed.run("outbox", "status", write_dsn(database))
    shown = await installed.run("show", "echo:stored")

    assert (taken[0], status[0], shown[0]) == (0, 0, 0), (taken, status, shown)


async def test_frontier_listens(install: Install) -> None:
    """Until it is told to end."""
    frontier = await install("frontier").begin("frontier", "--listen", "127.0.0.1:0", until="interface at")
    await frontier.end()

    assert "drained" in frontier.said


async def test_parquet_is_loaded(install: Install) -> None:
    """Each row of such a file is a message."""
    installed = install("parquet")
    table: Any = importlib.import_module("pyarrow").table({"kind": ["echo"], "id": ["columnar"]})
    importlib.import_module("pyarrow.parquet").write_table(table, installed.folder / "rows.parquet")
    code, out, err = await installed.run("load", "rows.parquet")

    assert code == 0, err
    assert "1 started" in out + err


async def test_encryption_seals_payloads(install: Install, message_id: Callable[[], str]) -> None:
    """A worker with the key runs what was started with it, and who lacks the key can't read it."""
    installed = install("encryption")
    name = f"echo:{message_id()}"
    worker = await installed.begin("worker", "--processes", "1", "--set", KEY, until="worker started")
    payload = ("--payload", '{"delay": 3600, "secret": "hush"}')
    started = await installed.run("start", *name.split(":"), *payload, "--set", KEY)
    shown = await installed.run("show", name, "--set", KEY)
    refused = await installed.run("show", name)
    await worker.end()

    assert (started[0], shown[0], refused[0]) == (0, 0, 2), (started, shown, refused)
    assert "hush" in shown[1]
    assert "hush" not in refused[1] + refused[2]


async def test_telemetry_publishes_metrics(install: Install) -> None:
    """Of a worker, for Prometheus, with traces on."""
    address = f"127.0.0.1:{find_free_port()}"
    variables = {"DORMICE_TELEMETRY_PROMETHEUS": address, "DORMICE_TELEMETRY_OTLP": "http://127.0.0.1:1"}
    worker = await install("telemetry").begin("worker", "--processes", "1", until="worker started", **variables)
    metrics = (await open_pages(f"http://{address}", ("/metrics",)))["/metrics"]
    await worker.end()

    assert "dormice_" in metrics


async def test_celery_sends_tasks(install: Install) -> None:
    """To a broker in the worker's memory; nothing of it leaves this machine."""
    installed = install("celery")
    variables = {"DORMICE_CELERY_BROKER_URL": "memory://"}
    worker = await installed.begin("worker", "--processes", "1", until="worker started", **variables)
    payload = json.dumps({"task": "tasks.add", "body": "[[1, 2], {}, {}]", "queue": "extras"})
    code, out, err = await installed.run("start", "celery", "held", "--payload", payload, "--wait=60s")
    await worker.end()

    assert code == 0, (out, err, worker.said)


@pytest.mark.heavy
async def test_spark_prepares_and_draws(install: Install) -> None:
    """Two rows become a manifest, and a forecast becomes a picture."""
    installed = install("spark")
    (installed.folder / "rows.jsonl").write_text('{"kind": "echo", "id": "one"}\n{"kind": "echo", "id": "two"}\n')
    prepared = await installed.run("spark", "prepare", "rows.jsonl", "manifest")
    drawn = await installed.run("forecast", "--png", "due.png")

    assert (prepared[0], drawn[0]) == (0, 0), (prepared, drawn)
    assert (installed.folder / "due.png").read_bytes().startswith(b"\x89PNG")


async def test_embedded_kafka_runs_a_broker_beside_the_server(install: Install) -> None:
    """With this extra alone."""
    ports = ("--port", "0", "--page-port", "0", "--no-ui", "--kafka", "0")
    dev = await install("embedded-kafka").begin("dev", *ports, until="nothing is lost")
    await create_topic(dev.find(r"Kafka    (127\.0\.0\.1:\d+),"), "extras")
    await dev.end()


async def open_pages(address: str, paths: tuple[str, ...] = PAGES) -> dict[str, str]:
    """Open these, each of which is there; gives their texts."""
    texts: dict[str, str] = {}
    async with httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as browser:
        for path in paths:
            answer = await browser.get(path)
            assert answer.status_code == 200, (path, answer.text)
            texts[path] = answer.text
    return texts
