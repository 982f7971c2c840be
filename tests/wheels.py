"""The built wheel, and environments far from the checkout that have it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(*command: str, cwd: Path) -> str:
    """Run a program, give what it printed, fail with its own words."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    finished = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def build_wheel(folder: Path) -> Path:
    """Build the wheel the way a release is."""
    run(sys.executable, "-m", "uv", "build", "--wheel", "--quiet", "--out-dir", str(folder), cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def write_constraints(folder: Path) -> Path:
    """Write the version of each package as uv.lock has it, for `make_environment`."""
    path = folder / "constraints.txt"
    only = ("--all-extras", "--no-dev", "--no-emit-workspace", "--no-hashes")
    run(sys.executable, "-m", "uv", "export", "--quiet", "--frozen", *only, "--output-file", str(path), cwd=ROOT)
    return path


def make_environment(folder: Path, *packages: str) -> Path:
    """Make an environment with nothing but some packages and what they ask for; gives the folder of its programs.

    Among the packages may be options of `uv pip install`.
    """
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, "env", cwd=folder)
    programs = folder / "env" / "bin"
    python = str(programs / "python")
    run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, *packages, cwd=folder)
    return programs
