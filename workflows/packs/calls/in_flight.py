"""Messages in flight: those whose handlers are at work, in which batch, and what signals have changed of them since."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shared.messages.decision import begin
from shared.messages.message import MessageState
from shared.packs.entry import Entry, measure, to_state
from workflows.packs.calls.batch import Batch


class RunningMessage(NamedTuple):
    """A message whose handler is at work in the batch with this token.

    `state` is the message after the signals that came since, None without any; `growth` is the bytes they added.
    """

    token: str
    entry: Entry
    state: MessageState | None = None
    growth: int = 0

    @property
    def size(self) -> int:
        """The bytes that the message takes in the pack."""
        return measure(self.entry) + self.growth

    def read(self, kind: str, lane: str) -> MessageState:
        """Give the message as it is now; `lane` is the pack's own."""
        return self.state or begin(to_state(self.entry, kind, lane))


class InFlight:
    """The batches of a pack whose calls are in flight, by token, and their messages, by id."""

    def __init__(self, wire: Iterable[Mapping[str, Any]] = ()) -> None:
        self.batches: dict[str, Batch] = {}
        self.messages: dict[str, RunningMessage] = {}
        for batch in wire:
            self._load(batch)

    def __len__(self) -> int:
        return len(self.messages)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self.messages

    def begin(self, batch: Batch) -> None:
        """Add a batch that begins."""
        self.batches[batch.token] = batch
        for message_id, entry in zip(batch.ids, batch.entries, strict=True):
            self.messages[message_id] = RunningMessage(batch.token, entry)

    def change(self, state: MessageState, growth: int) -> None:
        """Replace a message by what a signal made of it, which added `growth` bytes."""
        running = self.messages[state.id]
        self.messages[state.id] = running._replace(state=state, growth=running.growth + growth)

    def end(self, batch: Batch, position: int) -> RunningMessage:
        """Take a message out whose outcome has come."""
        return self.messages.pop(batch.ids[position])

    def set_left(self, batch: Batch, positions: Sequence[int]) -> None:
        """Keep which positions of a batch are still in flight; a batch without any is forgotten."""
        batch.left = list(positions)
        batch.entries = []  # its messages have their own, and the activity has been given them
        if not positions:
            del self.batches[batch.token]

    def has_begun_none(self, lane: str) -> bool:
        """Whether no batch of a lane is on its way to a worker."""
        return not any(batch.lane == lane and not batch.queue for batch in self.batches.values())

    @property
    def is_answered(self) -> bool:
        """Whether every batch has answered, so that a process is known which holds its calls."""
        return all(batch.queue for batch in self.batches.values())

    def entries(self) -> list[Entry]:
        """Give the entries of the messages as they were when their batches began."""
        return [running.entry for running in self.messages.values()]

    def dump(self) -> list[dict[str, Any]]:
        """Give the wire form from which the next run goes on to wait for the calls."""
        return [
            {
                "token": batch.token,
                "lane": batch.lane,
                "queue": batch.queue,
                "begun_at": batch.begun_at,
                "asked_late": batch.asked_late,
                "calls": list(self._dump_calls(batch)),
            }
            for batch in self.batches.values()
        ]

    def _dump_calls(self, batch: Batch) -> Iterator[list[Any]]:
        for position in batch.left:
            running = self.messages[batch.ids[position]]
            state = None if running.state is None else running.state.dump()
            yield [position, running.entry[0], running.entry, state, running.growth]

    def _load(self, wire: Mapping[str, Any]) -> None:
        calls: list[Any] = wire["calls"]
        batch = Batch(wire["token"], wire["lane"], ids=[""] * (calls[-1][0] + 1), queue=wire["queue"])
        batch.begun_at = wire["begun_at"]
        batch.asked_late = wire["asked_late"]

        for position, message_id, entry, state, growth in calls:
            batch.ids[position] = message_id
            batch.left.append(position)
            loaded = None if state is None else MessageState.load(state)
            self.messages[message_id] = RunningMessage(batch.token, entry, loaded, growth)

        self.batches[batch.token] = batch
