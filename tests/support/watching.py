"""What watches dormice: the rules and the dashboard in deploy/, and which metrics their expressions ask for."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
CONFIG = DEPLOY / "prometheus" / "prometheus.yml"
RULES_FILE = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD_FILE = DEPLOY / "grafana" / "dashboards" / "dormice.json"

OPERATOR_RULES_FILE = DEPLOY / "kubernetes" / "components" / "prometheus-operator" / "rules.yaml"

RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text("utf-8"))["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
DASHBOARD: dict[str, Any] = json.loads(DASHBOARD_FILE.read_text("utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

OF_CORE_ALWAYS = {
    "temporal_num_pollers",
    "temporal_request_latency_seconds_bucket",
    "temporal_worker_task_slots_available",
    "temporal_worker_task_slots_used",
    "temporal_workflow_task_schedule_to_start_latency_seconds_bucket",
}
"""What the SDK's core publishes once messages have run."""
OF_CORE_IN_TROUBLE = {
    "temporal_long_request_failure_total",
    "temporal_request_failure_total",
    "temporal_workflow_task_execution_failed_total",
}
"""What it publishes from the first failure on."""
OF_PROMETHEUS = {"up", "ALERTS", "process_resident_memory_bytes"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed; ./run servers installs it"
)


def panel_expressions() -> Iterator[tuple[str, str]]:
    """Give (panel, expression) of the dashboard, with what a viewer chooses filled in."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$lane", ".*")


def rule_expressions() -> Iterator[tuple[str, str]]:
    """Give (rule, expression) of alerts and recorded series."""
    for rule in RULES:
        yield rule.get("alert") or rule["record"], rule["expr"]


_STRINGS = re.compile(r'"[^"]*"')
_LABELS = re.compile(r"\{([^}]*)\}|\b(?:by|on) \(([^)]*)\)")
_WINDOWS = re.compile(r"\[[^\]]*\]|\boffset \w+")
_WORDS = {"and", "by", "on", "or", "unless"}


def metrics_in(expression: str) -> set[str]:
    """Give the names of the series that an expression asks for; a word before a bracket is a function."""
    bare = _WINDOWS.sub(" ", _LABELS.sub(" ", _STRINGS.sub("", expression)))
    words = re.findall(r"([A-Za-z_:][\w:]*)(\s*\()?", bare)
    return {word for word, is_function in words if not is_function and word not in _WORDS}


def labels_in(expression: str) -> set[str]:
    """Give the labels that an expression chooses or groups by."""
    found = _LABELS.findall(_STRINGS.sub("", expression))
    return {label for part in found for label in re.findall(r"[A-Za-z_]\w*", " ".join(part))}


def write_operator_rules() -> str:
    """Write the rules as the Prometheus operator reads them; `./run docs` keeps that beside what it is written from."""
    rules = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "dormice", "labels": {"app.kubernetes.io/name": "dormice"}},
        "spec": yaml.safe_load(RULES_FILE.read_text("utf-8")),
    }
    purpose = "# The alerts of deploy/prometheus/rules.yml, written from it by ./run docs: change them there.\n"
    return purpose + yaml.safe_dump(rules, sort_keys=False, width=110, allow_unicode=True)


if __name__ == "__main__":
    sys.stdout.write(write_operator_rules())
