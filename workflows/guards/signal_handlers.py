"""Signal handlers: they accept any arguments, so that no mistake of a sender can fail a workflow task."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from temporalio import workflow
from temporalio.common import RawValue

from shared.errors import PayloadKeyMissing
from shared.temporal.converter import UNOPENED
from shared.temporal.encryption import was_sealed_within

Handler = TypeVar("Handler", bound=Callable[..., None])
Reader = Callable[[Sequence[Any]], Any]
"""Converts a signal's arguments to what its handler takes; raises ValueError with half a sentence when it can't."""

KEY_PATIENCE_SECONDS = 3600.0  # how long a signal, and its workflow, waits for workers to be given its key
NO_KEY = "it is encrypted by a key that no worker had; give workers the key before those who send, and send it again"


class IgnoresUnknownSignals:
    """The base of all workflows here: a signal that is unknown or can't be read is only noted."""

    signals_received = 0  # the number of signals with a known name in this run

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
            if is_unopened(arguments, self.signals_received):
                self.ignore_signal(signal, NO_KEY)
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


def is_unopened(arguments: Sequence[Any], number: int) -> bool:
    """Return whether to ignore a signal because it is encrypted by a key that the worker lacks.

    The key of a recent signal may not have reached this worker yet: then the workflow task fails, and waits for a
    worker that has the key. An older signal, or one encrypted by others, is ignored, so that it stops no workflow for
    good. A worker that replays this may have the key, so the history says by `number` which signal was ignored.
    """
    sealed = [a.payload for a in arguments if isinstance(a, RawValue) and a.payload.metadata.get(UNOPENED)]
    patch = f"signal-{number}-unopened"
    if workflow.unsafe.is_replaying():
        if workflow.patched(patch):
            return True
        is_waiting = bool(sealed)
    else:
        is_waiting = any(was_sealed_within(payload, KEY_PATIENCE_SECONDS, workflow.time()) for payload in sealed)
    if is_waiting:
        raise PayloadKeyMissing(sealed[0].metadata[UNOPENED].decode(errors="replace"))
    return bool(sealed) and workflow.patched(patch)
