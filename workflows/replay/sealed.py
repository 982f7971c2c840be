"""Sealed calls: a worker that lacks the key fails what it is handed, which is no fault of the message."""

from temporalio.exceptions import ApplicationError, FailureError

from shared.errors import PayloadSealed
from shared.messages.message import Outcome

WAIT_SECONDS = 60.0
"""As long as a message waits whose kind has no handler: for some worker that is deployed as it should be."""


def find_seal(exc: BaseException | None) -> Outcome | None:
    """Give what becomes of a call that a worker without the key could not read; None for every other failure."""
    while isinstance(exc, FailureError):
        if isinstance(exc, ApplicationError) and exc.type == PayloadSealed.__name__:
            return Outcome("retry_after", exc.message, after=WAIT_SECONDS)
        exc = exc.__cause__
    return None
