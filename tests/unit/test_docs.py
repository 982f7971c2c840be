"""The documentation says what is true: links, commands, settings, signatures and tables match the code."""

import ast
import inspect
import itertools
import json
import re
import shlex
import shutil
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path
from subprocess import run
from typing import Any, get_args

import pytest

import activities
from activities.api import policies
from activities.reporting import begin_cycle
from shared.lanes import LANES, task_queue
from shared.messages.decision import MAX_DELAY, MIN_DELAY, TOLERANCE_MAX, TOLERANCE_SHARE
from shared.messages.envelope import Envelope
from shared.messages.message import HandlerCall, Verdict
from shared.messages.signal_reading import PackSignal, read_steering
from shared.messages.signals import VERBS
from shared.messages.timespan import format_seconds
from shared.settings import Settings, describe_settings
from shared.telemetry.metrics import BRIDGE_METRICS, OLDEST_OVERDUE, OUTBOX_METRICS, WORKER_METRICS, Metric
from shared.telemetry.sdk import Telemetry
from shared.telemetry.spans import NO_SPAN, Attributes, Carrier, Span
from shared.temporal.search_attributes import REQUIRED
from starter.bridge.offsets import Partition
from starter.bridge.pending_record import PendingRecord, RecordSpans
from starter.cli.arguments import Invocation
from starter.cli.operations.doctor import CODES
from starter.cli.program import program, walk
from starter.extras.rehearsal.page import COLUMNS
from starter.extras.rehearsal.policies import Visit
from starter.extras.rehearsal.references import REFERENCES
from starter.insight.doctor.checks import Severity
from starter.insight.doctor.kafka import Kafka
from starter.insight.doctor.lanes import Lanes
from starter.insight.doctor.server import Server
from starter.records.record import Record
from starter.starting.delivery import Delivery
from tests.support.sources import BLOCK, PAGES, ROOT, blocks, documented_checks, parse, table
from worker.options import parse as parse_words

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
LINE_MAX = 120
README_WORDS_MAX = 900
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


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


def test_the_readme_can_be_read_in_five_minutes() -> None:
    """At most 900 words, as `wc -w` counts them; what is beyond has a page."""
    assert len(PAGES["README.md"].split()) <= README_WORDS_MAX


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_first_what_it_is_for(page: str) -> None:
    """Below its title stands one sentence, as a paragraph of its own."""
    title, _, rest = PAGES[page].partition("\n\n")
    paragraph = rest.partition("\n\n")[0]

    assert title.startswith("# ")
    assert re.fullmatch(r"(?:dormice|[A-Z])(?:[^.]|\.(?=\S))+\.", paragraph), paragraph


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "docs/upgrading.md"])
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
    command = re.compile(r"^ *(?:\$|>?  )(?: \w+=\S+)* (dormice [^|&\n]*)", re.MULTILINE)
    shown = [line for block in blocks("console") for line in command.findall(block)]

    assert len(shown) > 20
    for line in shown:  # --version gives its exit code; a complaint is an error
        assert isinstance(parse_words(program, "dormice", shlex.split(line)[1:]), Invocation | int), line


def test_a_block_for_moving_in_ends_at_its_first_failure(tmp_path: Path) -> None:
    """Who pastes a whole block runs nothing after what has failed: without any program, only one is looked for."""
    shown = re.findall(r"^ *```console\n(.*?)^ *```$", PAGES["docs/moving-in.md"], re.MULTILINE | re.DOTALL)
    scripts = [re.sub(r"^ *[$>] ", "", block, flags=re.MULTILINE) for block in shown]
    bash = shutil.which("bash")
    assert bash

    said: list[str] = []
    for script in scripts:
        ran = run([bash, "-c", script], cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=False)
        assert ran.returncode, script
        said.append(ran.stderr)

    assert len(scripts) > 20
    assert [lines for lines in said if lines.count("\n") != 1] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_is_mentioned_exists(page: str) -> None:
    """Commands and options in running text are ones of the command line, or of the programs for moving in."""
    options = {each.command_path: set(re.findall(r"--[\w-]+", each.get_help())) for each in walk()}
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
        ("docs/architecture.md", "Signals", VERBS),
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
    rows = table("docs/web-ui.md", "Send a signal")

    assert [name.strip("`") for name, _ in rows] == list(VERBS)
    for name, text in ((row[0].strip("`"), row[1]) for row in rows):
        (written,) = re.findall(r"`([^`]+)`", text)
        given = json.loads(written)
        wanted = VERBS[name](**given)
        assert read_steering(name, [{"ids": ["a"], **given}]) == PackSignal(["a"], wanted)
        is_bare = all(f.default is not MISSING for f in fields(VERBS[name]))
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
    telemetry.span_maker = begin
    telemetry.ratio = 1.0
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
    """The page has each lane's queue, timeouts and heartbeat."""
    expected = [
        [
            f"`{name}`",
            f"`{task_queue(Settings().task_queue_prefix, name)}`",
            *(_write(lane.handler_timeout), _write(lane.handler_timeout_max), _write(lane.heartbeat_timeout)),
        ]
        for name, lane in LANES.items()
    ]

    assert table("docs/handlers.md", "Lanes and timeouts") == expected


def _write(span: timedelta | None) -> str:
    return "none" if span is None else format_seconds(span.total_seconds())


def test_what_listens_does_so_on_loopback_unless_asked() -> None:
    """The options that say where, and the settings that open something at all."""
    hosts = [
        getattr(parse_words(program, "dormice", words).args, name)
        for words, name in (
            (["worker"], "health_host"),
            (["bridge", "topic"], "health_host"),
            (["outbox"], "health_host"),
            (["codec-server"], "host"),
        )
    ]

    assert set(hosts) == {"127.0.0.1"}
    assert parse_words(program, "dormice", ["worker"]).args.health_port is None
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


def test_the_tables_of_the_rehearse_page_are_those_in_the_code() -> None:
    """The columns in their order, the references, and what a visit tells."""
    told = {name for row in table("docs/rehearse.md", "A function of your own") for name in row[0].split(", ")}
    inner = {"now", "begin", "last_found", "last_change"}  # what the others are computed from

    assert [row[0] for row in table("docs/rehearse.md", "What is measured")] == [name for name, _, _ in COLUMNS[1:]]
    assert [row[0] for row in table("docs/rehearse.md", "References")] == [*REFERENCES]
    assert {name.strip("`") for name in told} == {name for name in dir(Visit) if not name.startswith("_")} - inner
