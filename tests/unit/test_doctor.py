"""The doctor's judgement, where it needs nobody to be asked."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from activities.idle.overdue import Overdue
from shared.errors import HandlerProblem, ServerUnreachable
from starter.insight.doctor.checks import Check, run_checks
from starter.insight.doctor.finding import Finding, Level, find_worst
from starter.insight.doctor.kafka import Topic, judge_topic
from starter.insight.doctor.lanes import Serving, judge_backlog, judge_overdue
from starter.insight.doctor.server import judge_fairness, judge_shards, judge_version

SOUND = Topic(name="orders", partitions=6, leaderless=0, replicas=3, in_sync=3, least_in_sync=2)


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, Level.FINE, "6 partitions, 3 replicas, 3 in sync, min.insync.replicas 2"),
        ({"in_sync": 2}, Level.WARNING, "not all replicas are there"),
        ({"in_sync": 1}, Level.WRONG, "takes no record that has to be safe"),
        ({"leaderless": 1}, Level.WRONG, "1 partition without a leader"),
        ({"least_in_sync": 1}, Level.WARNING, "counts as sent when one broker has it"),
        ({"replicas": 1, "in_sync": 1, "least_in_sync": 1}, Level.WARNING, "a disk that is lost"),
        ({"replicas": 1, "in_sync": 1}, Level.WRONG, "takes no record that has to be safe"),
    ],
)
def test_a_topic_is_judged_by_what_it_bears(changes: dict[str, int], level: Level, words: str) -> None:
    """The loss of a broker costs no record and stops no one, or there is something to do."""
    (finding,) = judge_topic(dataclasses.replace(SOUND, **changes))

    assert finding.level is level
    assert finding.about == "orders"
    assert words in finding.seen
    assert bool(finding.remedy) == (level is not Level.FINE)


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("1.29.1", Level.WARNING),
        ("0.9.0", Level.WARNING),
        ("1.30.2", Level.FINE),
        ("1.32.0", Level.FINE),
        ("2.0.0", Level.FINE),
        ("1.32.0-150.1", Level.FINE),
        ("", Level.FINE),
    ],
)
def test_a_server_older_than_what_was_tried_is_told(version: str, level: Level) -> None:
    """One that says nothing of its version is taken as it is."""
    assert judge_version(version, "there:7233").level is level


@pytest.mark.parametrize(
    ("version", "is_on", "level", "remedy"),
    [
        ("1.31.2", True, Level.WARNING, "upgrade the server (Temporal's issue 10814)"),
        ("1.31.2", None, Level.WARNING, "unless matching.enableFairness is false"),
        ("1.32.0", True, Level.FINE, ""),
        ("1.32.1", None, Level.UNKNOWN, "see that matching.enableFairness is true"),
        ("", None, Level.UNKNOWN, "see that matching.enableFairness is true"),
    ],
)
def test_a_server_whose_fairness_may_stand_still_is_told(
    version: str, *, is_on: bool | None, level: Level, remedy: str
) -> None:
    """Whether it is on nobody can ask, so an old server is a warning unless its owner knows better."""
    finding = judge_fairness(version, is_on=is_on)

    assert finding.level is level
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("store", "shards", "level"),
    [
        ("sqlite", 1, Level.FINE),
        ("postgres12", 4, Level.WARNING),
        ("postgres12", 512, Level.FINE),
        ("cassandra", 4096, Level.FINE),
        ("", 0, Level.UNKNOWN),
    ],
)
def test_a_cluster_with_few_shards_is_told(store: str, shards: int, level: Level) -> None:
    """The embedded server's one is all that its database bears."""
    assert judge_shards(store, shards).level is level


@pytest.mark.parametrize(
    ("serving", "level"),
    [
        (Serving(("a",), 900, timedelta(seconds=30)), Level.FINE),
        (Serving(("a",), 900, timedelta(minutes=3)), Level.WARNING),
        (Serving((), 900, timedelta(minutes=3)), Level.FINE),  # the check of workers reports that there are none
    ],
)
def test_a_backlog_counts_by_how_long_it_waits(serving: Serving, level: Level) -> None:
    """Many tasks may be a moment's work."""
    assert judge_backlog("short", serving).level is level


def test_an_error_becomes_a_finding_with_its_next_step() -> None:
    """What to do stands behind the last semicolon of its sentence."""
    away = Finding.of(ServerUnreachable("nobody answers (a; b); start one"))
    broken = Finding.of(HandlerProblem("it is broken"), "x")

    assert away == Finding(Level.UNREACHABLE, "nobody answers (a; b)", "start one")
    assert broken == Finding(Level.WRONG, "it is broken", "", "x")


def test_the_worst_finding_is_the_one_that_counts() -> None:
    """What a person must change is worse than what may mend itself."""
    findings = [Finding(level, "") for level in Level]

    assert find_worst([]) is Level.FINE
    assert find_worst(findings[:2]) is Level.UNKNOWN
    assert find_worst(reversed(findings)) is Level.WRONG


async def test_a_check_that_needs_a_failed_one_says_so() -> None:
    """It names the first cause, and what needs nothing of it is looked at all the same."""

    async def fail() -> list[Finding]:
        raise ServerUnreachable("nobody answers; start one")

    async def see() -> list[Finding]:
        return [Finding(Level.FINE, "seen")]

    checks = [Check("server", fail), Check("namespace", see, ("server",)), Check("clock", see, ("namespace",))]
    found = await run_checks([*checks, Check("broker", see)], 5)

    assert [(f.check, f.level, f.seen) for f in found] == [
        ("server", Level.UNREACHABLE, "nobody answers"),
        ("namespace", Level.UNKNOWN, "not looked at, see server"),
        ("clock", Level.UNKNOWN, "not looked at, see server"),
        ("broker", Level.FINE, "seen"),
    ]


@pytest.mark.parametrize(
    ("name", "waits", "level", "remedy"),
    [
        ("feed:a~1", 0, Level.WRONG, "dormice show feed:a~1"),
        ("price~17", 0, Level.WRONG, "dormice list --kind price'"),
        ("feed:a~1", 300, Level.WARNING, "see backlog"),
        ("", 0, Level.FINE, ""),
    ],
)
def test_what_is_overdue_is_named_with_the_next_step(name: str, waits: int, level: Level, remedy: str) -> None:
    """On a lane that is behind, workers are too few; on one that is not, it stands still."""
    now = datetime.now(UTC)
    overdue = [Overdue(now - timedelta(minutes=22), name, is_pack=name == "price~17")] if name else []

    finding = judge_overdue("short", overdue, Serving(("a",), 3, timedelta(seconds=waits)), now)

    assert finding.level is level
    assert remedy in finding.remedy
    assert not name or f"{name} is overdue by 22 min" in finding.seen
