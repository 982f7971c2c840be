"""Completion: the script that `dormice completion` prints makes a shell offer what the program accepts."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from starter.cli.main import run
from starter.cli.processes.completion import SHELLS
from starter.cli.program import COMPLETE_VARIABLE


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("dormice ga", ["gates"]),
        ("dormice gates ", ["list", "close", "open"]),
        ("dormice bridge sta", ["status"]),
        ("dormice list --st", ["--state"]),
        ("dormice list --state pa", ["paused", "parked"]),
        ("dormice --config se", ["default"]),
        ("dormice spark report man", ["dirnames"]),
        ("dormice completion z", ["zsh"]),
    ],
)
def test_bash_completes(line: str, offered: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Commands, options, their values; for names of files, the shell's own completion."""
    assert run(["completion", "bash"]) == 0
    words = [*line.split(), *([""] if line.endswith(" ") else [])]
    script = f"""{capsys.readouterr().out}
COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}
compopt() {{ COMPREPLY+=("$2"); }}
_dormice_completion {Path(sys.executable).with_name("dormice")}; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash"], input=script, cwd=tmp_path, capture_output=True, text=True, check=True)  # noqa: S607

    assert done.stdout.split() == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_understands_its_script(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It asks the program, so it stays right when commands change."""
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out

    assert COMPLETE_VARIABLE in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)
