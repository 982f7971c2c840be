"""The doctor finds set-ups that were broken on purpose, each on real parts, and has no complaint about a sound one."""

import base64
import dataclasses
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DeprecateNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from activities.idle.capacity import Capacity
from shared.lanes import LANES, task_queue
from shared.messages.envelope import Envelope
from shared.settings import Secret, Settings
from shared.temporal.connect import connect
from starter.insight.doctor.checks import Finding, Severity, find_worst
from starter.insight.doctor.machine import check_machine
from starter.insight.doctor.run_checks import examine
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.kafka.broker import EmbeddedBroker
from starter.local.supervised_process import find_free_port
from starter.records.dead_letters import SUFFIX
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import Serve, Start, wait_until
from tests.support.processes import worker_process
from tests.support.sources import documented_checks
from tests.support.subjects import declare
from tests.support.topics import create_topic
from worker.main import HEARTBEAT
from workflows.message_workflow import MessageWorkflow

pytestmark = pytest.mark.timeout(120)


class Report:
    """What the doctor has found, by check and what it is about."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings

    def of(self, check: str, about: str = "") -> list[Finding]:
        """Give the findings of a check."""
        return [f for f in self.findings if f.check == check and f.about == about]

    def tells(self, check: str, level: Severity, words: str, remedy: str = "", about: str = "") -> bool:
        """Say whether a check has found something of that level, with these words and what to do."""
        return any(
            f.level is level and words in f.seen and f.remedy and remedy in f.remedy for f in self.of(check, about)
        )


Look = Callable[..., Awaitable[Report]]


@pytest.fixture
def look(client: Client, server: EmbeddedServer, settings: Settings) -> Look:
    """Have the doctor look at the session's server, with settings changed by name."""

    async def look(
        *,
        asked: Client | None = None,
        open_client: Callable[[Settings], Awaitable[Client]] | None = None,
        data: Path = server.options.data,
        topics: tuple[str, ...] = (),
        seconds: float = 20.0,
        now: Callable[[], float] = time.time,
        **changes: Any,
    ) -> Report:
        async def give(_: Settings) -> Client:
            return asked or client

        changed = dataclasses.replace(settings, **changes)
        found, registry = check_machine(changed, data)
        asked_of = await examine(
            changed, registry, open_client or give, data=data, topics=topics, seconds=seconds, now=now
        )
        return Report(found + asked_of)

    return look


@pytest.mark.long
async def test_a_sound_installation_gives_no_cause_for_complaint_until_its_worker_is_killed(
    look: Look, client: Client, server: EmbeddedServer, settings: Settings, start: Start
) -> None:
    """Every check is made, in the order that is documented; then lanes with messages are reported as without worker."""
    async with worker_process(server, settings) as worker:
        await start("echo", payload={"delay": 3600})

        async def find() -> Report | None:
            report = await look()
            return report if all(report.of("workers", lane)[0].level is Severity.FINE for lane in LANES) else None

        report = await wait_until(find, "all lanes are served")
        # before, the server goes by its last poll, and that is not old for more than a minute
        await wait_until(lambda: is_heard(client, settings), "the worker has told of itself")
        worker.kill()
        await worker.wait()

        async def is_missed() -> bool:
            report = await look()
            return report.tells("workers", Severity.WRONG, "no worker, and 1 message alive", "dormice worker", "short")

        await wait_until(is_missed, "the worker is known to be gone")

    # deliveries are lost on a busy machine, and with the workers that other tests kill
    sound = [f for f in report.findings if f.check != "deliveries"]
    complaints = [f for f in sound if f.level not in (Severity.FINE, Severity.UNKNOWN)]
    assert complaints == []
    assert list(dict.fromkeys(f.check for f in report.findings)) == documented_checks()


async def test_what_another_installation_keeps_on_the_server_is_no_complaint_here(
    look: Look, server: EmbeddedServer, settings: Settings, kind: str
) -> None:
    """A pack that is encrypted by a key of others is neither counted nor asked for that key; one's own is."""
    key = Secret(f"another:{base64.b64encode(os.urandom(32)).decode()}")
    encrypting = dataclasses.replace(settings, encryption_keys=key)
    others = dataclasses.replace(encrypting, task_queue_prefix=f"{settings.task_queue_prefix}-others")
    client = await server.connect(encrypting)

    async def start(owner: Settings, name: str) -> None:
        starter = BulkStarter(client, owner, encodings=declare("pack", f"{kind}-{name}"))
        receipt = await starter.start(Envelope(kind=f"{kind}-{name}", id="one", lane="short"), None)
        assert receipt.outcome is StartOutcome.STARTED, receipt

    await start(others, "theirs")
    (alone,) = (await look()).of("messages")
    await start(encrypting, "ours")
    (shared,) = (await look()).of("messages")

    assert (alone.level, alone.seen) == (Severity.FINE, "0 messages with a workflow each")
    assert (shared.level, shared.remedy) == (Severity.WRONG, "add that key")
    assert "this process lacks key 'another'" in shared.seen


