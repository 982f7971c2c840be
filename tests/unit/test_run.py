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
        ([], ["not long and not heavy", "not long and heavy"]),
        (["--long"], ["long and not heavy", "long and heavy"]),
    ],
)
def test_both_halves_of_a_part_are_run_even_when_the_first_fails(
    tmp_path: Path, arguments: list[str], marks: list[str]
) -> None:
    """`./run test` and `./run test --long` run what is light and what is heavy, and end with what failed."""
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
