"""All messages of a pack, whatever becomes of them: asleep, in flight, finished, or about to leave for another pack."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from shared.lanes import LANES
from shared.messages.decision import decide
from shared.messages.message import MessageState
from shared.messages.placement import pack_index
from shared.messages.signals import Revise, Signal, UnreadableSignal
from shared.packs.counts import count_entries
from shared.packs.entry import ID, measure, shorten, to_entry, to_state
from workflows.packs.calls.batch import Batch
from workflows.packs.calls.in_flight import InFlight
from workflows.packs.calls.selection import BatchSelection
from workflows.packs.calls.suspects import Suspects
from workflows.packs.entries import OPEN_BYTES, PackEntries
from workflows.packs.limits import PackConfig, PackLimits
from workflows.packs.requests.forwarding_queue import ForwardingQueue, find_leaving, remove_leaving
from workflows.packs.summary import PackSummary


class PackMessages:
    """Keeps each message where it belongs, and counts its bytes; mutable, so that no change copies a thousand."""

    def __init__(self, config: PackConfig, forwarding: ForwardingQueue, wire: Mapping[str, Any]) -> None:
        self._config = config
        self._forwarding = forwarding
        self.limits = PackLimits(config, wire)
        self.entries = PackEntries(wire.get("entries", ()), config.lane)
        self.in_flight = InFlight(wire.get("in_flight", ()))
        self.selection = BatchSelection(
            config.lane, Suspects(wire.get("suspects", ()), wire.get("suspect_batches", {}))
        )
        self.leaving = find_leaving(self.in_flight.messages, config.packs, config.index)
        """Those that leave once their handlers have ended, each with its new pack; a run may end before that."""
        self._summary: PackSummary | None = None  # None, and no wakes: a message has changed
        self._wakes: dict[tuple[str, ...], float] = {}

    def __len__(self) -> int:
        """Count the messages that are alive."""
        return len(self.entries) + len(self.in_flight)

    @property
    def held_bytes(self) -> int:
        """About how much memory the messages take."""
        entry_bytes = self.limits.bytes / max(len(self), 1)
        in_flight = len(self.in_flight) * (OPEN_BYTES + entry_bytes)
        return self.entries.measure_held_bytes(entry_bytes) + round(in_flight)

    def find(self, message_id: str) -> MessageState | None:
        """Give a message, alive or finished a while ago."""
        config = self._config
        running = self.in_flight.messages.get(message_id)
        if running is not None:
            return running.read(config.kind, config.lane)
        entry = self.limits.ended.get(message_id) or self.entries.get(message_id)
        return None if entry is None else to_state(entry, config.kind, config.lane)

    def finished(self) -> Iterator[MessageState]:
        """Give those that finished a while ago, by id."""
        yield from filter(None, map(self.find, sorted(self.limits.ended)))

    def alive(self) -> Iterator[MessageState]:
        """Give all that are alive, by id."""
        config = self._config
        entries = {entry[ID]: entry for entry in self.entries.read()}
        for message_id in sorted([*entries, *self.in_flight.messages]):
            entry = entries.get(message_id)
            if entry is not None:
                yield to_state(entry, config.kind, config.lane)
            else:
                yield self.in_flight.messages[message_id].read(config.kind, config.lane)

    def moved_to(self, message_id: str) -> int | None:
        """Return the other pack that a message belongs to; None if it belongs here, or its handler is running here."""
        index = pack_index(message_id, self._config.packs)
        return None if index == self._config.index or message_id in self.in_flight else index

    def counts(self, now: float) -> dict[str, Any]:
        """Count the messages, for the pack's memo."""
        return count_entries(self.entries.read(), self.in_flight.entries(), self._config.lane, now)

    def summary(self) -> PackSummary:
        """Summarize the messages; once between two changes."""
        if self._summary is None:
            entries = self.entries.summarize()
            self._summary = replace(entries, wake_at=self.find_wake(LANES), running=len(self.in_flight))
        return self._summary

    def find_wake(self, lanes: Collection[str]) -> float:
        """Return when the first message on `lanes` can wait no longer, in seconds since the epoch."""
        key = tuple(lanes)
        if key not in self._wakes:
            self._wakes[key] = self.entries.find_wake(lanes, self._config.within)
        return self._wakes[key]

    def has_due(self, lanes: Collection[str], now: float) -> bool:
        """Return whether a message on one of the lanes can wait no longer."""
        return self.find_wake(lanes) <= now

    def note_change(self) -> None:
        """Note that messages change, so that they are summarized anew."""
        self._summary = None
        self._wakes.clear()

    def begin(self, batch: Batch) -> None:
        """Let the messages of a batch be in flight."""
        self.note_change()
        self.in_flight.begin(batch)
        for message_id in batch.ids:
            del self.entries[message_id]
        self.selection.run_now.forget(batch.ids)

    def steer(self, message_id: str, signal: Signal | UnreadableSignal, now: float) -> None:
        """Apply a signal to a message that is alive."""
        kind = self._config.kind
        lane = self._config.lane
        running = self.in_flight.messages.get(message_id)
        if running is None:
            entry = self.entries[message_id]
            self.put(self._apply(to_state(entry, kind, lane), signal, now), measure(entry), now)
            return

        before = running.read(kind, lane)
        state = self._apply(before, signal, now)
        growth = measure(state.payload) - measure(before.payload)
        self.limits.bytes += growth
        self.in_flight.change(state, growth)

    def _apply(self, state: MessageState, signal: Signal | UnreadableSignal, now: float) -> MessageState:
        if isinstance(signal, Revise) and (flaw := self.limits.find_payload_flaw(state, signal)):
            signal = UnreadableSignal("Revise", f"the payload {flaw}")
        after = decide(state, signal, now)
        self.selection.run_now.note_signal(signal, state, after)
        return after

    def put(self, state: MessageState, old_size: int, now: float) -> None:
        """Keep a message after a change, among those alive, finished, or on their way to another pack."""
        self.note_change()
        if state.ended:
            self.entries.discard(state.id)
            self.selection.forget(state.id)
            # `due_at` is now the time of its end, from which on it is remembered
            state = state._replace(due_at=now, earliest_at=now, latest_at=0.0)

        limits = self.limits
        entry = to_entry(state, self._config.lane)
        size = measure(entry)
        if not limits.make_room(size - old_size):
            if state.ended:
                entry = to_entry(state._replace(payload=None), self._config.lane)
            size = measure(shorten(entry))
        limits.bytes += size - old_size

        index = self.leaving.pop(state.id, None)
        if index is not None:
            self.entries.discard(state.id)
            limits.bytes -= size
            alive, ended = ([], [entry]) if state.ended else ([entry], [])
            self._forwarding.send_away(self._config.kind, index, alive, ended)
        elif state.ended:
            limits.ended[state.id] = entry
            limits.forget_old(now)
        else:
            self.entries[state.id] = entry

    def send_away(self) -> None:
        """Let messages leave for other packs, of which there are more now; those in flight once they have ended."""
        self.note_change()
        limits = self.limits
        kind = self._config.kind
        packs = self._config.packs
        staying = self._config.index

        self.leaving = find_leaving(self.in_flight.messages, packs, staying)
        for index, (alive, ended) in remove_leaving(self.entries.open_all(), limits.ended, packs, staying).items():
            limits.bytes -= sum(map(measure, [*alive, *ended]))
            for entry in alive:
                self.selection.suspects.clear_of(entry[ID])
            self._forwarding.send_away(kind, index, alive, ended)
