"""Small disks: real ones, in memory, that a test can fill."""

import contextlib
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, megabytes: int) -> Generator[Path]:
    """Mount a disk of that size on a folder; skips the test where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs the program 'mount'")

    if done.returncode:
        pytest.skip(f"needs the right to mount a disk ({done.stderr.decode().strip()})")

    try:
        yield folder
    finally:
        # lazily: what a test has left open must not keep it mounted
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607 — as above


def fill(disk: Path) -> Path:
    """Write until there is no room left, not for a byte; gives the file to delete."""
    filling = disk / "filling"
    with filling.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(os.urandom(1024) * 64):
            pass
    return filling
