"""The public interface as lists of names: what a 1.x may add to, and takes nothing away from."""

import importlib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, get_origin

from shared.exit import MEANINGS
from shared.lanes import LANES
from shared.messages.envelope import Envelope
from shared.messages.message import HandlerCall, MessageState, Outcome
from shared.messages.outcome_event import to_event
from shared.messages.signals import VERBS
from shared.settings import CLIENT_VARIABLES, Settings, describe_settings
from shared.telemetry.metrics import PUBLISHED_METRICS, WORKER_METRICS
from shared.temporal.search_attributes import REQUIRED
from starter.cli.program import walk
from starter.extras.outbox.table import OutboxTable
from starter.extras.web.documents import Installation
from starter.extras.web.serving.application import list_operations
from starter.records.dead_letters import to_dead_letter
from starter.records.record import Record
from tests.support.sources import ROOT
from workflows.description import describe_status
from workflows.message_workflow import MessageWorkflow
from workflows.pack_workflow import PackWorkflow

PYTHON_MODULES = ("activities", "activities.testing", "activities.api.policies", "dormice")
"""Whose public names programs import."""

QUERIES = {MessageWorkflow: ("status", "explain"), PackWorkflow: ("status", "explain", "page")}
"""Those that docs/web-ui.md and docs/sdk-examples.md name; what else a pack answers is between its own parts."""

OF_PYTHON = {*dir(SimpleNamespace), *dir(tuple), *dir(OSError)}
STATE = MessageState("kind", "id", "short", 0.0, 0.0)


def describe_interface() -> dict[str, list[str]]:
    """Give the names of each part of the public interface, in order."""
    return {part: sorted(set(list_names())) for part, list_names in PARTS.items()}


def find_missing(recorded: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Give what was in a recorded interface and is not in this one, by part."""
    now = describe_interface()
    missing = {part: sorted({*names} - {*now.get(part, ())}) for part, names in recorded.items()}
    return {part: names for part, names in missing.items() if names}


def _list_workflows() -> Iterator[str]:
    for workflow, names in QUERIES.items():
        known = getattr(workflow, "__temporal_workflow_definition").name
        yield known
        for name in names:
            query = getattr(workflow, name)
            assert getattr(query, "__temporal_query_definition").name == name
            arguments = [argument for argument in inspect.signature(query).parameters if argument != "self"]
            yield f"{known}.{name}({', '.join(arguments)})"


def _list_signals() -> Iterator[str]:
    for name, signal in VERBS.items():
        yield name
        yield from (f"{name}.{field.name}" for field in fields(signal))


def _list_commands() -> Iterator[str]:
    for each in walk():
        yield each.command_path
        for parameter in each.command.get_params(each):
            names = (*parameter.opts, *parameter.secondary_opts)
            yield from (f"{each.command_path} {name}" for name in names if name.startswith("--"))


def _list_requests() -> Iterator[str]:
    nobody: Any = None
    for each in list_operations(Installation(client=nobody, settings=Settings(), registry=nobody)):
        request = f"{each.method} {each.path}"
        described = each.describe()
        yield request
        yield from (f"{request} ? {parameter['name']}" for parameter in described.get("parameters", ()))
        yield from (f"{request} -> {status}" for status in each.answers)
        yield from (f"{request} < {name}" for name in (each.body or {}).get("properties", ()))


def _list_python() -> Iterator[str]:
    for name in PYTHON_MODULES:
        module = importlib.import_module(name)
        local = [word for word, value in vars(module).items() if getattr(value, "__module__", "") == name]
        for word in getattr(module, "__all__", local):
            if not word.startswith("_"):
                yield from _list_object(f"{name}.{word}", getattr(module, word))


def _list_object(name: str, value: Any) -> Iterator[str]:
    yield name
    yield from _list_parameters(name, value)
    described = get_origin(value) or value
    if not inspect.isclass(described):
        return

    for member, part in inspect.getmembers_static(described):
        if not member.startswith("_") and member not in OF_PYTHON:
            yield f"{name}.{member}"
            yield from _list_parameters(f"{name}.{member}", getattr(part, "_method", part))

    for parent in described.__mro__:
        declared = vars(parent).get("__annotations__", {})
        yield from (f"{name}.{member}" for member in declared if not member.startswith("_"))


def _list_parameters(name: str, value: Any) -> Iterator[str]:
    if inspect.isfunction(value):
        yield from (f"{name}({parameter})" for parameter in inspect.signature(value).parameters if parameter != "self")


def _list_metrics() -> Iterator[str]:
    for metric in (*WORKER_METRICS, *PUBLISHED_METRICS):
        yield f"{metric.name} ({metric.kind}, {metric.unit})"
        yield from (f"{metric.name} {label}" for label in metric.labels)


def _list_columns() -> Iterator[str]:
    made = OutboxTable().ddl.partition("CREATE TABLE")[2].partition(");")[0]
    yield from re.findall(r"^ {4}(\w+ \w+)", made, re.MULTILINE)


def _list_dead_letter_headers() -> Iterator[str]:
    record = Record("topic", 0, 0, 0, b"key", None)
    yield from (name for name, _ in to_dead_letter(record, "Error", "what is wrong"))


def _list_extras() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    yield from (f"extra {name}" for name in project["optional-dependencies"])
    yield from (f"handler {name}" for name in project["entry-points"]["dormice.handlers"])
    yield from (f"group {name}" for name in project["entry-points"])


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "workflow types and queries": _list_workflows,
    "answer of the query status": lambda: iter(describe_status(STATE)),
    "signals": _list_signals,
    "search attributes": lambda: iter(f"{name} {kind}" for name, kind in REQUIRED.items()),
    "lanes": lambda: iter(LANES),
    "envelope": lambda: iter(Envelope.model_fields),
    "settings": lambda: iter([*(name for name, _, _ in describe_settings()), *CLIENT_VARIABLES]),
    "commands and options": _list_commands,
    "exit codes": lambda: iter(map(str, MEANINGS)),
    "HTTP API": _list_requests,
    "Python API": _list_python,
    "metrics": _list_metrics,
    "outcome event": lambda: iter(to_event(HandlerCall.of(STATE, 1), Outcome("done"), 0.0)),
    "columns of the outbox": _list_columns,
    "headers of dead letters": _list_dead_letter_headers,
    "extras, handlers and groups of entry points": _list_extras,
}
