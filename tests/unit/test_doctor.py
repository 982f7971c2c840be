"""The doctor's judgement, where it needs nobody to be asked."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from activities.idle.due_index import SleepingWorkflow
from shared.errors import InvalidHandler, ServerUnreachable
from starter.insight.doctor.checks import Check, Finding, Severity, find_worst, run_checks
from starter.insight.doctor.deliveries import Deliveries, check_deliveries, count_deliveries
from starter.insight.doctor.kafka import Topic, check_topic
from starter.insight.doctor.lanes import LaneWorkers, check_backlog, check_overdue
from starter.insight.doctor.server import check_fairness, check_shards, check_version

SOUND = Topic(name="orders", partitions=6, leaderless=0, replicas=3, in_sync=3, min_in_sync=2)


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, Severity.FINE, "6 partitions, 3 replicas, 3 in sync, min.insync.replicas 2"),
        ({"in_sync": 2}, Severity.WARNING, "not all replicas are there"),
        ({"in_sync": 1}, Severity.WRONG, "takes no record that has to be safe"),
        ({"leaderless": 1}, Severity.WRONG, "1 partition without a leader"),
        ({"min_in_sync": 1}, Severity.WARNING, "counts as sent when one broker has it"),
        ({"replicas": 1, "in_sync": 1, "min_in_sync": 1}, Severity.WARNING, "a disk that is lost"),
        ({"replicas": 1, "in_sync": 1}, Severity.WRONG, "takes no record that has to be safe"),
    ],
)
def test_a_topic_is_judged_by_what_it_bears(changes: dict[str, int], level: Severity, words: str) -> None:
    """The loss of a broker costs no record and stops no one, or there is something to do."""
    finding = check_topic(dataclasses.replace(SOUND, **changes))

    assert finding.level is level
    assert finding.about == "orders"
    assert words in finding.seen
    assert bool(finding.remedy) == (level is not Severity.FINE)


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("1.29.1", Severity.WARNING),
        ("0.9.0", Severity.WARNING),
        ("1.30.2", Severity.FINE),
        ("1.32.0", Severity.FINE),
        ("2.0.0", Severity.FINE),
        ("1.32.0-150.1", Severity.FINE),
        ("", Severity.FINE),
    ],
)
def test_a_server_older_than_what_was_tried_is_told(version: str, level: Severity) -> None:
    """One that says nothing of its version is taken as it is."""
    assert check_version(version, "there:7233").level is level


@pytest.mark.parametrize(
    ("version", "is_on", "level", "remedy"),
    [
        ("1.31.2", True, Severity.WARNING, "upgrade the server (Temporal's issue 10814)"),
        ("1.31.2", None, Severity.WARNING, "unless matching.enableFairness is false"),
        ("1.32.0", True, Severity.FINE, ""),
        ("1.32.1", None, Severity.UNKNOWN, "see that matching.enableFairness is true"),
        ("", None, Severity.UNKNOWN, "see that matching.enableFairness is true"),
    ],
)
def test_a_server_whose_fairness_may_stand_still_is_told(
    version: str, *, is_on: bool | None, level: Severity, remedy: str
) -> None:
    """Whether it is on nobody can ask, so an old server is a warning unless its owner knows better."""
    finding = check_fairness(version, is_on=is_on)

    assert finding.level is level
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("store", "shards", "level"),
    [
        ("sqlite", 1, Severity.FINE),
        ("postgres12", 4, Severity.WARNING),
        ("postgres12", 512, Severity.FINE),
        ("cassandra", 4096, Severity.FINE),
        ("", 0, Severity.UNKNOWN),
    ],
)
def test_a_cluster_with_few_shards_is_told(store: str, shards: int, level: Severity) -> None:
    """The embedded server's one is all that its database bears."""
    assert check_shards(store, shards).level is level


@pytest.mark.parametrize(
    ("serving", "level"),
    [
        (LaneWorkers(("a",), 900, timedelta(seconds=30)), Severity.FINE),
        (LaneWorkers(("a",), 900, timedelta(minutes=3)), Severity.WARNING),
        (LaneWorkers((), 900, timedelta(minutes=3)), Severity.FINE),  # the check of workers reports that there are none
    ],
)
def test_a_backlog_counts_by_how_long_it_waits(serving: LaneWorkers, level: Severity) -> None:
    """Many tasks may be a moment's work."""
    assert check_backlog("short", serving).level is level


def test_an_error_becomes_a_finding_with_its_next_step() -> None:
    """What to do stands behind the last semicolon of its sentence."""
    away = Finding.of(ServerUnreachable("nobody answers (a; b); start one"))
    broken = Finding.of(InvalidHandler("it is broken"), "x")

    assert away == Finding(Severity.UNREACHABLE, "nobody answers (a; b)", "start one")
    assert broken == Finding(Severity.WRONG, "it is broken", "", "x")


