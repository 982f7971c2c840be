"""Signal handlers: they accept any arguments, so that no mistake of a sender can fail a workflow task."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

from temporalio import workflow
from temporalio.common import RawValue

from activities.server_calls import OPEN_SIGNALS
from workflows.guards.sealed_signals import NO_KEY, NO_ROOM, SealedSignal, find_fate, read_opened
from workflows.options import SERVER_CALL_RETRY, SERVER_CALL_TIMEOUT

OPEN_PAUSE_MIN = timedelta(seconds=1)
OPEN_PAUSE_MAX = timedelta(minutes=1)
"""How long to wait before what is held is tried again."""

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
        self._has_more_sealed = False
        self._opening: asyncio.Task[None] | None = None

    def open_sealed_signals(self) -> None:
        """Try to open what is held, until nothing is; call it when a run begins."""
        if self.sealed and (self._opening is None or self._opening.done()):
            self._opening = asyncio.create_task(self._open_all())

    def dump_sealed(self) -> list[list[Any]]:
        """Give the wire form of what is held, for the next run."""
        return [list(held) for held in self.sealed]

    def hold_signal(self, name: str, arguments: Sequence[Any]) -> None:
        """Hold a signal until a worker has its key, for an hour at most."""
        self.sealed.append(SealedSignal.take(name, arguments))
        self._has_more_sealed = True
        self.open_sealed_signals()

    async def _open_all(self) -> None:
        """Ask for what is held all at once, so that what is opened together is applied in its order."""
        pause = OPEN_PAUSE_MIN
        while self.sealed:
            asked = list(self.sealed)
            self._has_more_sealed = False
            opened = await workflow.execute_activity(
                OPEN_SIGNALS,
                [held.payloads for held in asked],
                result_type=list[list[str] | None],
                start_to_close_timeout=SERVER_CALL_TIMEOUT,
                retry_policy=SERVER_CALL_RETRY,
                summary=f"{len(asked)} encrypted signals",
            )
            for held, payloads in zip(asked, opened, strict=True):
                self._settle(held, payloads)
            if not self.sealed:
                return

            try:
                await workflow.wait_condition(lambda: self._has_more_sealed, timeout=pause)
            except TimeoutError:
                pause = min(2 * pause, OPEN_PAUSE_MAX)

    def _settle(self, held: SealedSignal, payloads: Sequence[str] | None) -> None:
        if payloads is None:
            if held.is_over(workflow.time()):
                self.sealed.remove(held)
                self.ignore_signal(held.name, NO_KEY)
            return

        self.sealed.remove(held)
        # the SDK leaves open what a handler returns
        handlers = cast("Any", workflow)
        receive: Callable[..., None] | None = handlers.get_signal_handler(held.name)
        try:
            if receive is not None:
                receive(*read_opened(payloads))
        except Exception as exc:  # noqa: BLE001 — nothing else would notice it: no task fails for a task of asyncio
            self.ignore_signal(held.name, f"it can't be applied ({type(exc).__name__}: {exc})")

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
            fate = find_fate(arguments, self.signals_received, self.sealed)
            if fate == "held":
                self.hold_signal(signal, arguments)
                return
            if fate == "refused":
                self.ignore_signal(signal, NO_ROOM)
                return

            try:
                given = read(arguments)
            except ValueError as exc:
                self.ignore_signal(signal, str(exc))
            else:
                handle(self, given)

        receive.__name__ = handle.__name__
        receive.__qualname__ = handle.__qualname__
        receive.__doc__ = handle.__doc__
        return cast("Handler", workflow.signal(name=signal)(receive))

    return register