def to(address: str) -> Callable[[Settings], Awaitable[Client]]:
    """Give what connects to an address."""
    return lambda settings: connect(settings, {"TEMPORAL_ADDRESS": address})


async def is_heard(client: Client, settings: Settings) -> bool:
    """Tell whether a worker of every lane has sent a heartbeat."""
    lanes = [Capacity(client, task_queue(settings.task_queue_prefix, lane)) for lane in LANES]
    return all([(await capacity.read_slots()).all for capacity in lanes])


async def test_a_server_that_is_away_costs_only_the_checks_that_need_it(look: Look) -> None:
    """It is reported in one sentence; handlers and settings are checked all the same."""
    report = await look(open_client=to(f"127.0.0.1:{find_free_port()}"))

    assert report.tells("server", Severity.UNREACHABLE, "no Temporal server answers", "dormice dev")
    assert find_worst(report.findings) is Severity.UNREACHABLE
    assert [f.check for f in report.findings if f.level is Severity.UNREACHABLE] == ["server"]
    assert report.of("handlers")[0].level is Severity.FINE
    assert report.of("clock") == [Finding(Severity.UNKNOWN, "not looked at, see server", check="clock")]


async def test_a_server_that_never_answers_does_not_hang_the_doctor(look: Look) -> None:
    """A connection that is taken and left alone is given up after the seconds that a check has."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        report = await look(open_client=to(address), seconds=0.5)

    assert report.tells("server", Severity.UNREACHABLE, "nothing came within 0.5 s", "--seconds")


async def test_a_missing_namespace_is_told(look: Look, client: Client) -> None:
    """What lies in it can't be looked at then."""
    report = await look(asked=Client(client.service_client, namespace="nowhere"))

    assert report.tells("namespace", Severity.WRONG, "nowhere", "TEMPORAL_NAMESPACE")
    assert report.of("workers")[0].seen == "not looked at, see namespace"


async def register(client: Client, name: str, retention: timedelta, attributes: Mapping[str, str]) -> Client:
    """Make a namespace, wait until all of the server knows it, and give a client of it."""
    kept = Duration(seconds=round(retention.total_seconds()))
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=kept)
    )
    made = Client(client.service_client, namespace=name)
    types = {key: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}") for key, kind in attributes.items()}

    async def is_known() -> bool:
        try:
            if types:
                request = AddSearchAttributesRequest(namespace=name, search_attributes=types)
                await client.operator_service.add_search_attributes(request)
            await made.count_workflows()
        except RPCError as exc:
            assert exc.status is RPCStatusCode.NOT_FOUND  # noqa: PT017 — any other answer is a failure of the test
            return False
        return True

    await wait_until(is_known, f"namespace {name} is known to all of the server")
    return made


async def test_a_bare_namespace_lacks_attributes_and_forgets_soon(look: Look, client: Client) -> None:
    """Both are reported with the command that mends them."""
    report = await look(asked=await register(client, "doctor-bare", timedelta(hours=1), {}))

    command = "temporal operator search-attribute create --name Kind --type Keyword"
    assert report.tells("search attributes", Severity.WRONG, "Kind, Lane, State, DueAt, EarliestAt missing", command)
    assert report.tells("retention", Severity.WARNING, "known for 1 h", "namespace update --namespace doctor-bare")


async def test_an_attribute_of_another_type_is_told(look: Look, client: Client) -> None:
    """With both types; it is not taken for a missing one."""
    attributes = {
        "Kind": "Keyword",
        "Lane": "Keyword",
        "State": "Keyword",
        "DueAt": "Keyword",
        "EarliestAt": "Datetime",
    }
    report = await look(asked=await register(client, "doctor-typed", timedelta(days=3), attributes))

    (finding,) = report.of("search attributes")
    assert finding.level is Severity.WRONG
    assert finding.seen.startswith("DueAt is of type Keyword, and has to be Datetime")
    assert "search-attribute remove --name DueAt --namespace doctor-typed" in finding.remedy


