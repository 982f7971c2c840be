"""Signal handlers: they accept any arguments, so that no mistake of a sender can fail a workflow task."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

from workflows.guards.sealed_signals import HELD_BYTES_MAX, NO_KEY, NO_ROOM, SealedSignal, is_sealed

Handler = TypeVar("Handler", bound=Callable[..., None])
Reader = Callable[[Sequence[Any]], Any]
"""Converts a signal's arguments to what its handler takes; raises ValueError with half a sentence when it can't."""


class IgnoresUnknownSignals:
    """The base of all workflows here: a signal that is unknown or can't be read is only noted.

    One that is encrypted by a key that the worker lacks is held until a worker opens it; `sealed` are those that the
    run before has held.
    """

    def __init__(self, sealed: Iterable[Sequence[Any]] | None = None) -> None:
        self.signals_received = 0  # the number of signals with a known name in this run
        self.sealed = [SealedSignal(*held) for held in sealed or ()]
        self._opening = set[asyncio.Task[None]]()

    def open_sealed_signals(self) -> None:
        """Go on with opening what the run before has held."""
        for held in self.sealed:
            self._begin_to_open(held)

    def dump_sealed(self) -> list[list[Any]]:
        """Give the wire form of what is held, for the next run."""
        return [list(held) for held in self.sealed]

    def hold_signal(self, name: str, arguments: Sequence[Any]) -> None:
        """Hold a signal until a worker has its key, for an hour at most."""
        held = SealedSignal.take(name, arguments)
        if sum(each.measure() for each in (*self.sealed, held)) > HELD_BYTES_MAX:
            self.ignore_signal(name, NO_ROOM)
            return

        self.sealed.append(held)
        self._begin_to_open(held)

    def _begin_to_open(self, held: SealedSignal) -> None:
        opening = asyncio.create_task(self._open(held))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, held: SealedSignal) -> None:
        try:
            arguments = await held.open()
        except ActivityError:
            self.sealed.remove(held)
            self.ignore_signal(held.name, NO_KEY)
            return

        self.sealed.remove(held)
        # the SDK leaves open what a handler returns
        handlers = cast("Any", workflow)
        receive: Callable[..., None] | None = handlers.get_signal_handler(held.name)
        if receive is not None:
            receive(*arguments)

    def ignore_signal(self, name: str, problem: str) -> None:
        """Log in one line that a signal is ignored."""
        workflow.logger.warning("signal ignored", extra={"signal": name[:80], "reason": problem[:300]})

    @workflow.signal(dynamic=True, description="any other name: ignored")
    def take_unknown(self, name: str, arguments: Sequence[RawValue]) -> None:  # noqa: ARG002 — Temporal gives them
        """Ignore a signal of a name that the workflow does not know."""
        self.ignore_signal(name, "there is no signal of this name")


def signal_handler(read: Reader, name: str = "") -> Callable[[Handler], Handler]:
    """Make a method the handler of a signal; `read` converts the arguments that were sent to its one argument.

    The SDK itself would drop what it can't convert to a handler's types, with a traceback in the log, and fail the
    workflow task if there are more arguments than the handler takes. So Temporal gets a handler without types that
    takes any number of arguments, which the converter never refuses (see `shared.temporal.converter`).
    """

    def register(handle: Handler) -> Handler:
        signal = name or handle.__name__

        def receive(self: IgnoresUnknownSignals, *arguments: Any) -> None:
            self.signals_received += 1
            if is_sealed(arguments, self.signals_received):
                self.hold_signal(signal, arguments)
                return

            try:
                given = read(arguments)
            except ValueError as exc:
                self.ignore_signal(signal, str(exc))
            else:
                handle(self, given)

        receive.__name__, receive.__qualname__, receive.__doc__ = handle.__name__, handle.__qualname__, handle.__doc__
        return cast("Handler", workflow.signal(name=signal)(receive))

    return register
