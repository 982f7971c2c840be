"""The built wheel works outside the checkout: nothing that only the source tree has is missed by it."""

import zipfile
from pathlib import Path

import pytest

from starter.local.project import FILES
from tests.wheels import ROOT, build_wheel, make_environment, run

pytestmark = [pytest.mark.heavy, pytest.mark.long, pytest.mark.timeout(120)]

PACKAGES = {"shared", "activities", "workflows", "worker", "starter", "spark"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built the way a release is."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment far from the checkout with nothing but the wheel and what it asks for."""
    return make_environment(tmp_path_factory.mktemp("elsewhere"), str(wheel))


def test_the_wheel_holds_our_packages_and_nothing_else(wheel: Path) -> None:
    """Tests, benchmarks and examples stay at home; every module, template, digest and figure of ours is in."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}

    templates = {f"starter/local/project_files/{template}" for template in FILES.values()}
    assert names == sources | templates | {"starter/local/kafka/jars.sha256", "starter/insight/measured.json"}


def test_the_installed_command_runs_outside_the_checkout(elsewhere: Path) -> None:
    """`dormice --help` and `dormice handlers` need neither the source tree nor the extras."""
    command = str(elsewhere / "dormice")

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
    printed = run(str(elsewhere / "python"), "-c", program, cwd=elsewhere)

    assert printed.strip() == str([(name, ["dormice"]) for name in sorted(PACKAGES)])
