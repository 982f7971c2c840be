"""Chaos runs: the plan comes from the seed, each checker finds its fault, and the page is written from results."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chaos.checks.checkers import LATE_SECONDS, REPEATED, SERVER_AFTERMATH_SECONDS, Examination
from chaos.faults import CLUSTER, EMBEDDED, FAULTS, make_plan
from chaos.injection import Injected
from chaos.ledger import Entry, Ledger, What
from chaos.load.groups import GROUPS, NUMBER_OF, PACKED, RECORDS, SOLO, TIMEOUT_SECONDS
from chaos.load.workload import Sizes, count_messages
from chaos.report.page import render_page
from chaos.report.report import WORDS, find_broken, find_untested
from chaos.system.deliveries import DeliveryCount
from starter.insight.doctor.deliveries import Deliveries

README = Path(__file__).parents[2] / "README.md"
SOLO_GROUP, PACKED_GROUP, RECORD_GROUP = (NUMBER_OF[group.kind] for group in (SOLO, PACKED, RECORDS))
NUMBER = 1
"""A message that no verb steers."""

WORKER = 77
OTHER_WORKER = 78


def entry(what: What, at: float, **fields: Any) -> Entry:
    """Make an entry of the message, of its first version and attempt unless said otherwise."""
    usual = {"group": SOLO_GROUP, "attempt": 1, "number": NUMBER, "version": 0, "pid": WORKER, "due": 0.0}
    fields = {**usual, "asked": 0.0, "mark": 0, **fields}
    return Entry(what=what, at=at, **fields)


def started(group: int = SOLO_GROUP) -> list[Entry]:
    """Give what the sender of the message wrote; it is due at 100."""
    return [entry(What.START_SENT, 100, group=group, due=100), entry(What.START_ACKNOWLEDGED, 100.1, group=group)]


def cycle(version: int, at: float, due: float, asked: float = 20.0, **more: Any) -> list[Entry]:
    """Give a call that began at its moment, ended soon and asked for a delay."""
    fields: dict[str, Any] = {"version": version, "due": due, **more}
    return [entry(What.BEGAN, at, **fields), entry(What.AGAIN, at + 0.5, asked=asked, **fields)]


def fine() -> list[Entry]:
    """Give a life in which nothing is wrong: versions 0 and 1, due again at 141."""
    return [*started(), *cycle(0, 100.5, 100), *cycle(1, 121, 121)]


def find(entries: list[Entry], now: float = 150, faults: Sequence[Injected] = ()) -> dict[str, int]:
    """Examine a ledger and give what was found."""
    examination = Examination(faults).read(entries)
    examination.check_end(now)
    return examination.findings.counts


def test_the_plan_comes_from_the_seed_alone() -> None:
    """One seed, one plan; another seed, another plan; every kind of fault comes in forty minutes."""
    assert make_plan(7, 40, EMBEDDED) == make_plan(7, 40, EMBEDDED)
    assert make_plan(7, 40, EMBEDDED) != make_plan(8, 40, EMBEDDED)
    for system in (EMBEDDED, CLUSTER):
        plan = make_plan(7, 40, system)
        assert {planned.fault for planned in plan} == {fault.name for fault in FAULTS if system in fault.systems}
        assert len(plan) >= 100
        assert [planned.at for planned in plan] == sorted(planned.at for planned in plan)
        assert plan[-1].at <= 40 * 60


def test_a_ledger_gives_back_what_was_written(tmp_path: Path) -> None:
    """Entries come back in order, from more than one writer of the file."""
    path = tmp_path / "ledger"
    Ledger(path).append(What.BEGAN, 2, 123_456, version=9, attempt=100_000, due=1e9 + 0.125, mark=3)
    Ledger(path).append(What.AGAIN, 2, 123_456, version=9, asked=12.5)
    first, second = Ledger(path).read()
    assert (first.what, first.group, first.number, first.version, first.mark) == (What.BEGAN, 2, 123_456, 9, 3)
    assert (first.attempt, first.due) == (0xFFFF, 1e9 + 0.125)
    assert (second.what, second.asked) == (What.AGAIN, 12.5)


def killed(began_at: float, ended_at: float, *, target: str = "worker 1", pid: int = WORKER) -> Injected:
    """Give a fault that killed a process of its target."""
    return Injected(fault="killed", target=target, began_at=began_at, ended_at=ended_at, killed=[pid])


def repeated() -> list[Entry]:
    """Give a life in which version 0 is called at 100.5 and, although it has not failed, again at 113."""
    again = [*cycle(0, 113, 100, pid=OTHER_WORKER), *cycle(1, 134, 134, pid=OTHER_WORKER)]
    return [*started(), entry(What.BEGAN, 100.5, due=100), *again]


def test_a_fine_life_is_fine() -> None:
    """Nothing is found in what is as it was promised."""
    assert find(fine()) == {}


def test_a_call_that_comes_again_after_a_fault_is_counted_and_fine() -> None:
    """The fault may have hit the worker of the first call, the server, or a worker that goes on with an old task."""
    of_server = killed(101, 105, target="server", pid=5)
    stopped = Injected(fault="stopped", target="worker 2", began_at=99, ended_at=112, stopped=[OTHER_WORKER])
    for fault in (killed(101, 103), of_server, stopped):
        examination = Examination([fault]).read(repeated())
        assert (examination.repeated, examination.cycles, examination.findings.counts) == (1, 2, {})


@pytest.mark.parametrize(
    "fault",
    [
        killed(101, 103, pid=OTHER_WORKER),
        killed(114, 115),
        killed(101, 103, target="bridge", pid=5),
        killed(60, 100 - SERVER_AFTERMATH_SECONDS, target="server", pid=5),
    ],
)
def test_a_call_that_comes_again_without_a_fault_is_found(fault: Injected) -> None:
    """A fault of another worker, of another part or at another time is no reason to call a version again."""
    assert find(repeated(), faults=[fault]) == {REPEATED: 1}


def test_a_call_that_is_cut_off_and_comes_again_is_found() -> None:
    """A call that failed is a reason to call its version again, one that was cancelled before its time is none."""
    life = [*started(), entry(What.BEGAN, 100.5, due=100)]
    again = cycle(0, 113, 112)
    assert find([*life, entry(What.FAILED, 101), *again]) == {}
    assert find([*life, entry(What.CUT_OFF, 101), *again]) == {REPEATED: 1}


def test_an_attempt_that_failed_is_due_anew_though_its_number_comes_twice() -> None:
    """A batch that was lost uses up a number; the retry is due within the tolerance of what was asked for first."""
    packed = {"group": PACKED_GROUP}
    life = [
        *started(PACKED_GROUP),
        *cycle(0, 100.5, 100, **packed),
        entry(What.BEGAN, 121, version=1, due=121, **packed),
    ]
    second: dict[str, Any] = {"version": 1, "attempt": 2, **packed}
    failed = [entry(What.BEGAN, 125, due=121, **second), entry(What.FAILED, 126, **second)]
    again = [entry(What.BEGAN, 130, due=127, **second)]
    faults = [killed(122, 124)]

    assert find([*life, *failed, *again], faults=faults) == {}
    assert find([*life, failed[0], *again], faults=faults)["duplicated"] == 1


def test_a_message_at_work_stands_still_only_after_its_timeout() -> None:
    """A call of a silent site may last as long as its handler may; what takes longer does not end."""
    life = [*fine(), entry(What.BEGAN, 142, version=2, due=142)]
    assert find(life, 142 + TIMEOUT_SECONDS) == {}
    assert find(life, 142 + TIMEOUT_SECONDS + LATE_SECONDS) == {"standing still": 1}


@pytest.mark.parametrize(
    ("word", "entries", "now"),
    [
        ("lost", started(), 100 + LATE_SECONDS + 1),
        ("standing still", fine(), 142 + LATE_SECONDS),
        ("duplicated", [*fine(), *cycle(0, 122, 100), *cycle(1, 143, 142.5)], 150),
        ("duplicated", [*fine(), *cycle(1, 122, 120)], 150),
        (
            "duplicated",
            [*fine(), *(e for n in range(2, 12) for e in cycle(n, 21 * n + 102, 0)), *cycle(0, 350, 100)],
            350,
        ),
        ("early", [*started(), *cycle(0, 100.5, 100), *cycle(1, 120.9, 120.9)], 130),
        ("early", [*started(), *cycle(0, 100.5, 101)], 110),
        ("unexpected", cycle(0, 100.5, 100), 110),
        ("unexpected", [*fine(), *cycle(2, 142, 142, mark=1)], 150),
        ("version gap", [*fine(), *cycle(3, 142, 142)], 150),
        (
            "revision lost",
            [*fine(), entry(What.REVISION_SENT, 122, mark=1), entry(What.REVISION_ACKNOWLEDGED, 122.1, mark=1)],
            150,
        ),
        (
            "revision undone",
            [*fine(), entry(What.REVISION_SENT, 122, mark=1), *cycle(2, 142, 142, mark=1), *cycle(3, 163, 163)],
            170,
        ),
    ],
)
def test_each_checker_finds_its_fault(word: str, entries: list[Entry], now: float) -> None:
    """One thing is wrong in each ledger, and that alone is found."""
    assert find(entries, now, [killed(0, 1)]) == {word: 1}  # so that calls may come again


def test_a_message_whose_batch_was_lost_is_due_anew() -> None:
    """When the loss is noticed: no call of the version before has asked for that moment."""
    assert find([*fine(), *cycle(1, 135, 134)], faults=[killed(121.2, 122)]) == {}


def test_a_message_that_runs_after_its_stop_is_unexpected() -> None:
    """A call long after a tombstone was committed is one that nobody wants; a record after it starts it anew."""
    life = [*started(RECORD_GROUP), *cycle(0, 100.5, 100, group=RECORD_GROUP)]
    stop = [entry(What.STOP_SENT, 102, group=RECORD_GROUP), entry(What.STOP_ACKNOWLEDGED, 103, group=RECORD_GROUP)]
    assert find([*life, *stop, *cycle(1, 140, 121, group=RECORD_GROUP)]) == {"unexpected": 1}
    anew = entry(What.REVISION_SENT, 104, group=RECORD_GROUP, due=104, mark=1)
    assert find([*life, stop[0], anew, *cycle(0, 104.5, 104, group=RECORD_GROUP, mark=1)], 110) == {}


def test_a_fault_is_told_with_what_was_in_flight_and_when_all_was_back() -> None:
    """A killed worker loses its calls and their batch; recovery lasts until what was due at the end has run."""
    fault = Injected(fault="worker killed", target="worker 1", began_at=101, ended_at=103, killed=[WORKER])
    life = [*started(PACKED_GROUP), entry(What.BEGAN, 100.5, group=PACKED_GROUP, due=100)]
    back = cycle(0, 112, 100, group=PACKED_GROUP, pid=78)
    (impact,) = Examination([fault]).read([*life, *back]).impacts
    assert impact.in_flight == {"packed short": 1}
    assert (impact.calls_lost, impact.batches_lost, impact.due_at_end) == (1, 1, 1)
    assert impact.recovery_seconds == pytest.approx(112.5 - 103)
    (impact,) = Examination([fault]).read(life).impacts
    assert impact.recovery_seconds is None
    (impact,) = Examination([fault]).read([*life, entry(What.STOP_SENT, 110, group=PACKED_GROUP)]).impacts
    assert impact.recovery_seconds == 0


def document(**changes: Any) -> dict[str, Any]:
    """Give a run as it is written down, of one fault that met calls in flight."""
    fault = {
        "fault": "worker killed",
        "in_flight": {"packed short": 3},
        "batches_lost": 1,
        "due_at_end": 4,
        "recovery_seconds": 2.5,
    }
    return {
        "system": EMBEDDED,
        "command": "./run chaos --minutes 1 --seed 1",
        "date": "2026-01-01",
        "machine": "2 cores",
        "python": "3.13",
        "temporalio": "1.35",
        "task_timeout_seconds": 12,
        "messages": dict(count_messages(Sizes())),
        "counts": {"verbs acknowledged": 5},
        "cycles": 1_234_567,
        "acknowledged": 10,
        "calls_repeated": 1,
        "calls_failed_on_purpose": 0,
        "lateness_seconds": {"p50": 0.1},
        "recovery_seconds": {"p50": 2.5},
        "faults": [fault],
        "faults_left_out": [],
        "ended_by_themselves": [],
        "found": dict.fromkeys(WORDS, 0),
        "examples": {},
        "transfer_tasks": 12,
        "broken": [],
        "untested": [],
        **changes,
    }


def test_a_broken_promise_and_an_idle_run_are_told() -> None:
    """Each finding breaks a promise, and so does a pinned queue; a run whose faults met nothing is no test."""
    assert find_broken(document()) == []
    assert len(find_broken(document(found={"lost": 2}, transfer_tasks=71_000))) == 2
    assert find_untested(document()) == []
    nothing: dict[str, Any] = {"in_flight": {}, "batches_lost": 0}
    assert len(find_untested(document(faults=[nothing], calls_repeated=0))) == 3
    assert len(find_untested(document(ended_by_themselves=[["worker 2", 1]] * 500))) == 1


def test_the_page_is_written_from_results(tmp_path: Path) -> None:
    """It has the README's promises word for word, the numbers of each run, and says what was not run yet."""
    for seed in (7, 8):
        (tmp_path / f"embedded-{seed}.json").write_text(json.dumps(document(seed=seed)))
    page = render_page(README, tmp_path)
    promised = README.read_text("utf-8").partition("## What is promised")[2].partition("\n## ")[0]
    for row in [line for line in promised.splitlines() if line.startswith("| never")]:
        assert row.rpartition(" | ")[0] in page
    assert "Runs: 2, with 2,469,134 cycles" in page
    assert page.count("1,234,567") == 2
    assert "| worker killed | 1 | 3 | 1 | 4 | 2.5 s | 2.5 s |" in page
    assert page.count("Not run yet.") == 1


def test_every_group_has_a_kind_of_its_own() -> None:
    """The ledger names a group by its place, so no two may share a kind."""
    assert len(NUMBER_OF) == len(GROUPS)


def test_lost_deliveries_are_summed_through_restarts_of_the_server() -> None:
    """A server that is started again counts from 0."""
    count = DeliveryCount()
    for given_up, lost in ((0, 0), (2, 1), (5, 1), (1, 0), (1, 3)):
        count.add(Deliveries(given_up=given_up, lost=lost))

    assert count.total == Deliveries(given_up=6, lost=4)
