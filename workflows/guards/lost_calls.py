"""Lost calls: what a call counts as that gave no outcome, because its worker died, was blocked or lacked a key."""

from temporalio.exceptions import ActivityError, ApplicationError, FailureError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from shared.errors import PayloadKeyMissing
from shared.messages.message import Outcome

WAIT_SECONDS = 60.0  # as long as a message without a handler waits: time to deploy a worker that has the key


def lost_call_outcome(exc: ActivityError) -> Outcome:
    """Give the outcome of a call that gave none: a failed attempt, unless its worker lacked a payload's key."""
    return missing_key_outcome(exc) or count_as_lost(describe_loss(exc))


def count_as_lost(why: str) -> Outcome:
    """Give the outcome of a call that counts as a failed attempt, for a reason in a few words."""
    return Outcome(
        "failed",
        reason=f"the handler call was lost: {why}",
        max_attempts=0,  # only workers know the handler's own limit of attempts
    )


def describe_loss(exc: ActivityError) -> str:
    """Say in a few words why an activity gave no result."""
    cause = exc.cause
    if isinstance(cause, ActivityTimeout) and cause.type is not None:
        return f"timed out ({cause.type.name.lower()})"
    return str(cause)


def missing_key_outcome(exc: BaseException | None) -> Outcome | None:
    """Return the outcome of a call that failed because the worker lacks the key; None for every other failure."""
    while isinstance(exc, FailureError):
        if isinstance(exc, ApplicationError) and exc.type == PayloadKeyMissing.__name__:
            return Outcome("retry_after", exc.message, after=WAIT_SECONDS)
        exc = exc.__cause__
    return None
