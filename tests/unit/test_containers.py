"""`./run containers`, as far as it can be told without building anything."""

import re
from pathlib import Path

import pytest

from cluster.containers.__main__ import SKIPPED, main
from cluster.containers.engine import DOCKERFILE, ROOT, Buildah, Docker, build_arguments


def test_it_is_skipped_in_a_sentence_where_no_engine_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a Docker daemon nor buildah on the PATH: exit code 0, and what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert main([]) == 0
    assert capsys.readouterr().err == f"{SKIPPED}\n"


def test_wrong_usage_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, as everywhere."""
    assert main(["--bases", "x"]) == 2
    assert "--bases" in capsys.readouterr().err


def test_the_arguments_of_a_build_are_those_of_the_dockerfile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever mirror and authorities this machine has."""
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(name, "https://mirror.example/simple")
    known = set(re.findall(r"^ARG (\w+)", DOCKERFILE.read_text("utf-8"), re.MULTILINE))

    assert set(build_arguments("base")) == known - {"REVISION"}


def test_docker_runs_the_image_without_rights() -> None:
    """Read-only but for /tmp, and with no capability."""
    worker = Docker().command_to_run("dormice:1", ["dormice", "worker"], {"TEMPORAL_ADDRESS": "here:7233"})
    with worker as command:
        assert command[command.index("--name") + 1].startswith("dormice-")

    assert command[:2] == ["docker", "run"]
    assert command[-4:] == ["--entrypoint", "dormice", "dormice:1", "worker"]
    assert {"--read-only", "--cap-drop", "ALL", "no-new-privileges", "TEMPORAL_ADDRESS=here:7233"} <= set(command)


def test_the_engines_have_the_names_of_their_programs() -> None:
    """They are told to whoever waits for a build."""
    assert (Docker().name, Buildah().name) == ("docker", "buildah")


def test_ci_leaves_it_out() -> None:
    """It needs an engine, and minutes."""
    assert "containers" not in (ROOT / ".ci" / "run").read_text("utf-8")
