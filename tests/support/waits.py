"""A pytest plugin that says at the end which tests wait and which compute: `-p tests.support.waits`.

A test computes what its own process does meanwhile, and what children of it did that have ended. All else it waits: for
timers, and for servers, browsers, Java and other processes that go on, which may compute.
"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from typing import NamedTuple

import pytest

SHOWN = 15
PROPERTY = "waits"
GROUP = re.compile(r"@[\w-]+$")  # what pytest-xdist adds to the name of a test that shares a process


class Spent(NamedTuple):
    """Seconds that went by, and those of them that a processor worked, over all its cores."""

    wall: float
    computed: float

    @property
    def waited(self) -> float:
        """The rest."""
        return max(self.wall - self.computed, 0.0)


def _now() -> Spent:
    times = os.times()
    return Spent(time.monotonic(), times.user + times.system + times.children_user + times.children_system)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note when a test begins, with what its fixtures need."""
    item.stash[BEGUN] = _now()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hand what a test has spent to the process that sums up, with the report of its end."""
    report = yield
    if call.when == "teardown":
        begun = item.stash[BEGUN]
        now = _now()
        report.user_properties.append((PROPERTY, (now.wall - begun.wall, now.computed - begun.computed)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the tests have spent: those that waited and computed most, and the same of whole files."""
    tests = dict(_collect(terminalreporter))
    files = defaultdict[str, Spent](lambda: Spent(0.0, 0.0))
    for name, spent in tests.items():
        file = name.partition("::")[0]
        files[file] = _add([files[file], spent])
    if not tests:
        return

    whole = _add(tests.values())
    waited = sum(spent.waited for spent in tests.values())
    terminalreporter.section("what waits and what computes")
    terminalreporter.write_line(
        f"{len(tests):,} tests took {whole.wall:,.0f} s one after the other: "
        f"they computed for {whole.computed:,.0f} s and waited for {waited:,.0f} s"
    )
    for title, spent in (("tests", tests), ("files", dict(files))):
        _write_table(terminalreporter, title, spent)


def _collect(reporter: pytest.TerminalReporter) -> Iterable[tuple[str, Spent]]:
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent = dict(report.user_properties).get(PROPERTY)
                if report.when == "teardown" and isinstance(spent, list | tuple):
                    yield GROUP.sub("", report.nodeid), Spent(*spent)


def _write_table(reporter: pytest.TerminalReporter, title: str, spent: dict[str, Spent]) -> None:
    longest = sorted(spent, key=lambda name: spent[name].wall, reverse=True)[:SHOWN]
    reporter.write_line("")
    reporter.write_line(f"{'wall':>7} {'waited':>7} {'computed':>8}  the longest {title}")
    for name in longest:
        wall, computed = spent[name]
        reporter.write_line(f"{wall:>7.1f} {spent[name].waited:>7.1f} {computed:>8.1f}  {name}")


def _add(parts: Iterable[Spent]) -> Spent:
    walls, computed = zip(*parts, strict=True)
    return Spent(sum(walls), sum(computed))


BEGUN = pytest.StashKey[Spent]()
