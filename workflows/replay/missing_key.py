"""A missing key: a worker that lacks it fails what it is handed, which is no fault of the message."""

from temporalio.exceptions import ApplicationError, FailureError

from shared.errors import PayloadKeyMissing
from shared.messages.message import Outcome

ERROR_TYPES = (PayloadKeyMissing.__name__, "PayloadSealed")
"""Failures bear the name of the error that caused them; older code calls it so."""

WAIT_SECONDS = 60.0
"""As long as a message waits whose kind has no handler: for some worker that is deployed as it should be."""


def missing_key_outcome(exc: BaseException | None) -> Outcome | None:
    """Give what becomes of a call that a worker without the key could not read; None for every other failure."""
    while isinstance(exc, FailureError):
        if isinstance(exc, ApplicationError) and exc.type in ERROR_TYPES:
            return Outcome("retry_after", exc.message, after=WAIT_SECONDS)
        exc = exc.__cause__
    return None
