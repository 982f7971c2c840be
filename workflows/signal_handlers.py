"""Signal handlers: whatever is sent under a signal's name arrives, so that nothing a sender does can fail a workflow task."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

from temporalio import workflow
from temporalio.common import RawValue

Handler = TypeVar("Handler", bound=Callable[..., None])
Reader = Callable[[Sequence[Any]], Any]
"""Makes of a signal's arguments what its handler takes; raises ValueError with half a sentence where it can't."""


class Signalled(Protocol):
    """A workflow that takes signals."""

    def ignore_signal(self, name: str, problem: str) -> None:
        """Go on as if a signal had not come, and say so."""
        ...


class IgnoresUnknownSignals:
    """What the workflows here have in common: no signal that they can't read, or don't know, does anything but be noted."""

    def ignore_signal(self, name: str, problem: str) -> None:
        """Log a signal that is ignored, in one line."""
        log_ignored(name, problem)

    @workflow.signal(dynamic=True)
    def take_unknown(self, name: str, arguments: Sequence[RawValue]) -> None:  # noqa: ARG002 — Temporal's own signature
        """Ignore a signal of a name that the workflow does not know."""
        self.ignore_signal(name, "there is no signal of this name")


def signal_handler(read: Reader, name: str = "") -> Callable[[Handler], Handler]:
    """Make a method the handler of a signal; `read` makes its one argument of those that were sent.

    The SDK itself would drop what it can't convert to a handler's types, with a traceback in the log, and fail the
    workflow task where there are more arguments than the handler takes. So what Temporal gets is a handler of any
    number of arguments without types, which the converter never refuses (see `shared.converter`).
    """

    def register(handle: Handler) -> Handler:
        signal = name or handle.__name__

        def receive(self: Signalled, *arguments: Any) -> None:
            try:
                given = read(arguments)
            except ValueError as exc:
                self.ignore_signal(signal, str(exc))
            else:
                handle(self, given)

        receive.__name__, receive.__qualname__, receive.__doc__ = handle.__name__, handle.__qualname__, handle.__doc__
        return cast("Handler", workflow.signal(name=signal)(receive))

    return register


def log_ignored(name: str, problem: str) -> None:
    """Log that a signal is ignored, and why."""
    workflow.logger.warning("signal ignored", extra={"signal": name[:80], "reason": problem[:300]})
