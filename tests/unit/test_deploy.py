"""What lies in deploy/ says nothing that the program does not understand, and its numbers fit each other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.kafka.safe_producer import PATIENCE_SECONDS
from shared.lanes import LANES
from shared.settings import describe_settings, load_settings
from starter.cli.program import parse, program

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
DOCUMENTS: list[dict[str, Any]] = [
    document for path in sorted(FOLDER.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text("utf-8"))
]
SETTINGS = {name for name, _, _ in describe_settings()}
TEMPORAL = {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"}


def find(kind: str, name: str) -> dict[str, Any]:
    """Give the one document of a kind and name."""
    (found,) = [each for each in DOCUMENTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod(name: str) -> dict[str, Any]:
    """Give the pod that a deployment makes."""
    return find("Deployment", name)["spec"]["template"]["spec"]


def read_arguments(name: str) -> Any:
    """Give a deployment's arguments as the program understands them."""
    (container,) = pod(name)["containers"]
    assert container["command"] == ["dormice"]
    return parse(program, "dormice", container["args"]).args


def variables(name: str) -> Iterator[tuple[str, str]]:
    """Give a deployment's environment."""
    (container,) = pod(name)["containers"]
    for source in container["envFrom"]:
        yield from find("ConfigMap", source["configMapRef"]["name"])["data"].items()
    yield from ((each["name"], each["value"]) for each in container.get("env", ()))


each_deployment = pytest.mark.parametrize(
    "name", [each["metadata"]["name"] for each in DOCUMENTS if each["kind"] == "Deployment"]
)


@each_deployment
def test_a_deployment_runs_a_command_with_settings_that_exist(name: str) -> None:
    """Arguments go through the real parser, variables through the real settings."""
    given = dict(variables(name))

    read_arguments(name)
    assert set(given) <= SETTINGS | TEMPORAL
    load_settings(environ=given)


@each_deployment
def test_probes_ask_where_the_process_answers(name: str) -> None:
    """At the port and pages of its health endpoint, which listens beyond loopback."""
    args = read_arguments(name)
    (container,) = pod(name)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    asked = {probe: container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")}

    assert (args.health_host, args.health_port) == ("0.0.0.0", ports["health"])  # noqa: S104 — a pod's own address
    assert {probe: (get["path"], get["port"]) for probe, get in asked.items()} == {
        "livenessProbe": ("/healthz", "health"),
        "readinessProbe": ("/readyz", "health"),
    }


@each_deployment
def test_a_pod_is_given_the_time_to_drain_and_no_rights(name: str) -> None:
    """Killed half a minute after its drain time at the earliest; no root, nothing writable but /tmp."""
    args = read_arguments(name)
    spec = pod(name)
    (container,) = spec["containers"]

    assert spec["terminationGracePeriodSeconds"] >= args.drain_seconds + PATIENCE_SECONDS
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(container["resources"]) == {"requests", "limits"}


def test_the_scaler_watches_the_group_and_topic_that_the_bridge_consumes() -> None:
    """From the same broker, from the same beginning, for the deployment that there is."""
    spec = find("ScaledObject", "dormice-bridge")["spec"]
    args = read_arguments("dormice-bridge")
    (trigger,) = spec["triggers"]
    asked = trigger["metadata"]

    assert (trigger["type"], asked["consumerGroup"], [asked["topic"]]) == ("kafka", args.group, [*args.topics])
    assert asked["bootstrapServers"] == dict(variables("dormice-bridge"))["DORMICE_KAFKA_SERVERS"]
    assert asked["offsetResetPolicy"] == "earliest"
    assert pod(spec["scaleTargetRef"]["name"])
    assert {value for value in asked.values() if not isinstance(value, str)} == set()


@each_deployment
def test_a_pod_tells_its_metrics_at_the_port_that_is_open(name: str) -> None:
    """And that Prometheus is configured with, also through the operator, under a job that the alerts know."""
    template = find("Deployment", name)["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
    address = dict(variables(name))["DORMICE_TELEMETRY_PROMETHEUS"]
    monitor = find("PodMonitor", "dormice")["spec"]
    (asked,) = monitor["selector"]["matchExpressions"]

    assert (
        address.rpartition(":")[2] == str(ports["metrics"]) == template["metadata"]["annotations"]["prometheus.io/port"]
    )
    assert template["metadata"]["labels"][monitor["jobLabel"]] in asked["values"]
    assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == ["metrics"]
    assert all(job.startswith("dormice-") for job in asked["values"])


@each_deployment
def test_a_pod_belongs_to_its_deployment_and_may_be_evicted_one_at_a_time(name: str) -> None:
    """The budget is for the same pods, and for no others."""
    spec = find("Deployment", name)["spec"]
    budget = find("PodDisruptionBudget", name)["spec"]
    labels = spec["selector"]["matchLabels"]

    assert labels == spec["template"]["metadata"]["labels"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}


def test_every_lane_has_workers_of_its_own() -> None:
    """One deployment each, one process a pod."""
    workers = [
        each["metadata"]["name"]
        for each in DOCUMENTS
        if each["kind"] == "Deployment" and "worker" in each["metadata"]["name"]
    ]
    served = {name: read_arguments(name) for name in workers}

    assert {name: (args.lane, args.processes) for name, args in served.items()} == {
        f"dormice-worker-{lane}": ((lane,), 1) for lane in LANES
    }
