"""The pack's state: many messages of one kind, each advanced by `decide`; no Temporal in here."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shared.lanes import LANES
from shared.messages.decision import begin, decide, merge_sources
from shared.messages.json_value import encode_json
from shared.messages.message import MessageState, Outcome
from shared.messages.placement import pack_index
from shared.messages.signals import PullMany, Revise, Signal, UnreadableSignal
from shared.packs.entry import (
    DUE,
    ID,
    OTHERS,
    Entry,
    apply_change,
    is_ended,
    lane_of,
    measure,
    shorten,
    sources_of,
    to_end,
    to_entry,
    to_state,
)
from workflows.packs.batch import HANDED_BACK, Batch, PackSummary, RunningMessage, fill_batch, find_wake
from workflows.packs.entries import PackEntries
from workflows.packs.forwarding_queue import ForwardingQueue, find_leaving, remove_leaving
from workflows.packs.limits import PackLimits
from workflows.packs.receipts import KNOWN, REVISED, STOPPED, PackReceipts
from workflows.packs.suspects import SUSPECTS_SPLIT, Suspects
from workflows.replay.run_now_queue import RunNowQueue, is_newer, may_begin, pick_pulled, to_signal


class PackState(PackLimits):
    """All messages of one pack; mutable, so that a change of one does not copy a thousand."""

    def __init__(self, wire: Mapping[str, Any]) -> None:
        super().__init__(wire)
        self.entries = PackEntries(wire.get("entries", ()))
        self._suspects = Suspects(wire.get("suspects", ()), wire.get("suspect_batches", {}))
        self.receipts = PackReceipts(wire.get("receipts", {}))
        self.forwarding = ForwardingQueue(wire.get("strays", ()))
        self._running: dict[str, RunningMessage] = {}
        self.leaving: dict[str, int] = {}  # those that leave once their handlers have ended, each with its new pack
        self._batches = 0
        self._summary: PackSummary | None = None  # None, and no wakes: a message has changed
        self._wakes: dict[tuple[str, ...], float] = {}
        self._run_now = RunNowQueue()
        self._is_careful = False
        self.replay_time = 0.0

    @property
    def _entries(self) -> dict[str, Entry]:
        return self.entries.open()

    def wake(self, moment: float) -> None:
        """Note that the pack has slept until `moment`."""
        self.reach(moment)
        self._is_careful = False

    def reach(self, moment: float) -> None:
        """Let what is due by a moment (seconds since the epoch) begin; it must come from the history, not a clock."""
        self.replay_time = max(self.replay_time, moment)

    def encode(self, **beside: Any) -> bytes:
        """Give the wire form that the next run starts from, as JSON with some beside it; no batch may be under way."""
        entries = self.entries.encode()
        self._note_stored_share(entries)
        seldom = {
            "ended": list(self._ended.values()),
            "suspects": sorted(self._suspects),
            "suspect_batches": self._suspects.batches(),
            "receipts": dict(self.receipts),
            "strays": list(self.forwarding),
        }
        others = {"bytes": self.bytes, **{name: value for name, value in seldom.items() if value}, **beside}
        return b'%b,"entries":%b}' % (encode_json(self.heading() | others)[:-1], entries)

    def counts(self, now: float) -> dict[str, Any]:
        """Count what the pack holds, for its memo."""
        return self.entries.count(self.lane, now, [running.entry for running in self._running.values()])

    def __len__(self) -> int:
        """Count the messages that are alive."""
        return len(self.entries) + len(self._running)

    def find(self, message_id: str) -> MessageState | None:
        """Give a message, alive or finished a while ago."""
        if message_id in self._running:
            return self._state_of(self._running[message_id])
        entry = self._ended.get(message_id) or self._entries.get(message_id)
        return None if entry is None else to_state(entry, self.kind, self.lane)

    def finished(self) -> Iterator[MessageState]:
        """Give those that finished a while ago, by id."""
        yield from filter(None, map(self.find, sorted(self._ended)))

    def alive(self) -> Iterator[MessageState]:
        """Give all that are alive, by id."""
        entries = self._entries
        for message_id in sorted([*entries, *self._running]):
            entry = entries.get(message_id)
            yield to_state(entry, self.kind, self.lane) if entry else self._state_of(self._running[message_id])

    def admit(self, chunk: Mapping[str, Any], now: float) -> None:
        """Admit a chunk of entries, except those that are known or find no room; its receipt says which.

        A redelivered chunk changes nothing. `restarts` also admits messages that have finished. With `revises`, each
        entry is a source's record: it revises or stops a message that is alive, and starts a finished one again, unless
        the record's offset is not newer than the last one applied. Entries that were due when the chunk was sent
        (`sent_at`) are due at once, whatever the replay time is.
        """
        self._note_change()
        self.size = chunk.get("size", self.size)
        self.within = replace(self.within, coalesce=chunk.get("coalesce", self.within.coalesce))
        token = chunk["token"]
        if token in self.receipts:
            return
        self._forget_old(now)
        fates: dict[str, list[int]] = {}
        moved: dict[int, list[int]] = {}
        # a sender with the same number of packs has hashed each entry already, which is the most expensive part
        is_placed = chunk.get("packs") == self.packs
        for position, entry in enumerate(chunk["entries"]):
            if not is_placed and (index := self.moved_to(entry[ID])) is not None:
                moved.setdefault(index, []).append(position)
            elif fate := self._take_in(entry, chunk, now):
                fates.setdefault(fate, []).append(position)
        self.forwarding.forward_chunk(chunk, moved)
        for entry in chunk.get("ended", ()):
            if self.find(entry[ID]) is None:
                self.bytes += measure(entry)
                self._ended[entry[ID]] = entry
        self.receipts.note_chunk(token, fates, moved, now)

    def _take_in(self, entry: Entry, chunk: Mapping[str, Any], now: float) -> str:
        """Admit one entry; return why not, or an empty string."""
        message_id, revises, entries, ended = entry[ID], chunk.get("revises", False), self._entries, self._ended
        if message_id in entries or message_id in self._running:
            return self._revise(entry, chunk, now) if revises else KNOWN
        if not may_begin(entry, chunk, self.find(message_id) if message_id in ended else None):
            return KNOWN
        if revises and message_id in ended:
            entry[OTHERS]["sources"] = merge_sources(sources_of(ended[message_id]), sources_of(entry))
        if (reason := self._find_no_room(size := measure(entry))) and not chunk.get("is_moving"):
            return reason
        if message_id in ended:  # unless it has just been forgotten to make room
            self.bytes -= ended.forget(message_id)
        self.bytes += size
        entries[message_id] = entry
        self._run_now.note_sent(entry, chunk.get("sent_at", now))
        return ""

    def _revise(self, entry: Entry, chunk: Mapping[str, Any], now: float) -> str:
        """Apply a record to a message that is alive; return what became of it."""
        asked, present = to_state(entry, self.kind, self.lane), self.find(entry[ID])
        if not is_newer(entry, present):
            return KNOWN
        if present is not None and not asked.ended and not self._can_grow(present.payload, asked.payload):
            return f"the payload {self.explain_no_room()}"
        self._steer(asked.id, to_signal(asked), now)
        if not self.is_serial or entry[DUE] > self.replay_time * 1000:  # an earlier one is in the run-now queue already
            self._run_now.note_sent(entry, chunk.get("sent_at", now))
        return STOPPED if asked.ended else REVISED

    def steer(self, ids: Sequence[str], signal: Signal | UnreadableSignal, now: float, token: str = "") -> None:
        """Apply a signal to messages; its receipt notes ids not alive. UnreadableSignal signals are not forwarded."""
        if token and token in self.receipts:
            return
        missing: list[int] = []
        moved: dict[int, list[int]] = {}
        for position, message_id in enumerate(ids):
            if message_id in self._running or message_id in self._entries:
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
        running = self._running.get(message_id)
        if running is None:
            entry = self._entries[message_id]
            self._put(self._apply(to_state(entry, self.kind, self.lane), signal, now), measure(entry), now)
            return
        before = self._state_of(running)
        state = self._apply(before, signal, now)
        growth = measure(state.payload) - measure(before.payload)
        self.bytes += growth
        self._running[state.id] = running._replace(state=state, growth=running.growth + growth)

    def pull_forward(self, pull: PullMany) -> None:
        """Make the earliest messages that may run ahead of time due now; a redelivered pull does nothing."""
        if pull.token not in self.receipts:
            for message_id, signal in pick_pulled(self._entries.values(), pull):
                self._steer(message_id, signal, pull.at)
            self.receipts.note_signal(pull.token, [], {}, pull.at)

    def _state_of(self, running: RunningMessage) -> MessageState:
        return running.state or begin(to_state(running.entry, self.kind, self.lane))

    def moved_to(self, message_id: str) -> int | None:
        """Return the other pack that a message belongs to; None if it belongs here, or its handler is running here."""
        index = pack_index(message_id, self.packs)
        return None if index == self.index or message_id in self._running else index

    def resize(self, packs: int) -> None:
        """Set a higher number of packs: messages of other packs leave, now or once their handlers have ended."""
        if packs <= self.packs:
            return
        self._note_change()
        self.packs = packs
        self.leaving = find_leaving(self._running, packs, self.index)
        for index, (alive, ended) in remove_leaving(self._entries, self._ended, packs, self.index).items():
            self.bytes -= sum(map(measure, [*alive, *ended]))
            for entry in alive:
                self._suspects.clear_of(entry[ID])
            self.forwarding.send_away(self.kind, index, alive, ended)

    def has_due(self, lanes: Collection[str]) -> bool:
        """Return whether a message on one of the lanes can wait no longer, or must run now."""
        is_urgent = self.find_wake(lanes) <= self.replay_time
        return is_urgent or self._run_now.has_any(self._entries, lanes, self.lane)

    def take(self, lanes: Collection[str], now: float) -> Batch | None:
        """Make a batch of what is due on one of the lanes: higher priority first, tenants in turn, then longest due.

        Returns None until a message can wait no longer or must run now; then the batch takes everything due by now.
        A message whose last batch was lost with others in it may have caused the loss: see `Suspects`.
        """
        self.receipts.forget_old(self.replay_time)
        if not self.has_due(lanes):
            return None
        due = self._run_now.find_due(self._entries.values(), lanes, self.lane, self.replay_time)
        if self._suspects:
            sound = [e for e in due if e[ID] not in self._suspects]
            doubted = self._suspects.pick(sorted(due, key=self._run_now.urgency), self.lane)
            # in turn, so that neither waits for ever
            due = (doubted or sound) if self._batches % 2 else (sound or doubted)
        if not due:
            return None
        self._batches += 1
        lane = self._run_now.find_lane(due, self.lane)
        # an ordinary activity's input must be the same on replay; a local one's result says what the batch held
        if self._suspects or self._is_careful or (self.is_serial and LANES[lane].heartbeat_timeout is not None):
            return self._hand_out(due, lane, self._batches, None)
        due = self._run_now.find_due(self._entries.values(), [lane], self.lane, now)
        return self._hand_out(due, lane, self._batches, now)

    def rebuild_batch(self, batch: Batch, until: float) -> Batch:
        """Rebuild a batch as it was when it began, by the begin time in its result: clocks differ on replay."""
        self._put_back(batch)
        due = self._run_now.find_due(self._entries.values(), [batch.lane], self.lane, until)
        return self._hand_out(due, batch.lane, batch.number, until)

    def undo_batch(self, batch: Batch) -> None:
        """Undo a lost batch; until the next timer, start only replay-safe work."""
        self._put_back(batch)
        self._is_careful = True

    def _put_back(self, batch: Batch) -> None:
        self._note_change()
        for running in map(self._running.pop, batch.ids):
            entry = running.entry if running.state is None else to_entry(running.state, self.lane)
            self._entries[entry[ID]] = entry
            self._run_now.note(entry, running.asked)

    def _hand_out(self, due: Iterable[Entry], lane: str, number: int, until: float | None) -> Batch:
        self._note_change()
        ordered = self._run_now.in_order(e for e in due if lane_of(e, self.lane) == lane)
        entries = fill_batch(ordered, self.bytes)
        for entry in entries:
            message_id = entry[ID]
            del self._entries[message_id]
            self._running[message_id] = RunningMessage(number, entry, self._run_now.forget(message_id))
        return Batch(number, lane, tuple(entry[ID] for entry in entries), entries, until)

    def apply_local(self, batch: Batch, changes: Iterable[Entry | None], now: float) -> None:
        """Apply a local batch's changes; None means due again at once, finished messages wait for `finish`."""
        self._note_change()
        for message_id, change in zip(batch.ids, changes, strict=True):
            if change is not None and is_ended(change):
                continue
            running = self._running.pop(message_id)
            self._suspects.clear_of(message_id)
            if (entry := change and apply_change(running.entry, change)) is None:
                self._put(decide(self._state_of(running), HANDED_BACK, now), running.size, now)
            elif message_id in self.leaving or not self._makes_room(growth := measure(entry) - running.size):
                self._put(self._fit(running, to_state(entry, self.kind, self.lane), now), running.size, now)
            else:
                self.bytes += growth
                self._entries[message_id] = entry

    def _fit(self, running: RunningMessage, after: MessageState, now: float) -> MessageState:
        """Return what became of a message, or park it with its old payload if the pack has no room for the new one."""
        before = self._state_of(running)
        bound = self._bound(before, Outcome("again", payload=after.payload, is_payload_changed=True))
        return decide(before, bound, now) if bound.verdict == "reject" else after

    def finish(self, batch: Batch, entries: Iterable[Entry | None], now: float) -> None:
        """End the messages of a local batch that are done, unless a signal that came meanwhile prevents it."""
        done = ((n, to_end(entry)) for n, entry in enumerate(entries) if entry and is_ended(entry))
        self.apply_outcomes(batch, done, now)

    def apply_outcomes(self, batch: Batch, outcomes: Iterable[tuple[int, Outcome]], now: float) -> None:
        """Decide on outcomes of a batch, each with its position; messages that are decided already are skipped."""
        for position, outcome in outcomes:
            if (running := self._take_out(batch, position)) is not None:
                state = self._state_of(running)
                self._suspects.clear_of(state.id)
                self._put(decide(state, self._bound(state, outcome), now, spread=self.within), running.size, now)

    def find_at_work(self, batch: Batch) -> list[int]:
        """Return the positions in a batch of the messages whose outcomes have not come yet."""
        return [n for n in range(len(batch.ids)) if self._find_running(batch, n) is not None]

    def _find_running(self, batch: Batch, position: int) -> RunningMessage | None:
        running = self._running.get(batch.ids[position])
        return running if running is not None and running.batch == batch.number else None

    def _take_out(self, batch: Batch, position: int) -> RunningMessage | None:
        return self._find_running(batch, position) and self._running.pop(batch.ids[position])

    def batch_failed(self, batch: Batch, reason: str, now: float, tries: int = 1) -> None:
        """Decide on a batch that was lost in every try: a single message has failed, several are suspects."""
        verdict = "failed" if len(batch.ids) == 1 else "handed_back"
        outcome = Outcome(verdict, reason=reason)
        if self.is_serial:
            outcome = outcome._replace(max_attempts=0)  # only workers know the handler's own limit of attempts
        most = len(batch.ids) // SUSPECTS_SPLIT if self.is_serial else 1
        for position in range(len(batch.ids)):
            if (running := self._take_out(batch, position)) is not None:
                state = self._state_of(running)
                self._suspects.add(state.id, most)
                if verdict == "failed":
                    state = state._replace(attempt=state.attempt + tries - 1)
                self._put(decide(state, outcome, now), running.size, now)

    def summary(self) -> PackSummary:
        """Summarize the pack; counted once between two changes, because it takes all of a thousand messages."""
        if self._summary is None:
            self._summary = PackSummary.of(self._entries.values(), self.find_wake(LANES), len(self._running))
        return self._summary

    def find_wake(self, lanes: Collection[str]) -> float:
        """Return when the first message on `lanes` can wait no longer, in seconds since the epoch."""
        key = tuple(lanes)
        if key not in self._wakes:
            self._wakes[key] = find_wake(self._entries.values(), lanes, self.lane, self.within)
        return self._wakes[key]

    def _note_change(self) -> None:
        self._summary = None
        self._wakes.clear()

    def _apply(self, state: MessageState, signal: Signal | UnreadableSignal, now: float) -> MessageState:
        if isinstance(signal, Revise) and (flaw := self._find_payload_flaw(state, signal)):
            signal = UnreadableSignal("Revise", f"the payload {flaw}")
        after = decide(state, signal, now, replay_time=self.replay_time)
        self._run_now.note_signal(signal, state, after, self.replay_time)
        return after

    def _put(self, state: MessageState, old_size: int, now: float) -> None:
        self._note_change()
        if state.ended:
            self._entries.pop(state.id, None)
            self._suspects.clear_of(state.id)
            # `due_at` is now the time of its end, from which on it is remembered
            payload = state.payload if self.is_serial else None
            state = state._replace(payload=payload, due_at=now, earliest_at=now, latest_at=0.0)
        entry = to_entry(state, self.lane)
        size = measure(entry)
        if not self._makes_room(size - old_size):
            if state.ended:
                entry = to_entry(state._replace(payload=None), self.lane)
            size = measure(shorten(entry))
        self.bytes += size - old_size
        if (index := self.leaving.pop(state.id, None)) is not None:
            self._entries.pop(state.id, None)
            self.bytes -= size
            self.forwarding.send_away(self.kind, index, [] if state.ended else [entry], [entry] if state.ended else [])
            return
        (self._ended if state.ended else self._entries)[state.id] = entry
        if state.ended:
            self._forget_old(now)

    def _find_no_room(self, size: int) -> str:
        if len(self) >= self.size:
            return self.explain_full()
        return "" if self._makes_room(size) else f"the message {self.explain_no_room()}"
