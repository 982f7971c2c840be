"""Missing keys: a worker without a payload's key fails the call, which is not the message's fault."""

from temporalio.exceptions import ApplicationError, FailureError

from shared.errors import PayloadKeyMissing
from shared.messages.message import Outcome

ERROR_TYPES = (PayloadKeyMissing.__name__, "PayloadSealed")  # the second is what older code wrote into histories
WAIT_SECONDS = 60.0  # as long as a message without a handler waits: time to deploy a worker that has the key


def missing_key_outcome(exc: BaseException | None) -> Outcome | None:
    """Return the outcome of a call that failed because the worker lacks the key; None for every other failure."""
    while isinstance(exc, FailureError):
        if isinstance(exc, ApplicationError) and exc.type in ERROR_TYPES:
            return Outcome("retry_after", exc.message, after=WAIT_SECONDS)
        exc = exc.__cause__
    return None
