"""The built wheel works outside the checkout: nothing that only the source tree has is missed by it."""

import zipfile
from pathlib import Path

import pytest

from starter.local.project import FILES
from tests.support.wheels import ROOT, build_wheel, make_environment, run

pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.long, pytest.mark.timeout(240)]

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
    """`dormice --help` and `dormice handlers` need neither the source tree nor the extras."""
    command = str(elsewhere / "dormice")

    assert "usage: dormice" in run(command, "--help", cwd=elsewhere)
    listed = run(command, "handlers", "--json", cwd=elsewhere)
    assert '"echo"' in listed
    assert '"http"' in listed


def test_the_client_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    """With its types, and with what httpx needs; nothing of dormice itself comes with it, and none of its names."""
    programs = make_environment(tmp_path, str(ROOT / "client"))
    program = (
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
