"""Commands are found by entry points: each by its first word, those of other distributions as our own."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from shared.errors import Misconfigured
from starter.cli.main import run
from starter.cli.parser import ENTRY_POINT_GROUP, HELP_ORDER, build_parser

WORDS = {point.name.partition(".")[0] for point in entry_points(group=ENTRY_POINT_GROUP)}
GREETING = '''
def add(commands):
    """Add a command, as each of dormice's own modules does."""
    commands.add("greet", lambda args, settings: print("hello") or 0, "say hello", prints_data=False)
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


def read_refusal(word: str = "") -> str:
    """Give the sentence that a parser is refused with."""
    with pytest.raises(Misconfigured) as caught:
        build_parser(word)
    return str(caught.value)


def test_help_has_a_place_for_each_command() -> None:
    """Its order names what is installed, and nothing that is not."""
    assert set(HELP_ORDER) == WORDS


@pytest.mark.parametrize("word", sorted(WORDS))
def test_a_command_is_found_by_its_first_word(word: str) -> None:
    """The entry points of a word bring all that begins with it, as those of all words do together."""
    alone = [leaf.prog for leaf in build_parser(word)[1].leaves]
    among_all = [leaf.prog for leaf in build_parser()[1].leaves]

    assert [prog for prog in alone if prog.split()[1] == word] == [p for p in among_all if p.split()[1] == word] != []


def test_a_command_loads_no_other_one() -> None:
    """So it begins sooner, and goes on when another one is broken."""
    code = (
        "import sys\n"
        "from starter.cli.parser import build_parser\n"
        "build_parser('show')\n"
        "print(sorted(name for name in sys.modules if name.startswith('starter.cli.messages.')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "'starter.cli.messages.show'" in ran.stdout
    assert "'starter.cli.messages.load'" not in ran.stdout


def test_another_distribution_brings_a_command(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It stands below our own, and runs as they do."""
    (site / "dm_greeting.py").write_text(GREETING)
    install(site, "dm_greetings", "greet = dm_greeting")

    assert build_parser()[1].leaves[-1].prog == "dormice greet"
    assert (run(["greet"]), capsys.readouterr().out) == (0, "hello\n")


def test_a_broken_command_disturbs_no_other_one(site: Path) -> None:
    """It is named where it is asked for, or where all are."""
    install(site, "dm_broken", "greet = dm_absent")

    assert build_parser("show")[1].leaves
    for word in ("greet", ""):
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
