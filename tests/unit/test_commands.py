"""Commands are found by entry points: each by its first word, those of other distributions as our own."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from shared.errors import Misconfigured
from starter.cli.main import run
from starter.cli.program import ENTRY_POINT_GROUP, HELP_ORDER, program, walk
from worker.options import parse

WORDS = {point.name.partition(".")[0] for point in entry_points(group=ENTRY_POINT_GROUP)}
GREETING = '''
from starter.cli.program import program

@program.command("greet", prints_data=False)
def run(args, settings):
    """Say hello."""
    print("hello")
    return 0
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which this process finds distributions and modules."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def install(site: Path, name: str, *commands: str) -> None:
    """Make a distribution with entry points of commands, each like `greet = module`."""
    folder = site / f"{name}-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("\n".join((f"[{ENTRY_POINT_GROUP}]", *commands, "")))


def read_refusal(*words: str) -> str:
    """Give the sentence that a command line is refused with."""
    with pytest.raises(Misconfigured) as caught:
        parse(program, "dormice", words)
    return str(caught.value)


def test_help_has_a_place_for_each_command() -> None:
    """Its order names what is installed, and nothing that is not."""
    assert set(HELP_ORDER) == WORDS


@pytest.mark.parametrize("word", sorted(WORDS))
def test_a_command_is_found_by_its_first_word(word: str) -> None:
    """Each command that begins with it is run by its name, and explains itself."""
    names = [each.command_path.split()[1:] for each in walk()]

    for words in [name for name in names if name[:1] == [word]]:
        assert parse(program, "dormice", [*words, "--help"]) == 0


def test_a_command_loads_no_other_one() -> None:
    """So it begins sooner, and goes on when another one is broken."""
    code = (
        "import sys\n"
        "from starter.cli.program import program\n"
        "from worker.options import parse\n"
        "parse(program, 'dormice', ['show', 'echo:1'])\n"
        "print(sorted(name for name in sys.modules if name.startswith('starter.cli.messages.')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "'starter.cli.messages.show'" in ran.stdout
    assert "'starter.cli.messages.load'" not in ran.stdout


def test_another_distribution_brings_a_command(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It stands below our own, and runs as they do."""
    (site / "dm_greeting.py").write_text(GREETING)
    install(site, "dm_greetings", "greet = dm_greeting")

    assert [*walk()][-1].command_path == "dormice greet"
    assert (run(["greet"]), capsys.readouterr().out) == (0, "hello\n")


def test_a_broken_command_disturbs_no_other_one(site: Path) -> None:
    """It is named where it is asked for, or where all are."""
    install(site, "dm_broken", "greet = dm_absent")

    assert parse(program, "dormice", ["show", "echo:1"])
    for word in ("greet", "--help"):
        refusal = read_refusal(word)
        assert refusal.startswith("entry point greet = dm_absent can't be loaded (ModuleNotFoundError(")


def test_two_commands_of_one_name_are_refused(site: Path) -> None:
    """Neither wins, because nobody could say which."""
    install(site, "dm_other", "show = dm_other")

    both = {"starter.cli.messages.show", "dm_other"}
    refusal = read_refusal("start")
    assert refusal.startswith("command 'show' is there twice, in ")
    assert all(module in refusal for module in both)
    assert refusal.endswith("; uninstall one of them")
