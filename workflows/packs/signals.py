"""The signals of a pack: new messages, another number of packs, and the steering of some of its messages."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

from temporalio import workflow

from shared.messages.placement import SPREAD
from shared.messages.signal_reading import PackSignal, read_pull_forward, read_steering
from shared.messages.signals import PullMany, UnreadableSignal
from shared.packs.reading import read_chunk, read_pack_count
from workflows.guards.signal_handlers import IgnoresUnknownSignals, Reader, signal_handler
from workflows.packs.state import PackState


def _steers(name: str, read: Reader | None = None) -> Callable[[Any, dict[str, Any]], None]:
    """Make the handler of a signal for some messages; its argument holds their `ids` and the signal's fields."""

    @signal_handler(read or partial(read_steering, name), name)
    def steer(self: "PackSignals", given: PackSignal | PullMany) -> None:
        self.steer(name, given)

    return cast("Callable[[Any, dict[str, Any]], None]", steer)


class PackSignals(IgnoresUnknownSignals):
    """The signals of a pack, applied to its state as they come."""

    run_now = _steers("run_now")
    reschedule = _steers("reschedule")
    reprioritize = _steers("reprioritize")
    revise = _steers("revise")
    pause = _steers("pause")
    resume = _steers("resume")
    stop = _steers("stop")
    pull_forward = _steers("pull_forward", read_pull_forward)

    def __init__(self, pack: PackState, sealed: Iterable[Sequence[Any]] | None) -> None:
        super().__init__(sealed)
        self._pack = pack
        self._is_stirred = False  # something has changed that the pack may have to wake for

    @signal_handler(read_chunk)
    def admit(self, chunk: dict[str, Any]) -> None:
        """Admit a chunk of new messages."""
        self._pack.admit(chunk, workflow.time())
        self._is_stirred = True

    @signal_handler(read_pack_count, SPREAD)
    def resize(self, packs: int) -> None:
        """Move messages to other packs, now that the kind has `packs` of them."""
        self._pack.resize(packs)
        self._is_stirred = True

    def steer(self, name: str, given: PackSignal | PullMany) -> None:
        """Apply a signal to its messages; a signal that can't be read is noted in their decisions."""
        if isinstance(given, PullMany):
            self._pack.pull_forward(given)
            self._is_stirred = True
            return

        if isinstance(given.signal, UnreadableSignal):
            self.ignore_signal(name, given.signal.problem)
        else:
            self._is_stirred = True  # what can't be read makes nothing begin or end
        self._pack.steer(given.ids, given.signal, workflow.time(), given.token)
