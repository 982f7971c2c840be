"""docker-compose.yml is valid, its parts fit each other, and what it mounts says what the program says."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.kafka.safe_producer import PATIENCE_SECONDS
from shared.messages.timespan import parse_duration
from shared.settings import describe_settings, load_settings
from shared.temporal.search_attributes import REQUIRED
from starter.cli.program import program
from starter.extras.web.tokens import Access, Tokens
from starter.local import visibility_indexes as slim
from starter.local.embedded import DYNAMIC_CONFIG
from tests.support import watching
from worker.options import parse

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WAITED_FOR = [
    (name, other, wanted["condition"])
    for name, service in SERVICES.items()
    for other, wanted in service.get("depends_on", {}).items()
]
ONE_SHOT = {other for _, other, condition in WAITED_FOR if condition == "service_completed_successfully"}
WITHOUT_HEALTH_CHECK = {"otel-collector"}
"""Its image has no program that could ask."""


def read(path: str) -> Any:
    """Give a file of deploy/ that is YAML."""
    return yaml.safe_load((ROOT / "deploy" / path).read_text("utf-8"))


def mounts() -> Iterator[tuple[str, str, str]]:
    """Give (service, source, target) of everything mounted."""
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source, target, *_ = volume.split(":")
            yield name, source, target


def test_the_file_is_valid_by_the_schema_of_compose_files() -> None:
    """The one that the compose specification publishes."""
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE))
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_images_are_pinned_and_ports_are_open_on_this_machine_alone() -> None:
    """A tag that moves is not what was tried; who wants the world in, says so."""
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]

    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+(\.\d+)?", service["image"]) for service in SERVICES.values())
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_service_has_limits_of_memory_and_of_logs() -> None:
    """One that goes wrong fills neither the memory nor the disk of the machine."""
    logs = {name: service.get("logging") for name, service in SERVICES.items()}

    assert [name for name, log in logs.items() if log is None or log["driver"] != "local"] == []
    assert all({"max-size", "max-file"} == set(log["options"]) for log in logs.values() if log is not None)
    assert [name for name, service in SERVICES.items() if "mem_limit" not in service] == []


def test_health_is_asked_by_tcp_at_ipv4_and_by_small_programs() -> None:
    """`localhost` may be ::1, where nobody listens; a socket answers before the port; a Java machine costs a core."""
    checks = {name: service["healthcheck"] for name, service in SERVICES.items() if "healthcheck" in service}
    asked = {name: " ".join(check["test"]) for name, check in checks.items()}

    assert [name for name, command in asked.items() if "127.0.0.1" not in command] == []
    assert [name for name, command in asked.items() if "localhost" in command or "/opt/kafka" in command] == []
    assert "--host 127.0.0.1" in asked["postgres"]
    assert "start_period" in checks["postgres"]
    assert not asked["prometheus"].startswith("CMD wget")


def test_the_server_finds_itself_after_a_restart_and_says_that_it_lets_everybody_in() -> None:
    """At an address that stays, whichever the container has; in the open, because no authorizer is set up."""
    given = SERVICES["temporal"]["environment"]

    assert given["BIND_ON_IP"] == "0.0.0.0"  # noqa: S104 — a container's own
    assert given["TEMPORAL_BROADCAST_ADDRESS"] == "127.0.0.1"
    assert given["TEMPORAL_ALLOW_NO_AUTH"] == "true"


def test_the_image_is_named_and_labelled_by_the_version() -> None:
    """A newer version is another image."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")

    assert {SERVICES[name]["image"] for name in ("worker", "bridge", "serve")} == {f"dormice:{version}"}
    assert f'org.opencontainers.image.version="{version}"' in dockerfile


def test_the_http_api_lets_in_who_has_the_token_that_is_shown() -> None:
    """Its settings and tokens are read by the program's own code, and people find the bridge on its page."""
    service = SERVICES["serve"]
    args = parse(program, "dormice", service["command"]).args
    settings = load_settings(environ=service["environment"])
    mounted = {target: source for name, source, target in mounts() if name == "serve"}
    tokens = Tokens.load(ROOT / mounted[settings.api_tokens_file])

    assert tokens.find("dormice-trial-token") == Access("trial")
    assert f"127.0.0.1:{args.port}:{args.port}" in service["ports"]
    assert f"http://127.0.0.1:{args.port}/readyz" in service["healthcheck"]["test"][-1]
    bridge = parse(program, "dormice", SERVICES["bridge"]["command"]).args
    assert settings.page_bridges == (f"bridge:{bridge.health_port}",)
    assert settings.ui_address == f"http://localhost:{SERVICES['temporal-ui']['ports'][0].split(':')[1]}"


def test_everything_mounted_is_there() -> None:
    """Files and folders of this checkout, and volumes that are declared; no volume is left over."""
    named = {source for _, source, _ in mounts() if not source.startswith("./")}

    assert [source for _, source, _ in mounts() if source.startswith("./") and not (ROOT / source).exists()] == []
    assert named == set(COMPOSE["volumes"])


