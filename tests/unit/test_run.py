"""The checkout's interface asks for the parts of the suite that it names."""

import shutil
import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "marks"),
    [
        ([], ["not long"]),
        (["--long"], ["long and not heavy and not fault", "long and heavy and not fault"]),
        (["--faults"], ["fault"]),
    ],
)
def test_all_of_a_part_is_run_even_when_a_half_fails(tmp_path: Path, arguments: list[str], marks: list[str]) -> None:
    """`./run test` runs what is quick, `--long` both halves of the rest, and each ends with what failed."""
    for name in ("run", "pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$4" >>"{tmp_path}/marks"\nexit 1\n')
    python.chmod(0o755)
    locked = (tmp_path / "pyproject.toml").read_bytes() + (tmp_path / "uv.lock").read_bytes()
    stamp = subprocess.run(["cksum"], input=locked, stdout=PIPE, check=True).stdout  # noqa: S607 — as ./run finds it
    (tmp_path / ".venv/stamp").write_bytes(stamp)

    ended = subprocess.run([tmp_path / "run", "test", *arguments], check=False, timeout=30)

    assert (tmp_path / "marks").read_text().splitlines() == marks
    assert ended.returncode == 1
