"""The pack's state: many messages of one kind, each advanced by `decide`; no Temporal in here."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from shared.messages.decision import decide, merge_sources
from shared.messages.json_value import encode_json
from shared.messages.message import MessageState, Outcome
from shared.messages.signals import PullMany, Signal, UnreadableSignal
from shared.packs.cycle import STILL_IN_FLIGHT, read_result
from shared.packs.entry import ID, OTHERS, Entry, apply_change, measure, sources_of, to_state
from workflows.packs.calls.batch import Batch, find_due
from workflows.packs.calls.in_flight import RunningMessage
from workflows.packs.calls.suspects import SUSPECTS_SPLIT
from workflows.packs.limits import PackConfig
from workflows.packs.messages import PackMessages
from workflows.packs.requests.admission import (
    clamp_due,
    find_repetition,
    is_newer,
    may_begin,
    pick_pulled,
    to_signal,
)
from workflows.packs.requests.forwarding_queue import ForwardingQueue
from workflows.packs.requests.receipts import FULL, KNOWN, REVISED, STOPPED, PackReceipts


class PackState:
    """All that a pack is between two events: new messages, signals and results change it."""

    def __init__(self, wire: Mapping[str, Any]) -> None:
        """Read the wire form; raises TypeError for anything else."""
        self.config = PackConfig(wire)
        self.forwarding = ForwardingQueue(wire.get("strays", ()))
        self.messages = PackMessages(self.config, self.forwarding, wire)
        # parts of the messages, for those who need only one
        self.limits = self.messages.limits
        self.entries = self.messages.entries
        self.in_flight = self.messages.in_flight
        self.selection = self.messages.selection
        self.receipts = PackReceipts(wire.get("receipts", {}))

    def encode(self, **extra: Any) -> bytes:
        """Give the wire form that the next run starts from, as JSON with what else it is to have."""
        entries = self.entries.encode()
        self.limits.note_stored_share(entries)
        suspects = self.selection.suspects
        optional = {
            "ended": list(self.limits.ended.values()),
            "in_flight": self.in_flight.dump(),
            "suspects": sorted(suspects),
            "suspect_batches": suspects.batches(),
            "receipts": dict(self.receipts),
            "strays": list(self.forwarding),
        }
        others = {"bytes": self.limits.bytes, **{name: value for name, value in optional.items() if value}, **extra}

        return b'%b,"entries":%b}' % (encode_json(self.config.heading() | others)[:-1], entries)

    def admit(self, chunk: Mapping[str, Any], now: float) -> None:
        """Admit a chunk of entries, except those that are known or find no room; its receipt says which.

        A redelivered chunk changes nothing. `restarts` also admits messages that have finished. With `revises`, each
        entry is a source's record: it revises or stops a message that is alive, and starts a finished one again, unless
        the record's offset is not newer than the last one applied. Entries that were due when the chunk was sent
        (`sent_at`) are due at once, also if the sender's clock is ahead.
        """
        token = chunk["token"]
        if token in self.receipts:
            return

        self.messages.note_change()
        self.config.size = chunk.get("size", self.config.size)
        self._set_coalesce(chunk.get("coalesce", self.config.within.coalesce))
        self.limits.forget_old(now)

        outcomes: dict[str, list[int]] = {}
        moved: dict[int, list[int]] = {}
        # a sender with the same number of packs has hashed each entry already, which is the most expensive part
        is_placed = chunk.get("packs") == self.config.packs
        for position, entry in enumerate(chunk["entries"]):
            if not is_placed and (index := self.messages.moved_to(entry[ID])) is not None:
                moved.setdefault(index, []).append(position)
            elif outcome := self._take_in(entry, chunk, now):
                outcomes.setdefault(outcome, []).append(position)

        self.forwarding.forward_chunk(chunk, moved)
        for entry in chunk.get("ended", ()):
            size = measure(entry)
            if self.messages.find(entry[ID]) is None and self.limits.make_room(size):
                self.limits.bytes += size
                self.limits.ended[entry[ID]] = entry
        moved_by = self.config.packs if moved else 0
        crowding = self.limits.measure_crowding(len(self.messages))
        self.receipts.note_chunk(token, outcomes, now, moved_by=moved_by, crowding=crowding)

    def _set_coalesce(self, coalesce: float) -> None:
        if coalesce != self.config.within.coalesce:
            self.entries.open_all()  # what is closed has noted how long it can wait
            self.config.within = replace(self.config.within, coalesce=coalesce)

    def _take_in(self, entry: Entry, chunk: Mapping[str, Any], now: float) -> str:
        """Admit one entry; return why not, or an empty string."""
        message_id = entry[ID]
        limits = self.limits
        ended = limits.ended
        revises = chunk.get("revises", False)
        clamp_due(entry, chunk.get("sent_at", now), now)

        present = self.messages.find(message_id)
        repeated = None if present is None else find_repetition(entry, present, revises=revises)
        if repeated is not None:
            return repeated

        if present is not None and not present.ended:
            return self._revise(entry, present, now) if revises else KNOWN
        if not may_begin(entry, chunk, present):
            return KNOWN

        if message_id in ended and sources_of(entry):
            entry[OTHERS]["sources"] = merge_sources(sources_of(ended[message_id]), sources_of(entry))
        size = measure(entry)
        may_exceed = chunk.get("is_moving") and limits.bytes + size <= limits.moving_bytes_max
        if not limits.make_room(size) and not may_exceed:
            return FULL

        if message_id in ended:  # unless it has just been forgotten to make room
            limits.bytes -= ended.forget(message_id)
        limits.bytes += size
        self.entries[message_id] = entry
        return ""

    def _revise(self, entry: Entry, present: MessageState | None, now: float) -> str:
        """Apply a record to a message that is alive; return what became of it."""
        asked = to_state(entry, self.config.kind, self.config.lane)
        if not is_newer(entry, present):
            return KNOWN
        if present is not None and not asked.ended and not self.limits.can_grow(present.payload, asked.payload):
            return f"the payload {self.limits.explain_no_room()}"

        self.messages.steer(asked.id, to_signal(asked), now)
        return STOPPED if asked.ended else REVISED

    def steer(self, ids: Sequence[str], signal: Signal | UnreadableSignal, now: float, token: str = "") -> None:
        """Apply a signal to messages; its receipt notes ids not alive. UnreadableSignal signals are not forwarded."""
        if token and token in self.receipts:
            return

        missing: list[int] = []
        moved: dict[int, list[int]] = {}
        for position, message_id in enumerate(ids):
            if message_id in self.in_flight or message_id in self.entries:
                self.messages.steer(message_id, signal, now)
            elif (index := self.messages.moved_to(message_id)) is not None:
                moved.setdefault(index, []).append(position)
            else:
                missing.append(position)

        if isinstance(signal, UnreadableSignal):
            moved = {}  # another pack could not read it either
        else:
            self.forwarding.forward_steering(ids, signal, token, moved)
        if token:
            self.receipts.note_signal(token, missing, moved, now)

    def pull_forward(self, pull: PullMany) -> None:
        """Make the earliest messages that may run ahead of time due now; a redelivered pull does nothing."""
        if pull.token not in self.receipts:
            for message_id, signal in pick_pulled(self.entries.read(), pull):
                self.messages.steer(message_id, signal, pull.at)
            self.receipts.note_signal(pull.token, [], {}, pull.at)

    def resize(self, packs: int) -> None:
        """Set a higher number of packs: messages of other packs leave, now or once their handlers have ended."""
        if packs > self.config.packs:
            self.config.packs = packs
            self.messages.send_away()

    def take(self, lanes: Collection[str], now: float, token: str) -> Batch | None:
        """Make a batch of what is due on one of the lanes, in the order of `BatchSelection`.

        Returns None until a message can wait no longer; then the batch takes everything due by now.
        """
        self.receipts.forget_old(now)
        if not self.messages.has_due(lanes, now):
            return None

        due = find_due(self.entries.open_due(now), lanes, self.config.lane, now)
        batch = self.selection.fill(token, due, self.limits.bytes)
        if batch is not None:
            self.messages.begin(batch)
        return batch

    def apply_results(self, batch: Batch, results: Sequence[Any], now: float) -> None:
        """Apply what a batch's calls have come to, in the order of `batch.left`; see `shared.packs.cycle`."""
        self.messages.note_change()
        if len(results) == len(batch.ids):  # its first answer, which says how many calls have begun
            self.selection.limit.adapt(len(results), len(results) - sum(result is None for result in results))

        left: list[int] = []
        for position, result in zip(batch.left, results, strict=True):
            if result == STILL_IN_FLIGHT:
                left.append(position)
            elif result is None:
                self._hand_back(self.in_flight.end(batch, position), now)
            else:
                self._apply_result(self.in_flight.end(batch, position), result, now)

        self.in_flight.set_left(batch, left)

    def _hand_back(self, running: RunningMessage, now: float) -> None:
        """Let a message whose handler has not been called be due as it was."""
        if running.state is None and running.entry[ID] not in self.messages.leaving:
            self.entries[running.entry[ID]] = running.entry
            return
        outcome = Outcome("handed_back", reason="its batch was over before it began")
        self.messages.put(decide(running.read(self.config.kind, self.config.lane), outcome, now), running.size, now)

    def _apply_result(self, running: RunningMessage, result: Any, now: float) -> None:
        message_id: str = running.entry[ID]
        self.selection.suspects.clear_of(message_id)
        if isinstance(result, list) and running.state is None and message_id not in self.messages.leaving:
            entry = apply_change(running.entry, cast("Entry", result))
            growth = measure(entry) - measure(running.entry)
            if self.limits.make_room(growth):
                self.limits.bytes += growth
                self.entries[message_id] = entry
                return

        state = running.read(self.config.kind, self.config.lane)
        outcome, spread = read_result(running.entry, cast("Any", result), self.config.lane, self.config.within)
        after = decide(state, self.limits.bound(state, outcome), outcome.ended_at or now, spread=spread)
        self.messages.put(after, running.size, now)

    def apply_to_left(self, batch: Batch, outcome: Outcome, now: float) -> None:
        """Decide alike on all messages of a batch that are still in flight."""
        for position in batch.left:
            running = self.in_flight.end(batch, position)
            self.messages.put(decide(running.read(self.config.kind, self.config.lane), outcome, now), running.size, now)
        self.in_flight.set_left(batch, ())

    def lose_batch(self, batch: Batch, reason: str, now: float, tries: int) -> None:
        """Decide on a batch that was lost in every try: a single message has failed, several are suspects."""
        if len(batch.left) > 1:
            for position in batch.left:
                self.selection.suspects.add(batch.ids[position], len(batch.left) // SUSPECTS_SPLIT)
            self.apply_to_left(batch, Outcome("handed_back", reason=reason), now)
            return

        # each try has called the handler of a single message, and only workers know its own limit of attempts
        running = self.in_flight.end(batch, batch.left[0])
        state = running.read(self.config.kind, self.config.lane)
        tried = state._replace(attempt=state.attempt + tries - 1)
        self.selection.suspects.add(state.id, 1)
        self.messages.put(decide(tried, Outcome("failed", reason=reason, max_attempts=0), now), running.size, now)
        self.in_flight.set_left(batch, ())
