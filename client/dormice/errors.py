"""Every error of the client, split by what the caller does next: RetryLater, GiveUp, Misconfigured."""

from collections.abc import Mapping
from typing import Any


class DormiceError(Exception):
    """Its text is one sentence, `field` what that is about, `status` that of the response or 0."""

    def __init__(self, text: str, *, field: str = "", status: int = 0, pause_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.field = field
        self.status = status
        self.pause_seconds = pause_seconds


class RetryLater(DormiceError, TimeoutError):
    """Nothing is wrong with the call, but the API, or the message, took longer than this client may wait."""


class GiveUp(DormiceError):
    """This call will never succeed as it is."""


class InvalidEnvelope(GiveUp):
    """A field of the message, named by `field`, breaks a rule; nothing was changed."""


class MessageNotFound(GiveUp):
    """No message with this kind and id is known."""


class MessageAlive(GiveUp):
    """A message that was to be started is alive, and was left unchanged."""


class IdempotencyKeyReused(GiveUp):
    """An idempotency key was used before for another body; nothing was changed."""


class ConditionUnmet(GiveUp):
    """A message is no longer as the condition of an upsert wants it, and was left unchanged."""


class NoResult(GiveUp):
    """The message has failed for good and is parked, or it was stopped; the text has the reason."""


class Misconfigured(DormiceError):
    """The address, the token or the installation on the other side must be changed by a person first."""


PASSING = (408, 429, 502, 503, 504)  # the statuses after which the same request may succeed
_BROKEN = ("DiskFull", "InvalidHandler", "InvalidSetting", "PayloadKeyMissing", "ServerNotReady", "Misconfigured")
_CLASSES = {each.__name__: each for each in (*GiveUp.__subclasses__(), GiveUp)} | dict.fromkeys(_BROKEN, Misconfigured)


def read_problem(problem: Mapping[str, Any], retry_after: str = "") -> DormiceError:
    """Give the error that a problem of RFC 9457 stands for: by its type, else by its status."""
    status = problem["status"]
    name = problem.get("type", "").removeprefix("urn:dormice:").title().replace("-", "")
    by_status = RetryLater if status in PASSING else Misconfigured if status in (401, 403, 404, 405, 421) else GiveUp
    text = problem.get("detail", f"the answer has status {status}; try again later")
    pause = float(retry_after) if retry_after.isdecimal() else 0.0
    field = problem.get("field") or ""
    return _CLASSES.get(name, by_status)(text, field=field, status=status, pause_seconds=pause)
