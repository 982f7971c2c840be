"""The signals of a pack: new messages, outcomes of running batches, and the steering of some of its messages."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

from temporalio import workflow

from shared.messages.message import Outcome
from shared.messages.signal_reading import PackSignal, read_pull_forward, read_steering
from shared.messages.signals import PullMany, UnreadableSignal
from shared.packs.names import REPORT
from shared.packs.reading import BatchProgress, read_chunk, read_pack_count, read_report
from workflows.packs.batch import HANDED_BACK, Batch
from workflows.packs.state import PackState
from workflows.replay.history_length import BYTES_MAX, SIGNAL_EVENTS, HistoryLength, measure_arguments
from workflows.replay.signal_buffer import SignalBuffer
from workflows.replay.signal_handlers import IgnoresUnknownSignals, Reader, signal_handler


def _steers(name: str, read: Reader | None = None) -> Callable[[Any, dict[str, Any]], None]:
    """Make the handler of a signal for some messages; its argument holds their `ids` and the signal's fields."""

    @signal_handler(read or partial(read_steering, name), name)
    def steer(self: "PackSignals", given: PackSignal | PullMany) -> None:
        self.steer(name, given)

    return cast("Callable[[Any, dict[str, Any]], None]", steer)


class PackSignals(IgnoresUnknownSignals):
    """The signals of a pack, applied to its state once the signal buffer releases them."""

    _pack: PackState
    _signal_buffer: SignalBuffer
    _batches: dict[int, Batch]
    _is_stirred = False
    _is_history_long = False
    _length: HistoryLength

    run_now = _steers("run_now")
    reschedule = _steers("reschedule")
    reprioritize = _steers("reprioritize")
    revise = _steers("revise")
    pause = _steers("pause")
    resume = _steers("resume")
    stop = _steers("stop")
    pull_forward = _steers("pull_forward", read_pull_forward)

    @signal_handler(read_chunk)
    def admit(self, chunk: dict[str, Any]) -> None:
        """Admit a chunk of new messages."""
        self._hear(lambda: self._pack.admit(chunk, workflow.time()))

    @signal_handler(read_report, REPORT)
    def report(self, news: BatchProgress) -> None:
        """Apply outcomes of a batch while other messages of the batch are still running."""
        batch = self._batches.get(news.batch)
        if batch is not None:
            self._hear(lambda: self._apply_outcomes(batch, news.outcomes, news.ended_at))

    @signal_handler(read_pack_count, "spread")
    def resize(self, packs: int) -> None:
        """Move messages to other packs, now that the kind has `packs` of them."""
        self._hear(lambda: self._pack.resize(packs))

    def steer(self, name: str, given: PackSignal | PullMany) -> None:
        """Apply a signal to its messages; a signal that can't be read is noted in their decisions."""
        if isinstance(given, PullMany):
            self._hear(lambda: self._pack.pull_forward(given))
            return
        hear: Callable[[Callable[[], None]], None] = self._hear
        if isinstance(given.signal, UnreadableSignal):
            self.ignore_signal(name, given.signal.problem)
            hear = self._signal_buffer.hear  # it makes nothing begin or end, so the pack need not wake for it
        hear(lambda: self._pack.steer(given.ids, given.signal, workflow.time(), given.token))

    def count_input(self, arguments: Sequence[Any]) -> None:
        """Count what a signal adds to the history, once the buffer releases it."""
        if self._signal_buffer.is_serial:
            size = measure_arguments(arguments)
            self._signal_buffer.hear(lambda: self._count(SIGNAL_EVENTS, size), is_signal=False)

    def _count(self, events: int, size: int = 0) -> None:
        self._length.add(events, size)
        if self._signal_buffer.is_serial and self._length.is_too_long:
            self._is_history_long = self._is_stirred = True

    def _hear(self, apply: Callable[[], None]) -> None:
        def stir() -> None:
            apply()
            if not self._signal_buffer.is_serial:
                info = workflow.info()
                is_large = info.get_current_history_size() > BYTES_MAX
                self._is_history_long = is_large or info.is_continue_as_new_suggested()
            self._is_stirred = True

        self._signal_buffer.hear(stir)

    def _apply_outcomes(
        self, batch: Batch, outcomes: Iterable[tuple[int, dict[str, Any] | None]], ended_at: float
    ) -> None:
        decided = ((n, HANDED_BACK if wire is None else Outcome.load(wire)) for n, wire in outcomes)
        self._pack.apply_outcomes(batch, decided, max(self._pack.replay_time, ended_at))
