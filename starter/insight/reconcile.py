"""Reconcile: finds where the messages of a file are on the server, and what is alive there beside them."""

from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import MessageNotFound
from shared.messages.envelope import Envelope
from shared.messages.placement import workflow_id
from starter.control import Control
from starter.files.load import RejectFile
from starter.files.rows import Row, RowSource
from starter.local.disk import explain_write_error

# alphabetical as in time, so the maximum is the later one
ALIVE = "alive"
FINISHED = "finished"
STOPPED = "stopped"
PLACES = {  # by state
    "active": ALIVE,
    "paused": ALIVE,
    "parked": ALIVE,
    "done": FINISHED,
    "expired": FINISHED,
    "stopped": STOPPED,
}
LOOKED_UP_MAX = 2000
"""Messages missing in the index that are looked up one by one: it lags behind by a moment."""
EXAMPLES_MAX = 20
UNKNOWN = "the server knows nothing of it"


async def look_up_place(control: Control, kind: str, message_id: str) -> tuple[str, str]:
    """Look one message up, never in the index: gives its place, or "" and what is wrong."""
    try:
        state = (await control.look_up(kind, message_id)).state
    except MessageNotFound:
        return "", UNKNOWN
    return PLACES.get(state, ""), f"its workflow {workflow_id(kind, message_id)} is {state}"


@dataclass(slots=True)
class FileReconciliation:
    """Where the messages of one file are; takes about 200 bytes of memory for each message of the file's kinds.

    A message that finished longer ago than the namespace's retention counts as missing.
    """

    control: Control
    source: RowSource
    alive: int = 0
    finished: int = 0
    stopped: int = 0
    missing: int = 0
    examples: list[str] = field(default_factory=list[str])
    """A sentence about each of the first messages that are missing; all are in `missing_path`."""
    others: int = 0
    """Messages of the file's kinds that are alive and not in the file; their names are in `others_path`."""
    is_complete: bool = False
    """The whole file was read, and none of its messages is missing."""
    _known: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    _missing_file: RejectFile = field(init=False)

    def __post_init__(self) -> None:
        self._missing_file = RejectFile(self.missing_path, self.source.number_name, "--reconcile")

    @property
    def missing_path(self) -> Path:
        """Where the rows of missing messages are written, in the form of rejected rows."""
        return Path(f"{self.source.name}.missing.jsonl")

    @property
    def others_path(self) -> Path:
        """Where the names of the other messages are written, one a line."""
        return Path(f"{self.source.name}.others.txt")

    async def add(self, row: Row, envelope: Envelope) -> None:
        """Find the place of a row's message; raises RetryLater when the server, or a pack that must be asked, is away.

        Lists what is known of a kind when its first row comes.
        """
        kind = envelope.kind
        message_id = envelope.id
        if kind not in self._known:
            self._known[kind] = {name: PLACES[state] async for name, state in self.control.list_known(kind)}

        place = self._known[kind].pop(message_id, "")
        problem = UNKNOWN
        if not place and self.missing < LOOKED_UP_MAX:
            place, problem = await look_up_place(self.control, kind, message_id)

        if place:
            setattr(self, place, getattr(self, place) + 1)
            return

        self.missing += 1
        self._missing_file.write(row, "id", problem)
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"row {row.number}: {workflow_id(kind, message_id)} is missing, {problem}")

    def close(self, *, is_complete: bool) -> None:
        """Count the others, and put both files in their places, or remove those of an earlier time."""
        self._missing_file.close(is_complete=is_complete)
        self.is_complete = is_complete and not self.missing
        if not is_complete:
            return

        try:
            self.others_path.unlink(missing_ok=True)
            with self.others_path.open("w", encoding="utf-8") as file:
                for kind, known in self._known.items():
                    for message_id in (name for name, place in known.items() if place == ALIVE):
                        self.others += 1
                        file.write(f"{workflow_id(kind, message_id)}\n")
            if not self.others:
                self.others_path.unlink()
        except OSError as exc:
            raise explain_write_error("--reconcile", self.others_path, exc) from exc