def test_the_worst_finding_is_the_one_that_counts() -> None:
    """What a person must change is worse than what may mend itself."""
    findings = [Finding(level, "") for level in Severity]

    assert find_worst([]) is Severity.FINE
    assert find_worst(findings[:2]) is Severity.UNKNOWN
    assert find_worst(reversed(findings)) is Severity.WRONG


async def test_a_check_that_needs_a_failed_one_says_so() -> None:
    """It names the first cause, and what needs nothing of it is looked at all the same."""

    async def fail() -> list[Finding]:
        raise ServerUnreachable("nobody answers; start one")

    async def see() -> list[Finding]:
        return [Finding(Severity.FINE, "seen")]

    checks = [Check("server", fail), Check("namespace", see, ("server",)), Check("clock", see, ("namespace",))]
    found = await run_checks([*checks, Check("broker", see)], 5)

    assert [(f.check, f.level, f.seen) for f in found] == [
        ("server", Severity.UNREACHABLE, "nobody answers"),
        ("namespace", Severity.UNKNOWN, "not looked at, see server"),
        ("clock", Severity.UNKNOWN, "not looked at, see server"),
        ("broker", Severity.FINE, "seen"),
    ]


@pytest.mark.parametrize(
    ("name", "waits", "level", "remedy"),
    [
        ("feed:a~1", 0, Severity.WRONG, "dormice show feed:a~1"),
        ("price~17", 0, Severity.WRONG, "dormice list --kind price'"),
        ("feed:a~1", 300, Severity.WARNING, "see backlog"),
        ("", 0, Severity.FINE, ""),
    ],
)
def test_what_is_overdue_is_named_with_the_next_step(name: str, waits: int, level: Severity, remedy: str) -> None:
    """On a lane that is behind, workers are too few; on one that is not, it stands still."""
    now = datetime.now(UTC)
    overdue = [SleepingWorkflow(now - timedelta(minutes=22), name, is_pack=name == "price~17")] if name else []

    finding = check_overdue("short", overdue, LaneWorkers(("a",), 3, timedelta(seconds=waits)), now)

    assert finding.level is level
    assert remedy in finding.remedy
    assert not name or f"{name} is overdue by 22 min" in finding.seen


METRICS = """\
# TYPE client_errors counter
client_errors{error_type="serviceerror_NotFound",namespace="default",operation="HistoryClientRecordWorkflowTaskStarted",service_name="matching"} 4
client_errors{error_type="serviceerror_DeadlineExceeded",namespace="default",operation="HistoryClientRecordWorkflowTaskStarted",service_name="matching"} 3
client_errors{error_type="serviceerror_Canceled",namespace="other",operation="HistoryClientRecordWorkflowTaskStarted",service_name="matching"} 2
client_errors{error_type="serviceerror_Canceled",namespace="other",operation="HistoryClientRecordActivityTaskStarted",service_name="matching"} 9
client_errors{error_type="serviceerrors_TaskAlreadyStarted",namespace="default",operation="HistoryClientRecordWorkflowTaskStarted",service_name="matching"} 1e+03
client_requests{namespace="default",operation="HistoryClientRecordWorkflowTaskStarted",service_name="matching"} 20000
client_requests{namespace="other",operation="HistoryClientRecordWorkflowTaskStarted",service_name="matching"} 30
client_requests{namespace="other",operation="HistoryClientRecordActivityTaskStarted",service_name="matching"} 7
"""  # noqa: E501 — as the server writes it


def test_lost_deliveries_are_counted_by_the_servers_own_metrics() -> None:
    """Recordings of workflow tasks that took too long, and tasks that were found begun; nothing else counts."""
    found = count_deliveries(METRICS)

    assert found == Deliveries(given_up=5, lost=1000, tried=20_030)
    assert count_deliveries("") == Deliveries(given_up=0, lost=0)


@pytest.mark.parametrize(
    ("found", "level", "words"),
    [
        (Deliveries(given_up=0, lost=0, tried=9), Severity.FINE, "0 of 9 workflow tasks since the server began"),
        (Deliveries(given_up=90, lost=9, tried=9), Severity.FINE, "9 of 9 workflow tasks"),
        (Deliveries(given_up=90, lost=99, tried=99_999), Severity.FINE, "99 of 99,999 workflow tasks"),
        (Deliveries(given_up=0, lost=10, tried=1_000), Severity.WARNING, "10 of 1,000 workflow tasks"),
        (Deliveries(given_up=5, lost=1000, tried=900_000), Severity.WARNING, "1,000 of 900,000 workflow tasks"),
    ],
)
def test_a_server_that_loses_deliveries_is_too_slow(found: Deliveries, level: Severity, words: str) -> None:
    """What is lost comes again, but late, so it is a warning that says what helps."""
    finding = check_deliveries(found)

    assert finding.level is level
    assert words in finding.seen
