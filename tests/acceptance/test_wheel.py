"""The built wheel works outside the checkout: nothing that only the source tree has is missed by it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("wheel")  # what they share is made once

ROOT = Path(__file__).parent.parent.parent
PACKAGES = {"shared", "activities", "workflows", "worker", "starter"}


def run(*command: str, cwd: Path) -> str:
    """Run a program, give what it printed, fail with its own words."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    finished = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built the way a release is."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "uv", "build", "--wheel", "--quiet", "--out-dir", str(folder), cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment far from the checkout with nothing but the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, "env", cwd=folder)
    python = str(folder / "env" / "bin" / "python")
    run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, str(wheel), cwd=folder)
    return folder


def test_the_wheel_holds_our_packages_and_nothing_else(wheel: Path) -> None:
    """Tests, benchmarks and examples stay at home; every module of ours is in, and the digests of the broker's jars."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}

    assert names == sources | {"starter/kafka/jars.sha256"}


def test_the_installed_command_runs_outside_the_checkout(elsewhere: Path) -> None:
    """`dormice --help` and `dormice handlers` need neither the source tree nor the extras."""
    command = str(elsewhere / "env" / "bin" / "dormice")

    assert "usage: dormice" in run(command, "--help", cwd=elsewhere)
    listed = run(command, "handlers", "--json", cwd=elsewhere)
    assert '"echo"' in listed
    assert '"http"' in listed


def test_no_other_distribution_owns_our_names(elsewhere: Path) -> None:
    """Our import names are generic; in an environment of their own nobody else brings the same."""
    program = (
        "from importlib.metadata import packages_distributions as owners\n"
        f"print(sorted((name, owners().get(name)) for name in {sorted(PACKAGES)}))"
    )
    printed = run(str(elsewhere / "env" / "bin" / "python"), "-c", program, cwd=elsewhere)

    assert printed.strip() == str([(name, ["dormice"]) for name in sorted(PACKAGES)])
