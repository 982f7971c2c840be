"""What a worker finds out before it serves: how many processes fit, and what to say if it can't go on."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from worker.main import has_met_no_server
from worker.process import count_processes

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
    ("cgroup", "files", "maximum"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "100001 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("1:cpu:/\n0::/a.slice/b.service\n", {"a.slice/cpu.max": "100000 100000\n"}, 1),
        ("1:cpu:/\n0::/a.slice/b.service\n", {"a.slice/b.service/cpu.max": "5000 100000\n"}, 1),
        ("9:cpu:/\n", {"cpu/cpu.cfs_quota_us": "90000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ("9:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/\n", {"memory.max": "536870912\n"}, 1),
        ("0::/\n", {"memory.max": "1073741824\n", "cpu.max": "max 100000\n"}, 2),
        ("0::/\n", {"memory.max": "1000\n", "cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("9:cpu:/\n", {"memory/memory.limit_in_bytes": "600000000\n"}, 1),
        ("9:cpu:/\n", {}, None),
    ],
)
def test_as_many_processes_as_a_container_has_room_for(
    tmp_path: Path, cgroup: str, files: Mapping[str, str], maximum: int | None
) -> None:
    """One for each core of the quota, rounded up, and for each 512 MB, at least one; without limits one per core."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    cores = count_processes("0::/\n", tmp_path / "nothing")

    assert count_processes(cgroup, tmp_path) == min(maximum or cores, cores)
