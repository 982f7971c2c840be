"""The built wheel works outside the checkout: nothing that only the source tree has is missed by it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path

import pytest

from starter.local.project import FILES
from tests.support.wheels import ROOT, build_wheel, make_environment, run

pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.long, pytest.mark.timeout(240)]

PACKAGES = {"shared", "activities", "workflows", "worker", "starter", "spark"}
EXTRAS = ("starter/extras/", "spark/rehearsal/")
"""Folders that can go, with the entry points that name them."""
COMMANDS_OF_EXTRAS = {"codec-server", "frontier", "outbox", "plan", "rehearse", "serve"}
CLIENT_NAMES = {"Client", "connect", "connect_sync"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSION: str = PROJECT["version"]
EXTRA_NEEDS: dict[str, list[str]] = PROJECT["optional-dependencies"]
CORE_TESTS = ("test_the_loop.py", "test_signals.py", "test_packs.py")
IMPORT_ALL = f"""
import importlib, pkgutil
for package in {sorted(PACKAGES)}:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""

IMPORT_EACH = f"""
import importlib, json, pkgutil
lacking = {{}}
for package in {sorted(PACKAGES)}:
    names = [found.name for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + ".")]
    for name in (package, *names):
        try:
            if not name.endswith("__main__"):
                importlib.import_module(name)
        except ModuleNotFoundError as exc:
            lacking[name] = exc.name.partition(".")[0]
print(json.dumps(lacking))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built the way a release is."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment far from the checkout with nothing but the wheel and what it asks for."""
    return make_environment(tmp_path_factory.mktemp("elsewhere"), str(wheel))


