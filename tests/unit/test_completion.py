"""Completion: the script that `dormice completion` prints makes a shell offer what the program accepts."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from starter.cli.main import run
from starter.cli.processes.completion import SHELLS


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("dormice ga", ["gates"]),
        ("dormice gates ", ["list", "close", "open"]),
        ("dormice bridge sta", ["status"]),
        ("dormice list --st", ["--state"]),
        ("dormice list --state pa", ["paused", "parked"]),
        ("dormice --config se", ["settings.toml"]),
        ("dormice spark report man", ["manifest"]),
        ("dormice completion z", ["zsh"]),
    ],
)
def test_bash_completes(line: str, offered: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Commands, options, their values, and names of files."""
    assert run(["completion", "bash"]) == 0
    (tmp_path / "settings.toml").touch()
    (tmp_path / "manifest").mkdir()
    words = [*line.split(), *([""] if line.endswith(" ") else [])]
    script = f"""{capsys.readouterr().out}
COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}
_shtab_dormice; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash"], input=script, cwd=tmp_path, capture_output=True, text=True, check=True)  # noqa: S607

    assert done.stdout.split() == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_understands_its_script(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Also names of two words, which a shell would take for two."""
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out

    assert "gates" in script
    assert "bridge status" not in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)