def test_services_wait_for_what_they_need() -> None:
    """What runs on is waited for until it is healthy, what ends until it has ended well; each runs on or ends."""
    running = set(SERVICES) - ONE_SHOT

    assert {other for _, other, _ in WAITED_FOR} <= set(SERVICES)
    assert {condition for _, other, condition in WAITED_FOR if other in running} == {"service_healthy"}
    assert {name for name in running if "healthcheck" not in SERVICES[name]} == WITHOUT_HEALTH_CHECK
    assert {name for name, service in SERVICES.items() if service.get("restart") == "unless-stopped"} == running


@pytest.mark.parametrize("name", ["worker", "bridge", "serve"])
def test_a_process_of_ours_has_no_rights(name: str) -> None:
    """It reads its own files, writes to /tmp alone, and gets no right of the machine."""
    service = SERVICES[name]

    assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == (True, ["/tmp"], ["ALL"])  # noqa: S108 — a container's own
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", ["worker", "bridge"])
def test_a_process_of_ours_has_arguments_and_settings_that_exist(name: str) -> None:
    """Understood by the real parser and settings, healthy where it is asked, with time to drain."""
    service = SERVICES[name]
    args = parse(program, "dormice", service["command"]).args
    given = service["environment"]
    settings = load_settings(environ=given)
    ours = {setting for setting, _, _ in describe_settings()}

    assert set(given) <= ours | {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"}
    assert f"http://127.0.0.1:{args.health_port}/readyz" in service["healthcheck"]["test"][-1]
    assert parse_duration(service["stop_grace_period"]).total_seconds() >= args.drain_seconds + PATIENCE_SECONDS
    (job,) = [
        job for job in read("prometheus/prometheus.yml")["scrape_configs"] if job["job_name"] == f"dormice-{name}"
    ]
    (found,) = job["dns_sd_configs"]
    assert (found["names"], settings.telemetry_prometheus) == ([name], f"0.0.0.0:{found['port']}")


def test_what_the_bridge_consumes_is_made_and_where() -> None:
    """Its topic, on the broker that others reach under that address."""
    bridge = SERVICES["bridge"]
    kafka = SERVICES["kafka"]["environment"]
    making = SERVICES["kafka-topics"]
    address = bridge["environment"]["DORMICE_KAFKA_SERVERS"]
    topics = parse(program, "dormice", bridge["command"]).args.topics

    assert making["command"][making["command"].index("--topic") + 1 :][:1] == [*topics]
    assert making["entrypoint"][-1] == address
    assert f"INSIDE://{address}" in kafka["KAFKA_ADVERTISED_LISTENERS"].split(",")


def test_the_server_is_told_what_the_embedded_one_is() -> None:
    """Limits, fairness and the age of statistics; each for everybody."""
    expected = {key: value.strip('"') if isinstance(value, str) else value for key, value in DYNAMIC_CONFIG.items()}

    assert read("temporal/dynamic-config.yaml") == {key: [{"value": value}] for key, value in expected.items()}


def test_the_namespace_gets_the_attributes_that_messages_need() -> None:
    """By the names and types of the code."""
    script = (ROOT / "deploy" / "temporal" / "namespace.sh").read_text("utf-8")

    assert dict(re.findall(r"--name (\w+) --type (\w+)", script)) == REQUIRED
    assert set(re.findall(r"\$\(column (\w+)\)", script)) == set(slim.KEPT_ATTRIBUTES)


def test_prometheus_finds_what_the_others_serve() -> None:
    """The server's page and the collector's are at the ports that their configuration opens."""
    jobs = {job["job_name"]: job for job in read("prometheus/prometheus.yml")["scrape_configs"]}
    collector = read("otel-collector/config.yaml")
    opened = {
        "temporal": SERVICES["temporal"]["environment"]["PROMETHEUS_ENDPOINT"],
        "otlp": collector["exporters"]["prometheus"]["endpoint"],
    }
    hosts = {"temporal": "temporal", "otlp": "otel-collector"}

    receiver = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].replace("0.0.0.0", hosts["otlp"])  # noqa: S104 — a container's own
    for name in ("worker", "bridge"):
        assert SERVICES[name]["environment"]["DORMICE_TELEMETRY_OTLP"] == f"http://{receiver}"
        assert re.fullmatch(jobs["otlp"]["metric_relabel_configs"][0]["regex"], f"dormice-{name}")
    for name, address in opened.items():
        assert jobs[name]["static_configs"] == [{"targets": [address.replace("0.0.0.0", hosts[name])]}]  # noqa: S104 — a container's own
    for part in ("receivers", "processors", "exporters"):
        used = {name for pipeline in collector["service"]["pipelines"].values() for name in pipeline[part]}
        assert used == set(collector[part])
    assert set(collector["service"]["extensions"]) == set(collector["extensions"])


def test_grafana_has_the_dashboard_and_its_data() -> None:
    """The folder in its configuration is mounted, and so is the dashboard it opens with."""
    targets = {target: source for name, source, target in mounts() if name == "grafana"}
    (provider,) = read("grafana/provisioning/dashboards/dormice.yaml")["providers"]
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    scrapes = read("prometheus/prometheus.yml")["global"]

    assert ROOT / targets[provider["options"]["path"]] / home.name == watching.DASHBOARD_FILE
    assert str(home.parent) == provider["options"]["path"]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == scrapes["scrape_interval"]
