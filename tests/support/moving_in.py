"""Moves from other systems: the commands of docs/moving-in.md as they stand there, and a ledger of who ran what."""

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from activities import Context, Done, Message, Pack, handler
from activities.api.handler import Handler
from starter.control import Control
from starter.local.embedded import EmbeddedServer
from starter.steering.selection import Selection
from tests.conftest import Serve, wait_until
from tests.support.processes import run_to_end

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "moving-in.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
PACK = Pack(packs=2, size=1000, coalesce=timedelta(0))
CLOCK_SECONDS = 2.0  # some of the old systems keep whole seconds


def make_handler(kind: str, encoding: str, ledger: str) -> Handler:
    """Make a handler that writes into the ledger that dormice has run an item, and is done."""

    @handler(kind, encoding=PACK if encoding == "pack" else None)
    async def run(message: Message, ctx: Context) -> Done:
        write_ledger(Path(ledger), "dormice", item_of(message.payload))
        return Done()

    return run


def item_of(payload: Any) -> str:
    """Give the item of a payload, wherever a recipe puts what the old system held."""
    return (payload.get("kwargs") or payload.get("body") or payload)["item"]


def write_ledger(path: Path, who: str, item: str) -> None:
    """Write that somebody has run an item."""
    with path.open("ab", buffering=0) as file:
        file.write(f"{who} {item}\n".encode())


class OldSystem(Protocol):
    """What dormice takes over from; each item has a name of its own."""

    def add(self, item: str, due: datetime) -> None:
        """Add an item as its producers do."""
        ...

    async def run_due(self, *, is_all: bool = False) -> None:
        """Run what is due as its workers do, or as if all were due, and write the ledger."""
        ...

    def pending(self) -> dict[str, datetime]:
        """Give what waits, and until when."""
        ...


@dataclass
class Move:
    """One move of one kind, by one section of the page."""

    section: str
    kind: str
    encoding: str
    folder: Path
    environment: dict[str, str]

    @property
    def ledger(self) -> Path:
        """Who ran what, a line each."""
        return self.folder / "ledger.txt"

    @property
    def runs(self) -> dict[str, list[str]]:
        """Who has run each item."""
        found = defaultdict[str, list[str]](list)
        for line in self.ledger.read_text().splitlines() if self.ledger.exists() else ():
            who, item = line.split()
            found[item].append(who)
        return dict(found)

    def handler(self) -> Handler:
        """Make the handler, and write it down for the commands."""
        arguments = ", ".join(map(repr, (self.kind, self.encoding, str(self.ledger))))
        text = f"from tests.support.moving_in import make_handler\n\nrun = make_handler({arguments})\n"
        (self.folder / "moved.py").write_text(text)
        return make_handler(self.kind, self.encoding, str(self.ledger))

    def find_scripts(self, section: str = "") -> list[str]:
        """Give each block of a section as a shell gets it from somebody who pastes it."""
        text = PAGE.read_text("utf-8").partition(f"\n## {section or self.section}\n")[2].partition("\n## ")[0]
        assert text, section
        return [re.sub(r"^[$>] ", "", block, flags=re.MULTILINE) for block in BLOCK.findall(text)]

    def find_blocks(self, section: str = "") -> list[list[str]]:
        """Give the commands of each block of a section, one by one."""
        return [[f"{each.strip()}\n" for each in block.split(" &&\n")] for block in self.find_scripts(section)]

    async def run(self, *commands: str) -> str:
        """Run commands in one shell, for this move's own kind; gives what they say."""
        script = re.sub(r"\breminder\b", self.kind, "".join(commands))
        code, out, err = await run_to_end("bash", "-ec", script, cwd=self.folder, env=self.environment)
        assert code == 0, f"{script}\n{out}\n{err}"
        return out + err

    async def run_block(self, number: int, *, is_again: bool = False) -> str:
        """Run a block of the section; again, with other names for what `first` stands for."""
        script = self.find_scripts()[number]
        return await self.run(re.sub(r"\bfirst\b", "second", script) if is_again else script)


def make_move(server: EmbeddedServer, prefix: str, kind: str, encoding: str, folder: Path) -> Callable[..., Move]:
    """Give what makes the move of a section, with variables for its commands."""

    def make(section: str, **variables: str) -> Move:
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {
            **os.environ,
            "PATH": programs,
            "PYTHONPATH": f"{ROOT}:{folder}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "DORMICE_TASK_QUEUE_PREFIX": prefix,
            "DORMICE_HANDLERS": "moved",
            **variables,
        }
        return Move(section, kind, encoding, folder, environment)

    return make


async def move_and_return(
    move: Move, old: OldSystem, control: Control, serve: Serve, *, is_brief: bool = False, can_repeat: bool = True
) -> None:
    """Go through a recipe while the old system runs, there and back; each item must be run once, by whom it should.

    A brief move exports once before the last time; `can_repeat` means that a file may be put back twice.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    turn = now + timedelta(hours=1)
    move.environment["H"] = turn.isoformat()
    for number in range(5):
        old.add(f"early-{number}", now - timedelta(seconds=1))
        old.add(f"late-{number}", turn + timedelta(hours=number + 1))
        old.add(f"between-{number}", turn - timedelta(minutes=10))
    async with serve(move.handler()):
        await move.run_block(0)
        await old.run_due()
        for number in range(5, 10):
            old.add(f"late-{number}", turn + timedelta(hours=number + 1))
        if not is_brief:
            assert "5 started, 5 already running" in await move.run_block(0, is_again=True)
        old.add("last", turn - timedelta(minutes=5))

        said = await move.run_block(1)
        assert "complete, nothing is missing" in said
        assert old.pending() == {}
        assert move.runs == {f"early-{number}": ["old"] for number in range(5)}, move.runs

        await _run_some(move, control, turn)
        rest = await _return(move, old, can_repeat=can_repeat)
    await old.run_due(is_all=True)

    assert set(move.runs) - rest == {f"{name}-{n}" for name in ("early", "between") for n in range(5)} | {"last"}
    assert rest == {f"late-{number}" for number in range(10)}
    for item, who in move.runs.items():
        assert who == (["old"] if item in rest or item.startswith("early") else ["dormice"]), item
    assert old.pending() == {}


async def _run_some(move: Move, control: Control, turn: datetime) -> None:
    """Run here what was due before the moment of the move, as if that had come."""

    async def find_due() -> list[str]:
        listed = [each async for each in control.list(Selection(kind=move.kind))]
        due = [each.id for each in listed if each.due_at is not None and each.due_at < turn]
        return due if len(due) == 6 else []

    for message_id in await wait_until(find_due, "what was left over there is listed"):
        await control.run_now(move.kind, message_id)
    await wait_until(lambda: len(move.runs) == 5 + 6, "it has run here")


async def _return(move: Move, old: OldSystem, *, can_repeat: bool) -> set[str]:
    """Bring what is pending back, and give its items."""
    pause_and_export, stop = move.find_scripts("The way back")
    await move.run(pause_and_export)
    await move.run_block(2)
    if can_repeat:
        await move.run_block(2)

    await move.run(stop)
    lines = [json.loads(line) for line in (move.folder / "pending.jsonl").read_text().splitlines()]
    expected = {item_of(line["payload"]): datetime.fromisoformat(line["scheduled_at"]) for line in lines}
    found = old.pending()
    assert found.keys() == expected.keys()
    assert all(abs((found[item] - due).total_seconds()) <= CLOCK_SECONDS for item, due in expected.items())

    return set(expected)
