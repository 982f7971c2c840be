"""Alerts and dashboard ask for what is published: names, labels and runbooks are those of the code and the docs."""

import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml

from shared.settings import Settings
from shared.telemetry.metrics import PUBLISHED_METRICS, WORKER_METRICS, MetricValue
from shared.telemetry.sdk import start_telemetry
from starter.local.supervised_process import find_free_port
from tests.support import watching

ROOT = Path(__file__).parents[2]
OF_CORE_LABELS = {"task_queue", "worker_type", "poller_type", "workflow_type", "operation", "status_code"}
OF_PROMETHEUS_LABELS = {"job", "instance", "le", "failure_reason"}


@pytest.fixture(scope="module")
def told() -> set[str]:
    """The names under which Prometheus sees what our own code measures, from a real page."""
    address = f"127.0.0.1:{find_free_port()}"
    with start_telemetry(Settings(telemetry_prometheus=address), "test") as telemetry:
        telemetry.publish([MetricValue(metric, 1, dict.fromkeys(metric.labels, "x")) for metric in PUBLISHED_METRICS])
        for metric in WORKER_METRICS:
            telemetry.record(metric, 1, dict.fromkeys(metric.labels, "x"))
        lines = httpx.get(f"http://{address}/metrics", trust_env=False).text.splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}


ASKED = [*watching.rule_expressions(), *watching.panel_expressions()]


@pytest.mark.parametrize(("place", "expression"), ASKED, ids=[place for place, _ in ASKED])
def test_what_is_asked_for_is_told(told: set[str], place: str, expression: str) -> None:
    """A renamed metric or label would make an alert silent for ever, and a panel empty."""
    known = told | watching.OF_CORE_ALWAYS | watching.OF_CORE_IN_TROUBLE | watching.OF_PROMETHEUS | watching.RECORDED
    labels = {label for metric in (*PUBLISHED_METRICS, *WORKER_METRICS) for label in metric.labels}

    assert watching.metrics_in(expression)
    assert watching.metrics_in(expression) <= known
    assert watching.labels_in(expression) <= labels | OF_CORE_LABELS | OF_PROMETHEUS_LABELS


def test_every_metric_of_ours_is_on_the_dashboard(told: set[str]) -> None:
    """By itself or in a recorded series; `oldest_unacknowledged` is for people who ask one bridge."""
    recorded = {rule["record"]: watching.metrics_in(rule["expr"]) for rule in watching.RULES if "record" in rule}
    shown = {name for _, expression in watching.panel_expressions() for name in watching.metrics_in(expression)}
    shown |= {name for record in shown & set(recorded) for name in recorded[record]}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in told if name.startswith("dormice_")}

    assert ours - families == {"dormice_bridge_oldest_unacknowledged_seconds"}


def test_every_alert_has_its_runbook() -> None:
    """A section of its own in the docs, named like it, and no section without an alert."""
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    section = re.split(r"^## Alerts$", page, maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0]
    names = [alert["alert"] for alert in watching.ALERTS]

    assert re.findall(r"^### (.+)$", section, re.MULTILINE) == names
    for alert in watching.ALERTS:
        assert alert["annotations"]["runbook_url"] == f"docs/operations.md#{alert['alert'].lower()}"
        assert alert["annotations"]["summary"].endswith(".")
        assert alert["labels"]["severity"] in ("critical", "warning")


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """So that promtool proves both."""
    path = watching.RULES_FILE.with_name("rules_test.yml")
    cases = [case for test in yaml.safe_load(path.read_text("utf-8"))["tests"] for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case in cases if "exp_alerts" in case}
    silent = {case["alertname"] for case in cases if "exp_alerts" not in case}
    names = {alert["alert"] for alert in watching.ALERTS}

    assert fires == names
    assert silent == names


@watching.needs_promtool
@pytest.mark.parametrize(
    "command",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")],
    ids=" ".join,
)
def test_promtool_agrees(command: tuple[str, ...]) -> None:
    """Prometheus' own tool reads what Prometheus reads, and plays the cases."""
    promtool(*command, folder=watching.CONFIG.parent)


@watching.needs_promtool
def test_promtool_understands_every_panel(tmp_path: Path) -> None:
    """The dashboard's expressions are PromQL."""
    rules = [{"record": f"panel:{n}", "expr": asked} for n, (_, asked) in enumerate(watching.panel_expressions())]
    (tmp_path / "panels.json").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))

    promtool("check", "rules", "panels.json", folder=tmp_path)


def promtool(*command: str, folder: Path) -> None:
    """Run promtool, fail with its own words."""
    ran = subprocess.run(["promtool", *command], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S607 — wherever it is installed
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboard_is_whole() -> None:
    """Panels have titles, words, numbers of their own and room; all ask the chosen Prometheus."""
    every = watching.DASHBOARD["panels"]
    places = [(p["gridPos"]["x"] + dx, p["gridPos"]["y"]) for p in every for dx in range(p["gridPos"]["w"])]

    assert len({panel["id"] for panel in every}) == len(every)
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in every)
    assert all(panel["title"] and panel["description"].endswith(".") for panel in watching.PANELS)
    assert {panel["datasource"]["uid"] for panel in watching.PANELS} == {"${datasource}"}
    assert [panel["title"] for panel in every if panel["type"] == "row"] == [
        *("Throughput", "Lateness", "Parked and gated", "Handlers and slots", "Bridge", "Outbox", "Temporal SDK")
    ]


def test_a_line_in_a_panel_is_where_its_alert_fires() -> None:
    """The thresholds drawn are those of the rules."""
    bounds = {alert["alert"]: re.findall(r" > ([\d.]+)$", alert["expr"]) for alert in watching.ALERTS}
    drawn = {
        name: [str(panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"])]
        for panel in watching.PANELS
        for name in re.findall(r"The line is the alert (\w+)\.", panel["description"])
    }

    lanes = ("DormiceMessagesLate", "DormiceMessagesOverdue", "DormiceLaneFull")
    assert drawn == {name: bounds[name] for name in (*lanes, "DormiceBridgeLate", "DormiceOutboxLate")}
