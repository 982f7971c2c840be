"""The version is one: all places that repeat it agree, and one command writes it to all of them."""

import re
import shutil
import subprocess
import tomllib
from itertools import chain
from pathlib import Path

from tests.support.sources import ROOT

REPEATED = re.compile(r"\bdormice:v?(\d[\w.]*)|\bnewTag: \W?(\d[\w.]*)|^dormice (\d[\w.]*)$", re.MULTILINE)
"""Tags of the image, and what `dormice --version` prints on a page."""

COPIED = ("run", "pyproject.toml", "uv.lock", "CHANGELOG.md", "docker-compose.yml")
NEXT = "98.7.6"


def find_versions(root: Path) -> dict[str, set[str]]:
    """Give what each place says: both distributions, the lock file, image tags and pages."""
    found = {
        name: {tomllib.loads((root / name).read_text("utf-8"))["project"]["version"]}
        for name in ("pyproject.toml", "client/pyproject.toml")
    }
    packages = tomllib.loads((root / "uv.lock").read_text("utf-8"))["package"]
    found["uv.lock"] = {each["version"] for each in packages if each["name"] in ("dormice", "dormice-client")}

    for path in (root / "docker-compose.yml", *(root / "deploy").rglob("*"), *(root / "docs").glob("*.md")):
        if path.is_file():
            tags = REPEATED.findall(path.read_text("utf-8"))
            found[path.relative_to(root).as_posix()] = {version for tag in tags for version in tag if version}

    return {name: versions for name, versions in found.items() if versions}


def test_every_place_has_the_same_version() -> None:
    """The application, its client, what is locked, the image's tag and what pages show."""
    found = find_versions(ROOT)

    assert {"client/pyproject.toml", "uv.lock", "docker-compose.yml", "docs/quickstart.md"} <= found.keys()
    assert set(chain(*found.values())) == found["pyproject.toml"], found


def test_one_command_writes_the_version_everywhere(tmp_path: Path) -> None:
    """With the changelog's heading, and without a trace of the version before where things are deployed."""
    for name in COPIED:
        shutil.copy(ROOT / name, tmp_path)
    for name in ("docs", "deploy"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "client").mkdir()
    shutil.copy(ROOT / "client/pyproject.toml", tmp_path / "client")
    (before,) = find_versions(ROOT)["pyproject.toml"]

    subprocess.run([tmp_path / "run", "version", NEXT], check=True, capture_output=True)
    found = find_versions(tmp_path)
    deployed = [tmp_path / "docker-compose.yml", *filter(Path.is_file, (tmp_path / "deploy").rglob("*"))]

    assert found.keys() == find_versions(ROOT).keys()
    assert set(chain(*found.values())) == {NEXT}
    assert f"\n## [Unreleased]\n\n## [{NEXT}] - 2" in (tmp_path / "CHANGELOG.md").read_text("utf-8")
    assert [path.name for path in deployed if re.search(rf"\b{re.escape(before)}\b", path.read_text("utf-8"))] == []


def test_what_is_no_version_is_refused(tmp_path: Path) -> None:
    """In one sentence, before anything is written."""
    shutil.copy(ROOT / "run", tmp_path)
    ran = subprocess.run([tmp_path / "run", "version", "one"], capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert ran.stderr == "run: 'one' is no version; write X.Y.Z, or X.Y.Zrc1 before a release\n"
