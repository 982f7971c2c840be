"""The cache of a worker process: how much its runs may hold, and which of them leave."""

from collections.abc import Callable, Mapping
from typing import Any

from shared.telemetry.metrics import CACHED_BYTES, CACHED_RUNS
from shared.telemetry.sdk import Telemetry
from worker.lanes.cache import Cache


def make_cache(bytes_max: int) -> Cache:
    """Make a cache that nobody watches."""
    return Cache(bytes_max, Telemetry(is_on=False))


def test_the_run_that_was_used_least_recently_leaves() -> None:
    """It is the one that is least likely to be needed next."""
    evicted: list[str] = []
    cache = make_cache(100)
    for run_id in ("a", "b", "a", "c"):
        cache.note(run_id, 40, evicted.append)

    assert evicted == ["b"]
    assert cache.held_bytes == 80


def test_as_many_runs_leave_as_must() -> None:
    """One large pack may take the place of many small ones."""
    evicted: list[str] = []
    cache = make_cache(100)
    for run_id in ("a", "b", "c"):
        cache.note(run_id, 30, evicted.append)
    cache.note("d", 70, evicted.append)

    assert evicted == ["a", "b"]
    assert len(cache) == 2


def test_a_run_that_holds_more_than_all_may_stays_alone() -> None:
    """Otherwise it would be read from its history for each task."""
    evicted: list[str] = []
    cache = make_cache(100)
    cache.note("a", 40, evicted.append)
    cache.note("b", 500, evicted.append)
    cache.note("b", 600, evicted.append)

    assert evicted == ["a"]
    assert cache.held_bytes == 600


def test_a_run_that_left_by_itself_is_told_from_one_that_had_to() -> None:
    """The server is told of those that had to leave, and of no others."""
    evicted: list[str] = []
    cache = make_cache(100)
    cache.note("a", 60, evicted.append)
    cache.note("b", 60, evicted.append)

    assert evicted == ["a"]
    assert not cache.forget("a")
    assert cache.forget("b")
    assert cache.held_bytes == 0


def test_without_a_limit_nothing_leaves() -> None:
    """The number of runs is limited all the same, by the SDK's core."""
    evicted: list[str] = []
    cache = make_cache(0)
    for number in range(100):
        cache.note(f"run-{number}", 1_000_000_000, evicted.append)

    assert not evicted


def test_metrics_say_what_the_cache_holds() -> None:
    """They are sums of increments, so what has left does not count any more."""
    seen = {CACHED_RUNS.name: 0.0, CACHED_BYTES.name: 0.0}
    telemetry = Telemetry(is_on=True)

    def count(name: str) -> Callable[[float, Mapping[str, Any]], None]:
        def add(value: float, _: Mapping[str, Any]) -> None:
            seen[name] += value

        return add

    telemetry.recorders |= {name: count(name) for name in seen}

    cache = Cache(100, telemetry)
    cache.note("a", 60, lambda _: None)
    cache.note("a", 70, lambda _: None)
    cache.note("b", 20, lambda _: None)
    cache.forget("a")

    assert seen == {CACHED_RUNS.name: 1, CACHED_BYTES.name: 20}