async def test_a_namespace_out_of_use_is_told(look: Look, client: Client) -> None:
    """It may be read, and takes nothing new."""
    made = await register(client, "doctor-old", timedelta(days=3), {})
    await client.workflow_service.deprecate_namespace(DeprecateNamespaceRequest(namespace="doctor-old"))
    report = await look(asked=made)

    assert report.tells("namespace", Severity.WRONG, "'doctor-old' is deprecated", "TEMPORAL_NAMESPACE")


@pytest.fixture(scope="module")
async def poor_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    """A server that is not slimmed, keeps no worker heartbeats, and takes small payloads only."""
    options = EmbeddedOptions(
        data=tmp_path_factory.mktemp("poor"),
        port=find_free_port(),
        ui_port=None,
        slim=False,
        extra_config=("frontend.WorkerHeartbeatsEnabled=false", "limit.blobSize.error=8000"),
    )
    async with run_embedded(options) as running:
        yield running


async def test_a_server_with_another_set_up_is_found_out(look: Look, poor_server: EmbeddedServer) -> None:
    """Its indexes, its missing heartbeats and its limit are reported, each with what to change."""
    report = await look(asked=await poor_server.connect(), data=poor_server.options.data)

    assert report.tells("visibility", Severity.WARNING, "indexes that nobody reads", "dormice dev")
    assert report.tells(
        "worker heartbeats", Severity.WARNING, "takes no heartbeats", "frontend.WorkerHeartbeatsEnabled"
    )
    assert report.tells("limits", Severity.WARNING, "payload_max_bytes is 4,096", "DORMICE_PAYLOAD_MAX_BYTES to 4000")


async def test_the_folder_of_another_server_says_nothing_of_this_one(
    look: Look, poor_server: EmbeddedServer, tmp_path: Path
) -> None:
    """What only the right folder can show stays unknown; the same holds without any folder."""
    for data in (poor_server.options.data, tmp_path):
        (finding,) = (await look(data=data)).of("visibility")

        assert finding.level is Severity.UNKNOWN
        assert "--data" in finding.remedy


@pytest.mark.parametrize("ahead", [330.0, -330.0])
async def test_a_clock_that_differs_from_the_servers_is_told(
    client: Client, look: Look, settings: Settings, ahead: float
) -> None:
    """Either way, by about as much as it does, and nothing is left of the workflow that it took."""
    report = await look(now=lambda: time.time() + ahead)

    assert report.tells("clock", Severity.WARNING, "this machine is 5 min", "NTP")
    assert report.tells("clock", Severity.WARNING, "ahead of the server" if ahead > 0 else "behind the server")

    async def is_clean() -> bool:
        query = f"WorkflowId STARTS_WITH '{settings.task_queue_prefix}~doctor'"
        return (await client.count_workflows(query)).count == 0

    await wait_until(is_clean, "the probe is deleted")


async def test_a_message_whose_kind_nobody_knows_here_is_told(look: Look, start: Start, kind: str) -> None:
    """Its kind is named."""
    await start(kind, lane="long")

    async def is_told() -> bool:
        (finding,) = (await look()).of("kinds")
        return finding.level is Severity.WARNING and kind in finding.seen and "DORMICE_HANDLERS" in finding.remedy

    await wait_until(is_told, "the index has the message")


async def test_what_is_overdue_while_workers_are_there_is_named(
    look: Look, start: Start, serve: Serve, message_id: Callable[[], str]
) -> None:
    """By its workflow; lanes that nobody serves are left to another check."""
    name = message_id()
    async with serve(lanes=("long",)):
        await start("echo", name, lane="long", scheduled_at=datetime.now(UTC) + timedelta(minutes=10))

        async def is_told() -> bool:
            report = await look(now=lambda: time.time() + 3600)
            assert [finding.about for finding in report.findings if finding.check == "overdue"] == ["long"]
            words = f"echo:{name} is overdue by 4"  # 48 minutes, or a moment less
            return report.tells("overdue", Severity.WRONG, words, f"'dormice show echo:{name}'", "long")

        await wait_until(is_told, "it is named")
        assert (await look()).of("overdue", "long")[0].level is Severity.FINE


