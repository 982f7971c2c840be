"""What lies in deploy/ says nothing that the program does not understand, and its numbers fit each other."""

import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.kafka.safe_producer import PATIENCE_SECONDS
from shared.lanes import LANES, task_queue
from shared.settings import Settings, describe_settings, load_settings
from starter.cli.program import program
from starter.extras.web.serving.server import DRAIN_SECONDS
from tests.support import watching
from tests.support.kubernetes_fields import find_flaws
from worker.main import HAND_BACK
from worker.options import parse

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = [path for path in sorted(FOLDER.rglob("*.yaml")) if path.name != "kustomization.yaml"]
KUSTOMIZATIONS = sorted(FOLDER.rglob("kustomization.yaml"))
DOCUMENTS: list[dict[str, Any]] = [
    document for path in FILES for document in yaml.safe_load_all(path.read_text("utf-8"))
]
RUNNING = [each for each in DOCUMENTS if each["kind"] in ("Deployment", "StatefulSet")]
SHARED = dict(
    line.split("=", 1)
    for line in (FOLDER / "base" / "settings.env").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
)
"""The variables of the ConfigMap that kustomize makes of this file."""
SETTINGS = {name for name, _, _ in describe_settings()}
TEMPORAL = {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_API_KEY"}
SECRETS = "/etc/dormice"


def find(kind: str, name: str) -> dict[str, Any]:
    """Give the one document of a kind and name."""
    (found,) = [each for each in DOCUMENTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def workload(name: str) -> dict[str, Any]:
    """Give the spec of what makes the pods of a name."""
    (found,) = [each["spec"] for each in RUNNING if each["metadata"]["name"] == name]
    return found


def pod(name: str) -> dict[str, Any]:
    """Give the pod that a deployment or stateful set makes."""
    return workload(name)["template"]["spec"]


def read_arguments(name: str) -> Any:
    """Give its arguments as the program understands them."""
    (container,) = pod(name)["containers"]
    assert container["command"] == ["dormice"]
    return parse(program, "dormice", container["args"]).args


def variables(name: str) -> Iterator[tuple[str, str]]:
    """Give its environment, without what comes from a Secret or from the pod itself."""
    (container,) = pod(name)["containers"]
    assert container["envFrom"] == [{"configMapRef": {"name": "dormice"}}]
    yield from SHARED.items()
    yield from ((each["name"], each["value"]) for each in container["env"] if "value" in each)


def opened(name: str) -> dict[str, int]:
    """Give the ports of its container, by name."""
    (container,) = pod(name)["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


each_workload = pytest.mark.parametrize("name", [each["metadata"]["name"] for each in RUNNING])


def test_every_manifest_has_known_fields_of_the_right_types() -> None:
    """A misspelt field would be refused, or be taken for nothing."""
    flaws = {path.name: find_flaws(each) for path in FILES for each in yaml.safe_load_all(path.read_text("utf-8"))}

    assert {name: found for name, found in flaws.items() if found} == {}


def test_every_manifest_is_in_a_kustomization() -> None:
    """Those of a folder are named in its own, and what is named is there."""
    for path in KUSTOMIZATIONS:
        kustomization = yaml.safe_load(path.read_text("utf-8"))
        named = [*kustomization["resources"], *kustomization.get("components", ())]
        files = {each.name for each in FILES if each.parent == path.parent}

        assert {name for name in named if name.endswith(".yaml")} == files
        assert [name for name in named if not (path.parent / name).exists()] == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_example_becomes_manifests() -> None:
    """With its own image, namespace and settings, and without a number of pods where KEDA decides."""
    command = ["kubectl", "kustomize", str(FOLDER / "example")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    made: list[dict[str, Any]] = list(yaml.safe_load_all(ran.stdout))
    running = [each for each in made if each["kind"] in ("Deployment", "StatefulSet")]
    containers = [container for each in running for container in each["spec"]["template"]["spec"]["containers"]]
    maps = {each["metadata"]["name"] for each in made if each["kind"] == "ConfigMap"}
    named = {source["configMapRef"]["name"] for each in containers for source in each["envFrom"]}

    assert len(running) == len(LANES) + 2
    assert {each["image"].partition(":")[0] for each in containers} == {"registry.example.org/dormice"}
    assert {each["metadata"]["namespace"] for each in made} == {"dormice"}
    assert all(name.startswith("dormice-") for name in named)
    assert named < maps
    assert {each["metadata"]["name"] for each in running if "replicas" in each["spec"]} == {"dormice-serve"}


def test_the_operator_has_the_alerts_that_there_are() -> None:
    """./run docs wrote them since their last change."""
    assert watching.OPERATOR_RULES_FILE.read_text("utf-8") == watching.write_operator_rules()


@each_workload
def test_it_runs_a_command_with_settings_that_exist(name: str) -> None:
    """Arguments go through the real parser, variables through the real settings; files of secrets are in the Secret."""
    given = dict(variables(name))
    files = [value for variable, value in given.items() if variable.endswith("_FILE")]
    (container,) = pod(name)["containers"]
    of_secret = {each["name"] for each in container["env"] if "secretKeyRef" in each.get("valueFrom", {})}

    read_arguments(name)
    assert set(given) <= SETTINGS | TEMPORAL
    load_settings(environ=given)
    assert of_secret == {"TEMPORAL_API_KEY"}
    assert [path for path in files if not path.startswith(f"{SECRETS}/")] == []
    assert {each["mountPath"] for each in container["volumeMounts"]} == {"/tmp", SECRETS}  # noqa: S108 — a pod's own


@each_workload
def test_probes_ask_where_the_process_answers(name: str) -> None:
    """At the port and pages of its health endpoint, which listens beyond loopback."""
    args = read_arguments(name)
    (container,) = pod(name)["containers"]
    asked = {probe: container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")}
    listening = (args.host, args.port) if name == "dormice-serve" else (args.health_host, args.health_port)

    assert listening == ("0.0.0.0", opened(name)["health"])  # noqa: S104 — a pod's own address
    assert {probe: (get["path"], get["port"]) for probe, get in asked.items()} == {
        "livenessProbe": ("/healthz", "health"),
        "readinessProbe": ("/readyz", "health"),
    }


@each_workload
def test_a_pod_is_given_the_time_to_drain(name: str) -> None:
    """Killed half a minute after its drain time at the earliest."""
    args = read_arguments(name)
    drain = DRAIN_SECONDS if name == "dormice-serve" else args.drain_seconds
    grace = pod(name)["terminationGracePeriodSeconds"]

    assert grace >= drain + PATIENCE_SECONDS
    if "worker" in name:
        assert timedelta(seconds=grace - drain) > HAND_BACK


@each_workload
def test_a_pod_has_no_rights(name: str) -> None:
    """No root, nothing writable but /tmp, no token for Kubernetes, and limits."""
    spec = pod(name)
    (container,) = spec["containers"]

    assert not spec["automountServiceAccountToken"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "fsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(container["resources"]) == {"requests", "limits"}


@each_workload
def test_pods_are_spread_and_labelled(name: str) -> None:
    """Over zones and nodes, where that can be, by the labels that select them; recommended labels are there too."""
    spec = workload(name)
    labels = spec["template"]["metadata"]["labels"]
    selected = spec["selector"]["matchLabels"]
    spread = spec["template"]["spec"]["topologySpreadConstraints"]

    assert [each["topologyKey"] for each in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    assert all(each["labelSelector"] == {"matchLabels": selected} for each in spread)
    assert selected.items() <= labels.items()
    assert labels["app"] == f"dormice-{labels['app.kubernetes.io/component']}"
    assert labels["app.kubernetes.io/name"] == "dormice"


@each_workload
def test_pods_may_be_evicted_one_at_a_time_and_always_when_they_are_not_ready(name: str) -> None:
    """The budget is for the same pods and no others, and no outage keeps a node from being drained."""
    labels = workload(name)["selector"]["matchLabels"]

    assert find("PodDisruptionBudget", name)["spec"] == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": labels},
    }


@pytest.mark.parametrize(
    "name", [each["metadata"]["name"] for each in RUNNING if "serve" not in each["metadata"]["name"]]
)
def test_a_pod_tells_its_metrics_at_the_port_that_is_open(name: str) -> None:
    """And that Prometheus is configured with, also through the operator, under a job that the alerts know."""
    template = workload(name)["template"]
    address = dict(variables(name))["DORMICE_TELEMETRY_PROMETHEUS"]
    port = str(opened(name)["metrics"])
    monitor = find("PodMonitor", "dormice")["spec"]
    (asked,) = monitor["selector"]["matchExpressions"]

    assert address.rpartition(":")[2] == port == template["metadata"]["annotations"]["prometheus.io/port"]
    assert template["metadata"]["labels"][monitor["jobLabel"]] in asked["values"]
    assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == ["metrics"]
    assert all(job.startswith("dormice-") for job in asked["values"])


@each_workload
def test_others_reach_health_and_metrics_alone(name: str) -> None:
    """The policy of its pods lets nobody in but at ports that they have."""
    app = workload(name)["selector"]["matchLabels"]["app"]
    policies = [each["spec"] for each in DOCUMENTS if each["kind"] == "NetworkPolicy"]
    (policy,) = [each for each in policies if app in str(each["podSelector"])]
    ports = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}

    assert policy["policyTypes"] == ["Ingress"]
    assert ports == set(opened(name))


def test_a_bridge_is_a_member_by_the_name_of_its_pod() -> None:
    """Which lasts; its session is longer than a pod takes to come back, and its page is found by that name."""
    args = read_arguments("dormice-bridge")
    (container,) = pod("dormice-bridge")["containers"]
    service = find("Service", "dormice-bridge")["spec"]
    asked = load_settings(environ=dict(variables("dormice-serve"))).page_bridges

    assert args.member == "$(POD_NAME)"
    assert {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in container["env"]
    assert args.session_seconds > args.drain_seconds
    assert workload("dormice-bridge")["serviceName"] == "dormice-bridge"
    assert service["clusterIP"] == "None"
    assert asked == (f"dormice-bridge-0.dormice-bridge:{args.health_port}",)


def test_the_scaler_watches_the_group_and_topic_that_the_bridge_consumes() -> None:
    """From the same broker, from the same beginning, for the stateful set that there is."""
    spec = find("ScaledObject", "dormice-bridge")["spec"]
    args = read_arguments("dormice-bridge")
    (trigger,) = spec["triggers"]
    asked = trigger["metadata"]

    assert (trigger["type"], asked["consumerGroup"], [asked["topic"]]) == ("kafka", args.group, [*args.topics])
    assert asked["bootstrapServers"] == dict(variables("dormice-bridge"))["DORMICE_KAFKA_SERVERS"]
    assert asked["offsetResetPolicy"] == "earliest"
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "dormice-bridge"}


@pytest.mark.parametrize("lane", LANES)
def test_the_scalers_of_workers_watch_the_queue_of_their_lane(lane: str) -> None:
    """On the same server, without TLS where the workers have none, and never down to no worker."""
    spec = find("ScaledObject", f"dormice-worker-{lane}")["spec"]
    (trigger,) = spec["triggers"]
    asked = trigger["metadata"]

    assert trigger["type"] == "temporal"
    assert asked["taskQueue"] == task_queue(Settings().task_queue_prefix, lane)
    assert (asked["endpoint"], asked["namespace"]) == (SHARED["TEMPORAL_ADDRESS"], SHARED["TEMPORAL_NAMESPACE"])
    assert asked["enableTLS"] == "false"
    assert set(asked["queueTypes"].split(",")) <= {"workflow", "activity"}
    assert read_arguments(spec["scaleTargetRef"]["name"]).lane == (lane,)
    assert 0 < spec["minReplicaCount"] < spec["maxReplicaCount"]


def test_every_lane_has_workers_of_its_own() -> None:
    """One deployment each, one process a pod, which waits where the server is away."""
    workers = [
        each["metadata"]["name"]
        for each in DOCUMENTS
        if each["kind"] == "Deployment" and "worker" in each["metadata"]["name"]
    ]
    served = {name: read_arguments(name) for name in workers}

    assert {name: (args.lane, args.processes, args.wait_for_server) for name, args in served.items()} == {
        f"dormice-worker-{lane}": ((lane,), 1, True) for lane in LANES
    }
