"""The built wheel, and environments far from the checkout that have it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str, cwd: Path) -> str:
    """Run a program, give what it printed, fail with its own words."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    finished = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def build_wheel(folder: Path, distribution: str = "dormice") -> Path:
    """Build the wheel of one of our distributions the way a release is."""
    chosen = ("--package", distribution, "--out-dir", str(folder))
    run(sys.executable, "-m", "uv", "build", "--wheel", "--quiet", *chosen, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def make_environment(folder: Path, *packages: str) -> Path:
    """Make an environment with nothing but some packages and what they ask for; gives the folder of its programs.

    Among the packages may be options of `uv pip install`.
    """
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, "env", cwd=folder)
    programs = folder / "env" / "bin"
    install(programs, *packages, cwd=folder)
    return programs


def install(programs: Path, *packages: str, cwd: Path) -> None:
    """Install packages into the environment that has these programs; among them may be options of `uv pip install`."""
    python = str(programs / "python")
    run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, *packages, cwd=cwd)


def install_extras(folder: Path, wheel: Path, extras: str) -> Path:
    """Make an environment of the wheel with some extras ("spark,web"), as uv.lock has them; gives its programs.

    What the extras ask for comes first, by its hashes: uv would build pyspark, which has no wheel, again for each
    environment that names no hash, and keep all of them (2 GB each).
    """
    locked = folder / "locked.txt"
    chosen = [f"--extra={extra}" for extra in extras.split(",") if extra]
    only = ("--no-dev", "--no-emit-workspace", "--output-file", str(locked))
    run(sys.executable, "-m", "uv", "export", "--quiet", "--frozen", *chosen, *only, cwd=ROOT)

    linked = ("--link-mode", "hardlink")
    programs = make_environment(folder, "--no-deps", "--requirements", str(locked), *linked)
    install(programs, f"dormice[{extras}] @ {wheel.as_uri()}", *linked, cwd=folder)
    return programs
