"""What a worker finds out before it serves: how many cores it may use, and what to say if it can't go on."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from worker.main import has_met_no_server
from worker.process import count_cores

FAILED = (
    "Worker validation failed: Namespace default was not found or otherwise could not be described: Status { code: "
)


@pytest.mark.parametrize(
    ("words", "is_so"),
    [
        (FAILED + 'Unavailable, message: "tcp connect error", source: None }', True),
        (FAILED + 'DeadlineExceeded, message: "timeout" }', True),
        (FAILED + 'NotFound, message: "Namespace default is not found." }', False),
        (FAILED + 'PermissionDenied, message: "Request unauthorized." }', False),
        ("Poll failure: Status { code: Unavailable }", False),
    ],
)
def test_a_server_that_goes_away_while_workers_begin_is_told_apart(words: str, *, is_so: bool) -> None:
    """The same may succeed later; what is refused for good stays a failure."""
    assert has_met_no_server(RuntimeError(words)) is is_so


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "100001 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("1:cpu:/\n0::/a.slice/b.service\n", {"a.slice/cpu.max": "100000 100000\n"}, 1),
        ("1:cpu:/\n0::/a.slice/b.service\n", {"a.slice/b.service/cpu.max": "5000 100000\n"}, 1),
        ("9:cpu:/\n", {"cpu/cpu.cfs_quota_us": "90000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ("9:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("9:cpu:/\n", {}, None),
    ],
)
def test_a_worker_counts_the_cores_that_its_container_may_use(
    tmp_path: Path, cgroup: str, files: Mapping[str, str], quota: int | None
) -> None:
    """A quota of a core or less means one process, of more than one core two; without a quota all cores count."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    all_cores = count_cores("0::/\n", tmp_path / "nothing")

    assert count_cores(cgroup, tmp_path) == min(quota or all_cores, all_cores)
