"""`dormice init`: a folder that works as it stands, or nothing at all."""

import signal
import sys
from pathlib import Path

import pytest
from temporalio.client import Client

from shared.settings import Settings
from starter.cli.main import run as main_of
from starter.control import Control
from starter.local.project import FILES
from tests.acceptance.conftest import ROOT, Run, Spawn
from tests.conftest import wait_until
from tests.support.dev import begin_dev
from tests.support.processes import run_to_end

pytestmark = pytest.mark.timeout(120)

FOUND = "starter/local/project_files"


async def test_what_is_made_works_at_once(run: Run, spawn: Spawn, environment: dict[str, str], tmp_path: Path) -> None:
    """Its test passes, a development server takes its handler, and its messages run through."""
    made = await run("init", "reminders")
    folder = tmp_path / "reminders"
    kept = {name: value for name, value in environment.items() if not name.startswith(("DORMICE_", "TEMPORAL_"))}
    code, out, err = await run_to_end(sys.executable, "-m", "pytest", "-q", cwd=folder, env=kept)
    dev = await begin_dev(spawn, cwd=folder, env=kept)
    assert dev.address is not None, dev.said.decode()
    loading = await spawn("load", "messages.jsonl", cwd=folder, env={**kept, "TEMPORAL_ADDRESS": dev.address})
    _, said = await loading.communicate()
    control = Control(await Client.connect(dev.address), Settings())

    async def are_done() -> bool:
        views = [await control.show("reminders", name) for name in ("once", "twice")]
        return [view.ended and view.ended["result"] for view in views] == [{"calls": 1}, {"calls": 2}]

    await wait_until(are_done, "the messages have run through")
    often = await control.show("reminders", "often")
    dev.process.send_signal(signal.SIGINT)

    assert (made.code, made.out) == (0, "")
    assert made.err.startswith("reminders: handlers.py, test_handlers.py, messages.jsonl, ")
    assert code == 0, out + err
    assert "2 passed" in out
    assert (loading.returncode, b"3 rows: 3 started" in said) == (0, True)
    assert often.priority == 4
    assert await dev.process.wait() == 0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of this test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_path_and_an_empty_folder_are_fine(here: Path) -> None:
    """The last part of a path is the kind; whoever has made the folder already is not sent away."""
    (here / "below" / "feeds").mkdir(parents=True)

    assert main_of(["init", "below/feeds"]) == 0
    assert {path.name for path in (here / "below" / "feeds").iterdir()} == set(FILES)
    assert '@handler("feeds"' in (here / "below" / "feeds" / "handlers.py").read_text("utf-8")
    assert [path.name for path in (here / "below").iterdir()] == ["feeds"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("full", "NAME: full is there already, and not empty; choose another name, or remove it first"),
        ("file", "NAME: file is there already; choose another name, or remove it first"),
        ("none/such", "NAME: none/such can't be made (No such file or directory); choose a place"),
        ("Feeds", "NAME: is 'Feeds'; use 1 to 50 lower-case letters, digits, '_' and '-', a letter first"),
        (".", "NAME: is '.'; use 1 to 50"),
        ("x" * 51, "NAME: is 'xxx"),
        ("echo", "NAME: kind 'echo' has a handler already; choose another name"),
    ],
)
def test_what_can_not_become_a_folder_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, sentence: str
) -> None:
    """One sentence, exit code 2, and nothing is left behind."""
    (here / "full").mkdir()
    (here / "full" / "mine").touch()
    (here / "file").touch()

    code = main_of(["init", name])
    said = capsys.readouterr()

    assert (code, said.out) == (2, "")
    assert said.err.startswith(f"dormice: {sentence}")
    assert said.err.count("\n") == 1
    assert {str(path.relative_to(here)) for path in here.rglob("*")} == {"full", "full/mine", "file"}


def test_every_template_is_used() -> None:
    """What lies beside them would be shipped for nobody."""
    assert {path.name for path in (ROOT / FOUND).iterdir()} == set(FILES.values())
