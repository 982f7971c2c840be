"""The documentation says what is true: links, commands, settings, signatures, tables and examples match the code."""

import ast
import asyncio
import contextlib
import importlib
import inspect
import itertools
import json
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any, get_args
from zoneinfo import ZoneInfo

import httpx
import pytest

import activities
from activities import Again, Done, Reject, RetryAfter
from activities.api import policies
from activities.api.handler import Handler
from activities.api.outcome import to_outcome
from activities.api.resources import Resources
from activities.http.client import HttpClient
from activities.reporting import begin_cycle
from activities.testing import live, make_context, make_message
from shared.lanes import LANES, task_queue
from shared.messages.decision import MAX_DELAY, MIN_DELAY, TOLERANCE_MAX, TOLERANCE_SHARE
from shared.messages.envelope import Envelope
from shared.messages.message import HandlerCall, Verdict
from shared.messages.signal_reading import PackSignal, read_steering
from shared.messages.signals import SIGNAL_NAMES
from shared.messages.timespan import format_seconds
from shared.settings import Settings, describe_settings
from shared.telemetry.metrics import BRIDGE_METRICS, OLDEST_OVERDUE, OUTBOX_METRICS, WORKER_METRICS, Metric
from shared.telemetry.sdk import Telemetry
from shared.telemetry.spans import NO_SPAN, Attributes, Carrier, Span
from shared.temporal.search_attributes import REQUIRED
from starter.cli.main import build_parser
from starter.cli.operations.doctor import CODES
from starter.insight.doctor.checks import Severity
from starter.insight.doctor.kafka import Kafka
from starter.insight.doctor.lanes import Lanes
from starter.insight.doctor.server import Server
from starter.insight.rehearsal.generator import DAY, GeneratorOptions, generate
from starter.insight.rehearsal.history_file import ChangeHistories
from starter.insight.rehearsal.page import COLUMNS
from starter.insight.rehearsal.policies import Visit, read_policy
from starter.insight.rehearsal.references import REFERENCES
from starter.insight.rehearsal.rehearsal import LocalHistories, RehearsalOptions, rehearse
from starter.intake.bridge.offsets import Partition
from starter.intake.bridge.pending_record import PendingRecord, RecordSpans
from starter.records.record import Record
from starter.starting.delivery import Delivery
from tests.sources import documented_checks, parse, table

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "client" / "README.md"]
}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
LINE_MAX = 120
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
SAVED_BLOCK = re.compile(r"`(\w+\.py)`[^`]*?:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

Load = Callable[[str], ModuleType]


def blocks(language: str, *pages: str) -> list[str]:
    """Give the code blocks of a language, of some pages or of all."""
    texts = [PAGES[page] for page in pages or PAGES]
    return [textwrap.dedent(body) for text in texts for _, found, body in BLOCK.findall(text) if found == language]


def prose(page: str) -> str:
    """Give a page without its code blocks."""
    return BLOCK.sub("", PAGES[page])


def anchors(text: str) -> set[str]:
    """Give the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    """To a file that is there and, where it names one, to a heading of it."""
    broken: list[str] = []
    for _, target in LINK.findall(prose(page)):
        name, _, anchor = target.partition("#")
        if name.startswith("https://"):
            continue
        path = ROOT / page if not name else (ROOT / page).parent / name
        if not path.exists() or (anchor and anchor not in anchors(path.read_text("utf-8"))):
            broken.append(target)

    assert broken == []


@pytest.mark.parametrize("page", sorted(PAGES.keys() - {"docs/cli-reference.md"}))
def test_a_line_fits_the_screen(page: str) -> None:
    """At most 120 characters, rows of tables excepted, which Markdown can't break."""
    long = [line for line in prose(page).splitlines() if len(line) > LINE_MAX and not line.lstrip().startswith("|")]

    assert long == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_first_what_it_is_for(page: str) -> None:
    """Below its title stands one sentence, as a paragraph of its own."""
    title, _, rest = PAGES[page].partition("\n\n")
    paragraph = rest.partition("\n\n")[0]

    assert title.startswith("# ")
    assert re.fullmatch(r"(?:dormice|[A-Z])(?:[^.]|\.(?=\S))+\.", paragraph), paragraph


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_every_proof_is_a_test(page: str) -> None:
    """A link to a test file is named like one of its tests."""
    claimed = [(text, target) for text, target in LINK.findall(prose(page)) if "/test_" in target]
    missing = [text for text, target in claimed if text not in _promises((ROOT / page).parent / target)]

    assert claimed
    assert missing == []


def _promises(path: Path) -> set[str]:
    found = [node for node in parse(path.read_text("utf-8")).body if isinstance(node, DEFINITIONS)]
    return {node.name.removeprefix("test_").replace("_", " ") for node in found}


def test_every_setting_is_documented() -> None:
    """By its name in the environment, on some page."""
    everything = "\n".join(PAGES.values())

    assert [name for name, _, _ in describe_settings() if f"`{name}`" not in everything] == []


def test_a_default_beside_a_setting_is_its_default() -> None:
    """Where the prose names a value in brackets, it is the one in the code."""
    defaults = {name: default for name, default, _ in describe_settings()}
    said = [
        (name, value.replace(" ", ""))
        for page in PAGES
        for name, value in re.findall(r"`(DORMICE_\w+)`(?: \(|, )([\w.]+(?: s)?)\)", prose(page))
    ]

    assert len(said) > 5
    assert [(name, value) for name, value in said if defaults[name] != value] == []


def test_every_command_that_is_shown_is_understood() -> None:
    """Whole command lines of the examples go through the real parser."""
    command = re.compile(r"^(?:\$|  )(?: \w+=\S+)* (dormice [^|\n]*)", re.MULTILINE)
    shown = [line for block in blocks("console") for line in command.findall(block)]
    parser, _ = build_parser()

    assert len(shown) > 20
    for line in shown:
        with contextlib.suppress(SystemExit):  # --version leaves; a complaint is another error
            assert callable(parser.parse_args(shlex.split(line)[1:]).run), line


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_is_mentioned_exists(page: str) -> None:
    """Commands and options in running text are ones of the command line, or of the programs for moving in."""
    _, commands = build_parser()
    options = {leaf.prog: set(re.findall(r"--[\w-]+", leaf.format_help())) for leaf in commands.leaves}
    programs = "".join(path.read_text("utf-8") for path in (ROOT / "examples" / "moving_in").glob("*.py"))
    options["examples.moving_in"] = set(re.findall(r'"(--[\w-]+)"', programs))
    mentions = re.findall(r"`(?:[A-Z_]+=\S+ )*(dormice(?: [^`]+)?|--[a-z][^`]*)`", prose(page))

    assert [mention for mention in mentions if not _is_known(mention, options)] == []


def _is_known(mention: str, options: dict[str, set[str]]) -> bool:
    """Tell whether some command begins with the mention's lower-case words and has all its options."""
    words = itertools.takewhile(str.islower, mention.partition(" --")[0].split())
    name = "" if mention.startswith("--") else " ".join(word for word in words if ":" not in word)
    wanted = set(re.findall(r"(?<!\S)--[\w-]+", mention))
    return any(f"{prog} ".startswith(f"{name} ".lstrip()) and wanted <= options[prog] for prog in options)


def test_every_subcommand_of_run_that_is_named_exists() -> None:
    """`./run help` lists what the pages say to run."""
    named = {name for text in PAGES.values() for name in re.findall(r"\./run ([a-z]+)", text)}
    listed = set(re.findall(r"^  ([a-z]+)  ", (ROOT / "run").read_text("utf-8"), re.MULTILINE))

    assert {"demo", "test"} <= named <= listed


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def declarations(source: str) -> dict[str, list[str]]:
    """Give the public shape of what a text defines: bases, fields with defaults, signatures."""
    found = [node for node in parse(textwrap.dedent(source)).body if isinstance(node, DEFINITIONS)]
    return {node.name: list(_shape(node)) for node in found}


def _shape(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        yield ",".join(map(ast.unparse, node.bases))
        for part in node.body:
            yield from _shape(part)
    elif isinstance(node, ast.AnnAssign):
        is_made = isinstance(node.value, ast.Call) and ast.unparse(node.value).startswith("field(")
        default = "" if node.value is None else f" = {'...' if is_made else ast.unparse(node.value)}"
        yield f"{ast.unparse(node.target)}: {ast.unparse(node.annotation).strip(QUOTES)}{default}"
    elif isinstance(node, ast.FunctionDef) and node.name != "__post_init__":
        decorators = [f"@{ast.unparse(decorator)} " for decorator in node.decorator_list]
        yield f"{''.join(decorators)}{node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns or NOTHING)}"


QUOTES = "'\""
NOTHING = ast.Constant(None)


@pytest.mark.parametrize("name", activities.__all__)
def test_every_public_name_of_the_api_is_documented_as_it_is(name: str) -> None:
    """With its exact fields, defaults and signatures."""
    documented = {
        key: shape for block in blocks("python", "docs/handlers.md") for key, shape in declarations(block).items()
    }
    public = getattr(activities, name)

    assert documented[name] == declarations(inspect.getsource(public))[name]


def test_every_revisit_policy_is_documented_with_its_arguments() -> None:
    """In the order of the module."""
    public = [
        f"`{name}({', '.join(_arguments(function))})`"
        for name, function in vars(policies).items()
        if inspect.isfunction(function) and function.__module__ == policies.__name__ and not name.startswith("_")
    ]

    assert [row[0] for row in table("docs/handlers.md", "Revisit policies")] == public


def _arguments(function: Callable[..., Any]) -> Iterator[str]:
    is_by_name = False
    for argument in inspect.signature(function).parameters.values():
        if argument.kind is argument.KEYWORD_ONLY and not is_by_name:
            is_by_name = True
            yield "*"
        yield argument.name


@pytest.mark.parametrize(
    ("page", "heading", "expected"),
    [
        ("docs/architecture.md", "The envelope", Envelope.model_fields),
        ("docs/architecture.md", "The decision", get_args(Verdict)),
        ("docs/architecture.md", "Signals", SIGNAL_NAMES.values()),
        ("docs/architecture.md", "Search attributes", REQUIRED),
        ("docs/handlers.md", "Lanes and timeouts", LANES),
        ("docs/quickstart.md", "Without Spark and Java", EXTRAS),
    ],
)
def test_a_table_has_a_row_for_each_and_no_other(page: str, heading: str, expected: Iterable[str]) -> None:
    """Whatever is added to the code has to be added to its table."""
    assert [row[0].strip("`") for row in table(page, heading)] == list(expected)


def test_the_inputs_of_signals_for_the_web_ui_are_ones_that_the_signals_take() -> None:
    """Each signal has its row, and each input makes the signal; to a pack the same one, for the ids beside it."""
    types = {name: kind for kind, name in SIGNAL_NAMES.items()}
    rows = table("docs/web-ui.md", "Send a signal")

    assert [name.strip("`") for name, _ in rows] == list(SIGNAL_NAMES.values())
    for name, text in ((row[0].strip("`"), row[1]) for row in rows):
        (written,) = re.findall(r"`([^`]+)`", text)
        given = json.loads(written)
        wanted = types[name](**given)
        assert read_steering(name, [{"ids": ["a"], **given}]) == PackSignal(["a"], wanted)
        is_bare = all(f.default is not MISSING for f in fields(types[name]))
        assert text.startswith("none, or ") is is_bare


def test_the_queries_for_the_web_ui_name_attributes_that_there_are() -> None:
    """Those of dormice, and those of Temporal that every server has."""
    known = {*REQUIRED, "WorkflowType", "WorkflowId", "ExecutionStatus", "TemporalReportedProblems"}
    queries = [row[0].strip("`") for row in table("docs/web-ui.md", "The list")]
    found = {
        name for query in queries for name in re.findall(r"\b[A-Z][a-z]+[A-Za-z]*\b", re.sub(r"'[^']*'", "", query))
    }

    assert set(REQUIRED) <= found <= known


@pytest.mark.parametrize(
    ("page", "metrics"),
    [
        ("docs/kafka.md", BRIDGE_METRICS),
        ("docs/outbox.md", OUTBOX_METRICS),
        ("docs/operations.md", (*WORKER_METRICS, OLDEST_OVERDUE)),
    ],
)
def test_the_table_of_metrics_is_the_one_in_the_code(page: str, metrics: Iterable[Metric]) -> None:
    """Name, unit, labels and meaning of each."""
    expected = [
        [
            f"`{metric.name}`",
            "none" if metric.unit == "1" else metric.unit.strip("{}"),
            ", ".join(metric.labels),
            metric.description.rstrip("."),
        ]
        for metric in metrics
    ]

    assert table(page, "Metrics") == expected


def test_the_tables_of_the_doctor_are_those_in_the_code() -> None:
    """What it asks servers, in its order; and the exit code of each finding, from good to worst."""
    nobody: Any = None
    settings = Settings()
    server = Server(nobody, settings, ROOT, nobody)
    asking = (server, Lanes(server, None), Kafka(settings, ()))
    names = [check.name for room in asking for check in room.checks()]
    _, _, codes = PAGES["docs/operations.md"].partition("The worst finding is the exit code")

    assert documented_checks()[-len(names) :] == names  # before them are those of the machine
    assert re.findall(r"^\| (\w+) \| (\d+) \|", codes, re.MULTILINE) == [
        (name, str(code)) for name, code in CODES.items()
    ]
    assert [*CODES] == [*Severity]


def test_the_table_of_spans_attributes_is_the_one_in_the_code() -> None:
    """Each attribute, and whether a cycle's span bears it, a record's, or both."""
    begun: dict[str, list[str]] = {}

    def begin(name: str, attributes: Attributes, _links: Mapping[str, Carrier], _parent: Carrier) -> Span:
        begun[name.partition(" ")[0]] = list(attributes)
        return NO_SPAN

    telemetry = Telemetry(is_on=True)
    telemetry.span_maker, telemetry.ratio = begin, 1.0
    begin_cycle(telemetry, HandlerCall("feed", "a", "short", 0, 1, None, 0.0), 0.0)
    record = Record("feeds", 0, 7, 0, b"a", None)
    delivery = Delivery("feed", "a", "feeds/0", 7)
    RecordSpans(telemetry, "dormice").begin(
        PendingRecord(record, Partition("feeds", 0), 1, b"feed:a", delivery), delivery
    )
    told = {
        "cycle": {*begun["cycle"], "outcome", "error.type"},
        "record": {*begun["process"], "outcome", "error.type", "attempts"},
    }
    found = {row[0].strip("`"): row[1] for row in table("docs/operations.md", "Traces and logs")}

    assert {name for name, on in found.items() if on in ("cycle", "both")} == told["cycle"]
    assert {name for name, on in found.items() if on in ("record", "both")} == told["record"]


def test_the_table_of_lanes_is_the_one_in_the_code() -> None:
    """Queue, timeouts, heartbeat and the way handlers run."""
    expected = [
        [
            f"`{name}`",
            f"`{task_queue(Settings().task_queue_prefix, name)}`",
            *(_write(lane.handler_timeout), _write(lane.handler_timeout_max), _write(lane.heartbeat_timeout)),
            "activity" if lane.heartbeat_timeout else "local activity",
        ]
        for name, lane in LANES.items()
    ]

    assert table("docs/handlers.md", "Lanes and timeouts") == expected


def _write(span: timedelta | None) -> str:
    return "none" if span is None else format_seconds(span.total_seconds())


def test_what_listens_does_so_on_loopback_unless_asked() -> None:
    """The options that say where, and the settings that open something at all."""
    parser, _ = build_parser()
    hosts = [
        getattr(parser.parse_args(words), name)
        for words, name in (
            (["worker"], "health_host"),
            (["bridge", "topic"], "health_host"),
            (["outbox"], "health_host"),
            (["codec-server"], "host"),
        )
    ]

    assert set(hosts) == {"127.0.0.1"}
    assert parser.parse_args(["worker"]).health_port is None
    assert Settings().telemetry_prometheus == Settings().telemetry_otlp == ""


def test_the_clamps_are_those_of_the_decision() -> None:
    """The numbers of the table are the constants of the code."""
    rows = re.findall(r"^\| (?:a delay|no `tolerance`|a `tolerance`).*$", PAGES["docs/handlers.md"], re.MULTILINE)

    assert rows == [
        f"| a delay below {MIN_DELAY:g} s, negative, or a moment in the past | {MIN_DELAY:g} s |",
        f"| a delay above {format_seconds(MAX_DELAY)} (ten years) | {format_seconds(MAX_DELAY)} |",
        f"| no `tolerance` | {TOLERANCE_SHARE * 100:g} % of the delay, at most {format_seconds(TOLERANCE_MAX)} |",
        f"| a `tolerance` below 0, above {format_seconds(MAX_DELAY)} | 0, {format_seconds(MAX_DELAY)} |",
    ]


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
    settings, found = Settings(http_allow_private=True), getattr(module, name)
    message = make_message(found, payload, id="a", version=version)
    async with HttpClient(settings) as client:
        return await found(message, make_context(message, settings=settings, http=client.client, **context))


async def test_the_readmes_handler_does_what_the_readme_says(load: Load) -> None:
    """It posts with its idempotency key, comes back in a week, ends at 410, waits at 429, fails at 500."""
    module, week = load("reminder"), Again(after=timedelta(days=7), tolerance=timedelta(minutes=10), reason="sent, 200")

    async def post(status: int) -> Any:
        async with listening(status) as port:
            outcome = await call(module, "remind", {"to": f"http://127.0.0.1:{port.number}/"}, version=3)
            assert "idempotency-key: reminder:a:3" in port.requests[0].lower()
            return outcome

    assert await post(200) == week
    assert await post(410) == Done({"sent": 3})
    with pytest.raises(RetryAfter):
        await post(429)
    with pytest.raises(httpx.HTTPStatusError):
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
        settings, message = Settings(http_allow_private=True), make_message(module.deliver, {}, id="a")
        async with HttpClient(settings) as client:
            ctx = make_context(message, settings=settings, http=client.client)
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
    assert client.is_closed


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
    model, payload = module.remind.payload, {"price": 2}
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
    check_payment, told = load("unpaid").check_payment, list[Any]()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            told.append(json.loads(request.content))
        return httpx.Response(200, json={"is_paid": False})

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    life = await live(check_payment, make_message(check_payment, id="7"), http=client)

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


def test_the_tables_of_the_rehearse_page_are_those_in_the_code() -> None:
    """The columns in their order, the references, and what a visit tells."""
    told = {name for row in table("docs/rehearse.md", "A function of your own") for name in row[0].split(", ")}
    inner = {"now", "begin", "last_found", "last_change"}  # what the others are computed from

    assert [row[0] for row in table("docs/rehearse.md", "What is measured")] == [name for name, _, _ in COLUMNS[1:]]
    assert [row[0] for row in table("docs/rehearse.md", "References")] == [*REFERENCES]
    assert {name.strip("`") for name in told} == {name for name in dir(Visit) if not name.startswith("_")} - inner