@pytest.fixture(scope="module")
def spine(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel holds, but for the extras and the entry points that name them."""
    folder = tmp_path_factory.mktemp("spine")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if not name.startswith(EXTRAS)])

    (described,) = folder.glob("dormice-*.dist-info/entry_points.txt")
    gone = tuple(path.strip("/").replace("/", ".") for path in EXTRAS)
    lines = described.read_text("utf-8").splitlines(keepends=True)
    described.write_text("".join(line for line in lines if not line.partition("= ")[2].startswith(gone)), "utf-8")
    return folder


def run_in_spine(spine: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python there, with all that tests have installed, and none of the checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(spine)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=spine, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_holds_our_packages_and_nothing_else(wheel: Path) -> None:
    """Tests, benchmarks and examples stay at home; all modules, templates, digests, figures and the page are in."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    page = ROOT / "starter/extras/web/page"
    shown = {str(path.relative_to(ROOT)) for part in ("static", "templates") for path in (page / part).iterdir()}

    templates = {f"starter/local/project_files/{template}" for template in FILES.values()}
    wire = ROOT / "starter/extras/frontier/wire"
    described = {str(path.relative_to(ROOT)) for path in wire.iterdir() if path.suffix in (".proto", ".pyi")}
    others = {"starter/local/kafka/jars.sha256", "starter/extras/plan/measured.json"} | described
    assert "starter/extras/web/page/static/LICENSE-htmx.txt" in shown
    assert names == sources | shown | templates | others


def test_the_installed_command_runs_outside_the_checkout(elsewhere: Path) -> None:
    """`dormice --help`, `--version` and `handlers` need neither the source tree nor the extras."""
    command = str(elsewhere / "dormice")

    assert "Usage: dormice" in run(command, "--help", cwd=elsewhere)
    assert run(command, "--version", cwd=elsewhere) == f"dormice {VERSION}\n"
    listed = run(command, "handlers", "--json", cwd=elsewhere)
    assert '"echo"' in listed
    assert '"http"' in listed


def test_modules_need_nothing_beyond_what_the_wheel_asks_for_but_extras(elsewhere: Path) -> None:
    """In an environment with the bare wheel each module can be imported, or lacks a package of an extra alone.

    The plugin of pytest needs pytest, which has it loaded.
    """
    lacking = json.loads(run(str(elsewhere / "python"), "-c", IMPORT_EACH, cwd=elsewhere))
    of_extras = {re.split(r"\W", need.replace("-", "_"))[0] for needs in EXTRA_NEEDS.values() for need in needs}
    packages = {name for name, owners in packages_distributions().items() if _names(owners) & of_extras}

    others = {name: package for name, package in lacking.items() if package not in packages}
    assert others == {"activities.testing.plugin": "pytest"}
    assert not lacking.keys() & {"activities", "activities.testing", "workflows", "worker.main", "starter.cli.main"}


def _names(owners: Iterable[str]) -> set[str]:
    return {owner.lower().replace("-", "_") for owner in owners}


def test_the_client_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    """Its wheel brings its types and what httpx needs; nothing of dormice itself comes with it, and no name of it."""
    wheel = build_wheel(tmp_path, "dormice-client")
    programs = make_environment(tmp_path, str(wheel))
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {str(path.relative_to(ROOT / "client")) for path in (ROOT / "client/dormice").glob("*.py")}
    assert held == sources | {"dormice/py.typed"}

    program = (
        f"import dormice; assert set(dormice.__all__) >= {CLIENT_NAMES}\n"
        f"import importlib.metadata as m; assert m.version('dormice-client') == {VERSION!r}\n"
        "import importlib.metadata as m, importlib.util as u, dormice, pathlib\n"
        "assert (pathlib.Path(dormice.__file__).parent / 'py.typed').exists()\n"
        f"assert not any(map(u.find_spec, {sorted(PACKAGES)}))\n"
        "print(*sorted({d.name for d in m.distributions()}))"
    )
    installed = set(run(str(programs / "python"), "-c", program, cwd=tmp_path).split())

    assert installed >= {"dormice-client", "httpx"}
    assert installed <= {"dormice-client", "httpx", "httpcore", "h11", "anyio", "certifi", "idna", "typing_extensions"}


def test_no_other_distribution_owns_our_names(elsewhere: Path) -> None:
    """Our import names are generic; in an environment of their own nobody else brings the same."""
    program = (
        "from importlib.metadata import packages_distributions as owners\n"
        f"print(sorted((name, owners().get(name)) for name in {sorted(PACKAGES)}))"
    )
    printed = run(str(elsewhere / "python"), "-c", program, cwd=elsewhere)

    assert printed.strip() == str([(name, ["dormice"]) for name in sorted(PACKAGES)])


def test_without_the_extras_the_other_commands_are_there(spine: Path) -> None:
    """Help lists them, each explains itself, and a command that is gone is none."""
    helped = run_in_spine(spine, "-m", "starter", "--help")
    listed = {line.split()[0] for line in helped.stdout.splitlines() if line.startswith("  ") and line[2:3].strip()}
    words = {point.name.partition(".")[0] for point in entry_points(group="dormice.commands")}

    assert helped.returncode == 0, helped.stderr
    assert words - listed == COMMANDS_OF_EXTRAS
    for word in words - COMMANDS_OF_EXTRAS:
        explained = run_in_spine(spine, "-m", "starter", word, "--help")
        assert explained.stdout.startswith(f"Usage: dormice {word}"), explained.stderr

    assert "rehearse" not in run_in_spine(spine, "-m", "starter", "spark", "--help").stdout
    assert "No such command 'serve'" in run_in_spine(spine, "-m", "starter", "serve").stderr


def test_without_the_extras_every_other_module_can_be_imported(spine: Path) -> None:
    """Nothing else needs them, with everything installed that is optional."""
    imported = run_in_spine(spine, "-c", IMPORT_ALL)

    assert imported.returncode == 0, imported.stderr


def test_without_the_extras_the_core_tests_pass(spine: Path) -> None:
    """Messages, signals and packs work as the tutorial shows them."""
    for folder in ("tests", "bench", "cluster", "examples"):
        shutil.copytree(ROOT / folder, spine / folder, ignore=shutil.ignore_patterns("results", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", spine)
    chosen = [f"tests/fundamentals/{name}" for name in CORE_TESTS]
    tested = run_in_spine(spine, "-m", "pytest", "-q", "-x", "-m", "not long", *chosen)

    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert " passed" in tested.stdout