async def test_workers_of_two_versions_are_told(server: EmbeddedServer, look: Look, settings: Settings) -> None:
    """A deployment that has not come to its end."""
    queue = task_queue(settings.task_queue_prefix, "short")
    clients = [
        await connect(settings, {"TEMPORAL_ADDRESS": server.address}, heartbeat=HEARTBEAT),
        await connect(settings, {"TEMPORAL_ADDRESS": server.address}, heartbeat=HEARTBEAT),
    ]
    workers = [
        Worker(
            client,
            task_queue=queue,
            workflows=[MessageWorkflow],
            build_id=f"dormice 0.0.{n}",
            identity=f"{queue}-{n}",
        )
        for n, client in enumerate(clients)
    ]
    async with workers[0], workers[1]:

        async def are_told() -> bool:
            report = await look()
            words = "2 workers of dormice 0.0.0, dormice 0.0.1"
            return report.tells("workers", Severity.WARNING, words, "replace the older ones", "short")

        await wait_until(are_told, "both workers have told of themselves")


@pytest.mark.parametrize(
    ("check", "changes", "words", "remedy"),
    [
        ("handlers", {"handlers": ("no_such_module",)}, "'no_such_module' can't be imported", "DORMICE_HANDLERS"),
        ("handlers", {"handlers": ("json",)}, "json holds no handler", "@handler"),
        ("settings", {"idle_lanes": ("slow",)}, "there is no lane 'slow'", "short, medium, long"),
        ("settings", {"canary_lanes": ("quick",)}, "there is no lane 'quick'", "short, medium, long"),
        ("settings", {"tenant_weights": ("acme=0",)}, "'acme=0' is no TENANT=WEIGHT", "acme=3"),
    ],
)
def test_what_a_worker_would_refuse_is_told_beforehand(
    check: str, changes: dict[str, Any], words: str, remedy: str, tmp_path: Path
) -> None:
    """A handler module that can't be imported is named; so is a setting that can't be meant."""
    report = Report(check_machine(Settings(**changes), tmp_path)[0])

    assert report.tells(check, Severity.WRONG, words, remedy)


def test_a_low_limit_of_open_files_is_told(settings: Settings, tmp_path: Path) -> None:
    """With how many a worker may need, which grows with its settings."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (600, before[1]))
    try:
        report = Report(check_machine(settings, tmp_path)[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert report.tells("open files", Severity.WARNING, "may open 600", "ulimit -n")


def test_a_disk_that_is_nearly_full_is_told(
    server: EmbeddedServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the database can't grow any more."""
    monkeypatch.setattr("starter.insight.doctor.machine.DISK_BYTES_MIN", 2**63)
    report = Report(check_machine(settings, server.options.data)[0])

    assert report.tells("disk", Severity.WARNING, "GB are free for", "make room")


async def test_a_broker_that_is_away_costs_only_the_checks_that_need_it(look: Look) -> None:
    """The server is looked at all the same."""
    report = await look(topics=("orders",), kafka_servers=f"127.0.0.1:{find_free_port()}")

    assert report.tells("broker", Severity.UNREACHABLE, "no Kafka broker answers", "kafka_servers")
    assert report.of("topic")[0].seen == "not looked at, see broker"
    assert report.of("server")[0].level is Severity.FINE


async def test_topics_that_are_missing_or_may_lose_records_are_told(
    look: Look, broker: EmbeddedBroker, message_id: Callable[[], str]
) -> None:
    """Those of bridges, their dead letters and that of outcomes, each by its own name."""
    single, stuck, missing, outcomes = (f"doctor-{message_id()}" for _ in range(4))
    long = single.ljust(249 - len(SUFFIX) + 1, "x")
    await create_topic(broker.address, single, partitions=3)
    await create_topic(broker.address, single + SUFFIX)
    await create_topic(broker.address, stuck, min_insync_replicas=2)
    await create_topic(broker.address, long)
    report = await look(topics=(single, stuck, missing, long), outcomes_topic=outcomes, kafka_servers=broker.address)

    assert report.of("broker")[0].level is Severity.FINE
    assert report.tells("topic", Severity.WARNING, "3 partitions, 1 replica", "3 replicas", single)
    assert report.tells("topic", Severity.WRONG, "takes no record", "set min.insync.replicas to 1", stuck)
    assert report.tells("topic", Severity.WRONG, "no such topic", f"--create --topic {missing}", missing)
    assert report.tells("dead letters", Severity.WARNING, "1 replica", "", single + SUFFIX)
    assert report.of("dead letters", stuck + SUFFIX)[0].level is Severity.FINE
    assert report.tells("dead letters", Severity.WRONG, "at most 249 characters", "shorten", long + SUFFIX)
    assert report.of("dead letters", missing + SUFFIX) == []
    assert report.tells("outcomes", Severity.WRONG, "no such topic", f"--create --topic {outcomes}", outcomes)
