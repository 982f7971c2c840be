"""The pack's state: many messages of one kind, each advanced by `decide`; no Temporal in here."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from shared.lanes import LANES
from shared.messages.decision import decide, merge_sources
from shared.messages.json_value import encode_json
from shared.messages.message import MessageState, Outcome
from shared.messages.placement import pack_index
from shared.messages.signals import PullMany, Revise, Signal, UnreadableSignal
from shared.packs.counts import count_entries
from shared.packs.cycle import STILL_IN_FLIGHT, to_outcome
from shared.packs.entry import (
    ID,
    OTHERS,
    Entry,
    apply_change,
    lane_of,
    measure,
    shorten,
    sources_of,
    to_entry,
    to_state,
)
from workflows.packs.admission import clamp_due, find_repetition, is_newer, may_begin, pick_pulled, to_signal
from workflows.packs.calls.batch import Batch, BatchLimit, fill_batch, find_due, find_lane, sort_in_turn, to_ids
from workflows.packs.calls.in_flight import InFlight, RunningMessage
from workflows.packs.calls.run_now_queue import RunNowQueue
from workflows.packs.calls.suspects import SUSPECTS_SPLIT, Suspects
from workflows.packs.entries import PackEntries
from workflows.packs.forwarding_queue import ForwardingQueue, find_leaving, remove_leaving
from workflows.packs.limits import PackLimits
from workflows.packs.receipts import FULL, KNOWN, REVISED, STOPPED, PackReceipts
from workflows.packs.summary import PackSummary

MOVING_SHARE = 3
"""What moves from another pack is taken beyond the limit, for it has left there already; but the state must still be
one that the server stores. More packs hold less each, so no pack that grows comes near this."""


class PackState(PackLimits):
    """All messages of one pack; mutable, so that a change of one does not copy a thousand."""

    def __init__(self, wire: Mapping[str, Any]) -> None:
        super().__init__(wire)
        self.entries = PackEntries(wire.get("entries", ()), self.lane)
        self.in_flight = InFlight(wire.get("in_flight", ()))
        self.receipts = PackReceipts(wire.get("receipts", {}))
        self.forwarding = ForwardingQueue(wire.get("strays", ()))
        # those that leave once their handlers have ended, each with its new pack; a run may end before that
        self.leaving = find_leaving(self.in_flight.messages, self.packs, self.index)
        self._suspects = Suspects(wire.get("suspects", ()), wire.get("suspect_batches", {}))
        self._run_now = RunNowQueue()
        self._batches = 0
        self._batch_limit = BatchLimit()
        self._summary: PackSummary | None = None  # None, and no wakes: a message has changed
        self._wakes: dict[tuple[str, ...], float] = {}

    def encode(self, **extra: Any) -> bytes:
        """Give the wire form that the next run starts from, as JSON with what else it is to have."""
        entries = self.entries.encode()
        self._note_stored_share(entries)
        optional = {
            "ended": list(self._ended.values()),
            "in_flight": self.in_flight.dump(),
            "suspects": sorted(self._suspects),
            "suspect_batches": self._suspects.batches(),
            "receipts": dict(self.receipts),
            "strays": list(self.forwarding),
        }
        others = {"bytes": self.bytes, **{name: value for name, value in optional.items() if value}, **extra}

        return b'%b,"entries":%b}' % (encode_json(self.heading() | others)[:-1], entries)

    def counts(self, now: float) -> dict[str, Any]:
        """Count what the pack holds, for its memo."""
        return count_entries(self.entries.read(), self.in_flight.entries(), self.lane, now)

    def __len__(self) -> int:
        """Count the messages that are alive."""
        return len(self.entries) + len(self.in_flight)

    def find(self, message_id: str) -> MessageState | None:
        """Give a message, alive or finished a while ago."""
        running = self.in_flight.messages.get(message_id)
        if running is not None:
            return running.read(self.kind, self.lane)
        entry = self._ended.get(message_id) or self.entries.get(message_id)
        return None if entry is None else to_state(entry, self.kind, self.lane)

    def finished(self) -> Iterator[MessageState]:
        """Give those that finished a while ago, by id."""
        yield from filter(None, map(self.find, sorted(self._ended)))

    def alive(self) -> Iterator[MessageState]:
        """Give all that are alive, by id."""
        entries = {entry[ID]: entry for entry in self.entries.read()}
        for message_id in sorted([*entries, *self.in_flight.messages]):
            entry = entries.get(message_id)
            if entry is not None:
                yield to_state(entry, self.kind, self.lane)
            else:
                yield self.in_flight.messages[message_id].read(self.kind, self.lane)

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

        self._note_change()
        self.size = chunk.get("size", self.size)
        self._set_coalesce(chunk.get("coalesce", self.within.coalesce))
        self._forget_old(now)
        self.entries.open_for(len(chunk["entries"]) + len(chunk.get("ended", ())))

        outcomes: dict[str, list[int]] = {}
        moved: dict[int, list[int]] = {}
        # a sender with the same number of packs has hashed each entry already, which is the most expensive part
        is_placed = chunk.get("packs") == self.packs
        for position, entry in enumerate(chunk["entries"]):
            if not is_placed and (index := self.moved_to(entry[ID])) is not None:
                moved.setdefault(index, []).append(position)
            elif outcome := self._take_in(entry, chunk, now):
                outcomes.setdefault(outcome, []).append(position)

        self.forwarding.forward_chunk(chunk, moved)
        for entry in chunk.get("ended", ()):
            size = measure(entry)
            if self.find(entry[ID]) is None and self._makes_room(size):
                self.bytes += size
                self._ended[entry[ID]] = entry
        moved_by = self.packs if moved else 0
        crowding = self.measure_crowding(len(self))
        self.receipts.note_chunk(token, outcomes, now, moved_by=moved_by, crowding=crowding)

    def _set_coalesce(self, coalesce: float) -> None:
        if coalesce != self.within.coalesce:
            self.entries.open_all()  # what is closed has noted how long it can wait
            self.within = replace(self.within, coalesce=coalesce)

    def _take_in(self, entry: Entry, chunk: Mapping[str, Any], now: float) -> str:
        """Admit one entry; return why not, or an empty string."""
        message_id = entry[ID]
        ended = self._ended
        revises = chunk.get("revises", False)
        clamp_due(entry, chunk.get("sent_at", now), now)

        present = self.find(message_id)
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
        may_exceed = chunk.get("is_moving") and self.bytes + size <= MOVING_SHARE * self.bytes_max
        if not self._makes_room(size) and not may_exceed:
            return FULL

        if message_id in ended:  # unless it has just been forgotten to make room
            self.bytes -= ended.forget(message_id)
        self.bytes += size
        self.entries[message_id] = entry
        return ""

    def _revise(self, entry: Entry, present: MessageState | None, now: float) -> str:
        """Apply a record to a message that is alive; return what became of it."""
        asked = to_state(entry, self.kind, self.lane)
        if not is_newer(entry, present):
            return KNOWN
        if present is not None and not asked.ended and not self._can_grow(present.payload, asked.payload):
            return f"the payload {self.explain_no_room()}"

        self._steer(asked.id, to_signal(asked), now)
        return STOPPED if asked.ended else REVISED

    def steer(self, ids: Sequence[str], signal: Signal | UnreadableSignal, now: float, token: str = "") -> None:
        """Apply a signal to messages; its receipt notes ids not alive. UnreadableSignal signals are not forwarded."""
        if token and token in self.receipts:
            return

        missing: list[int] = []
        moved: dict[int, list[int]] = {}
        self.entries.open_for(len(ids))
        for position, message_id in enumerate(ids):
            if message_id in self.in_flight or message_id in self.entries:
                self._steer(message_id, signal, now)
            elif (index := pack_index(message_id, self.packs)) != self.index:
                moved.setdefault(index, []).append(position)
            else:
                missing.append(position)

        if isinstance(signal, UnreadableSignal):
            moved = {}  # another pack could not read it either
        else:
            self.forwarding.forward_steering(ids, signal, token, moved)
        if token:
            self.receipts.note_signal(token, missing, moved, now)

    def _steer(self, message_id: str, signal: Signal | UnreadableSignal, now: float) -> None:
        running = self.in_flight.messages.get(message_id)
        if running is None:
            entry = self.entries[message_id]
            self._put(self._apply(to_state(entry, self.kind, self.lane), signal, now), measure(entry), now)
            return

        before = running.read(self.kind, self.lane)
        state = self._apply(before, signal, now)
        growth = measure(state.payload) - measure(before.payload)
        self.bytes += growth
        self.in_flight.change(state, growth)

    def pull_forward(self, pull: PullMany) -> None:
        """Make the earliest messages that may run ahead of time due now; a redelivered pull does nothing."""
        if pull.token not in self.receipts:
            for message_id, signal in pick_pulled(self.entries.read(), pull):
                self._steer(message_id, signal, pull.at)
            self.receipts.note_signal(pull.token, [], {}, pull.at)

    def moved_to(self, message_id: str) -> int | None:
        """Return the other pack that a message belongs to; None if it belongs here, or its handler is running here."""
        index = pack_index(message_id, self.packs)
        return None if index == self.index or message_id in self.in_flight else index

    def resize(self, packs: int) -> None:
        """Set a higher number of packs: messages of other packs leave, now or once their handlers have ended."""
        if packs <= self.packs:
            return

        self._note_change()
        self.packs = packs
        self.leaving = find_leaving(self.in_flight.messages, packs, self.index)
        for index, (alive, ended) in remove_leaving(self.entries.open_all(), self._ended, packs, self.index).items():
            self.bytes -= sum(map(measure, [*alive, *ended]))
            for entry in alive:
                self._suspects.clear_of(entry[ID])
            self.forwarding.send_away(self.kind, index, alive, ended)

    def has_due(self, lanes: Collection[str], now: float) -> bool:
        """Return whether a message on one of the lanes can wait no longer."""
        return self.find_wake(lanes) <= now

    def take(self, lanes: Collection[str], now: float, token: str) -> Batch | None:
        """Make a batch of what is due on one of the lanes: higher priority first, tenants in turn, then longest due.

        Returns None until a message can wait no longer; then the batch takes everything due by now.
        A message whose last batch was lost with others in it may have caused the loss: see `Suspects`.
        """
        self.receipts.forget_old(now)
        if not self.has_due(lanes, now):
            return None

        due = find_due(self.entries.open_due(now), lanes, self.lane, now)
        if self._suspects:
            due = self._part_suspects(due)
        if not due:
            return None

        self._batches += 1
        lane = find_lane(due, self.lane, self._run_now.urgency)
        ordered = sort_in_turn((e for e in due if lane_of(e, self.lane) == lane), self._run_now.urgency)
        entries = fill_batch(ordered, self.bytes, self._batch_limit.max)
        batch = Batch(token, lane, to_ids(entries), entries, left=list(range(len(entries))))
        self._begin(batch)
        return batch

    def _part_suspects(self, due: list[Entry]) -> list[Entry]:
        """Keep suspects, or all others: in turn, so that neither waits for ever."""
        sound = [e for e in due if e[ID] not in self._suspects]
        doubted = self._suspects.pick(sorted(due, key=self._run_now.urgency), self.lane)
        return (doubted or sound) if self._batches % 2 else (sound or doubted)

    def _begin(self, batch: Batch) -> None:
        self._note_change()
        self.in_flight.begin(batch)
        for message_id in batch.ids:
            del self.entries[message_id]
        self._run_now.forget(batch.ids)

    def apply_results(self, batch: Batch, results: Sequence[Any], now: float) -> None:
        """Apply what a batch's calls have come to, in the order of `batch.left`; see `shared.packs.cycle`."""
        self._note_change()
        if len(results) == len(batch.ids):  # its first answer, which says how many calls have begun
            self._batch_limit.adapt(len(results), len(results) - sum(result is None for result in results))

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
        if running.state is None and running.entry[ID] not in self.leaving:
            self.entries[running.entry[ID]] = running.entry
            return
        outcome = Outcome("handed_back", reason="its batch was over before it began")
        self._put(decide(running.read(self.kind, self.lane), outcome, now), running.size, now)

    def _apply_result(self, running: RunningMessage, result: Any, now: float) -> None:
        message_id: str = running.entry[ID]
        self._suspects.clear_of(message_id)
        if isinstance(result, list) and running.state is None and message_id not in self.leaving:
            entry = apply_change(running.entry, cast("Entry", result))
            growth = measure(entry) - measure(running.entry)
            if self._makes_room(growth):
                self.bytes += growth
                self.entries[message_id] = entry
                return

        state = running.read(self.kind, self.lane)
        outcome, spread = to_outcome(running.entry, cast("Any", result), self.lane, self.within)
        after = decide(state, self._bound(state, outcome), outcome.ended_at or now, spread=spread)
        self._put(after, running.size, now)

    def apply_to_left(self, batch: Batch, outcome: Outcome, now: float) -> None:
        """Decide alike on all messages of a batch that are still in flight."""
        for position in batch.left:
            running = self.in_flight.end(batch, position)
            self._put(decide(running.read(self.kind, self.lane), outcome, now), running.size, now)
        self.in_flight.set_left(batch, ())

    def lose_batch(self, batch: Batch, reason: str, now: float, tries: int) -> None:
        """Decide on a batch that was lost in every try: a single message has failed, several are suspects."""
        if len(batch.left) > 1:
            for position in batch.left:
                self._suspects.add(batch.ids[position], len(batch.left) // SUSPECTS_SPLIT)
            self.apply_to_left(batch, Outcome("handed_back", reason=reason), now)
            return

        # each try has called the handler of a single message, and only workers know its own limit of attempts
        running = self.in_flight.end(batch, batch.left[0])
        state = running.read(self.kind, self.lane)
        tried = state._replace(attempt=state.attempt + tries - 1)
        self._suspects.add(state.id, 1)
        self._put(decide(tried, Outcome("failed", reason=reason, max_attempts=0), now), running.size, now)
        self.in_flight.set_left(batch, ())

    def summary(self) -> PackSummary:
        """Summarize the pack; once between two changes."""
        if self._summary is None:
            entries = self.entries.summarize()
            self._summary = replace(entries, wake_at=self.find_wake(LANES), running=len(self.in_flight))
        return self._summary

    def find_wake(self, lanes: Collection[str]) -> float:
        """Return when the first message on `lanes` can wait no longer, in seconds since the epoch."""
        key = tuple(lanes)
        if key not in self._wakes:
            self._wakes[key] = self.entries.find_wake(lanes, self.within)
        return self._wakes[key]

    def _note_change(self) -> None:
        self._summary = None
        self._wakes.clear()

    def _apply(self, state: MessageState, signal: Signal | UnreadableSignal, now: float) -> MessageState:
        if isinstance(signal, Revise) and (flaw := self._find_payload_flaw(state, signal)):
            signal = UnreadableSignal("Revise", f"the payload {flaw}")
        after = decide(state, signal, now)
        self._run_now.note_signal(signal, state, after)
        return after

    def _put(self, state: MessageState, old_size: int, now: float) -> None:
        """Keep a message after a change, among those alive, finished, or on their way to another pack."""
        self._note_change()
        if state.ended:
            self.entries.discard(state.id)
            self._suspects.clear_of(state.id)
            self._run_now.forget([state.id])
            # `due_at` is now the time of its end, from which on it is remembered
            state = state._replace(due_at=now, earliest_at=now, latest_at=0.0)

        entry = to_entry(state, self.lane)
        size = measure(entry)
        if not self._makes_room(size - old_size):
            if state.ended:
                entry = to_entry(state._replace(payload=None), self.lane)
            size = measure(shorten(entry))
        self.bytes += size - old_size

        index = self.leaving.pop(state.id, None)
        if index is not None:
            self.entries.discard(state.id)
            self.bytes -= size
            alive, ended = ([], [entry]) if state.ended else ([entry], [])
            self.forwarding.send_away(self.kind, index, alive, ended)
        elif state.ended:
            self._ended[state.id] = entry
            self._forget_old(now)
        else:
            self.entries[state.id] = entry
