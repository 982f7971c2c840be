"""Every error of the client, as one tree, split by what the caller does next.

DormiceError
├── RetryLater     nothing is wrong with the call: the same one may succeed later
├── GiveUp         this one call can't succeed as it is: report it and go on with the next
└── Misconfigured  a person must change something before anything works
"""

import re
from typing import Any

import httpx

PREFIX = "urn:dormice:"
PASSING = frozenset({408, 429, 502, 503, 504})
"""Statuses after which the same request may succeed."""


class DormiceError(Exception):
    """Base of all errors; its text is one sentence, `field` what that is about, `status` that of the response or 0."""

    def __init__(self, text: str, *, field: str = "", status: int = 0) -> None:
        super().__init__(text)
        self.field = field
        self.status = status


class RetryLater(DormiceError):
    """The API does not answer, or says that it can't yet; the call was repeated for as long as the client may."""


class MessageUnfinished(RetryLater, TimeoutError):
    """`result` has waited as long as it may; the message goes on."""


class GiveUp(DormiceError):
    """This call will never succeed as it is."""


class InvalidEnvelope(GiveUp):
    """A field of the message, named by `field`, breaks a rule; nothing was sent, or nothing was changed."""


class MessageNotFound(GiveUp):
    """No message with this kind and id is known."""


class MessageAlive(GiveUp):
    """A message that was to be started is alive, and was left unchanged."""


class ConditionUnmet(GiveUp):
    """A message is no longer as the condition of an upsert wants it, and was left unchanged."""


class StartRefused(GiveUp):
    """A message can't be started as it is: its pack has no room for it, or the server refuses it."""


class MessageParked(GiveUp):
    """The message has failed for good, and sleeps until `run_now`, `reschedule` or `stop`; the text has the reason."""


class MessageStopped(GiveUp):
    """The message was stopped, so it has no result."""


class WorkflowEnded(GiveUp):
    """The workflow of the message was ended by something else than the message itself; the text says how."""


class Misconfigured(DormiceError):
    """The address, the token or the installation on the other side must be changed by a person first."""


_CLASSES = (InvalidEnvelope, MessageNotFound, MessageAlive, ConditionUnmet, StartRefused, GiveUp, Misconfigured)
_TYPES: dict[str, type[DormiceError]] = {
    **{re.sub(r"(?<=[a-z])(?=[A-Z])", "-", each.__name__).lower(): each for each in _CLASSES},
    **dict.fromkeys(("disk-full", "invalid-handler", "invalid-setting"), Misconfigured),
    **dict.fromkeys(("payload-key-missing", "server-not-ready"), Misconfigured),
}
"""Names of problems after PREFIX; of all others the status decides."""
_MISCONFIGURED = frozenset({401, 403, 404, 405, 406, 421})


def to_error(answer: httpx.Response | Exception | None) -> DormiceError | None:
    """Give the error that a response, or none, stands for; None for a success."""
    if isinstance(answer, httpx.Response):
        if answer.is_success:
            return None
        is_problem = answer.headers.get("content-type", "").startswith("application/problem+json")
        if is_problem or answer.status_code in PASSING:
            return read_problem(answer.json() if is_problem else {"status": answer.status_code})
        sentence = f"{answer.url.copy_with(query=None)} answers with status {answer.status_code} and is no dormice API"
        return Misconfigured(f"{sentence}; give the address of 'dormice serve'", status=answer.status_code)
    if isinstance(answer, DormiceError):
        return answer
    why, where = "the connection broke", ""
    if isinstance(answer, httpx.TransportError):
        why, where = str(answer) or type(answer).__name__, f" at {answer.request.url.copy_with(raw_path=b'/')}"
    return RetryLater(f"the HTTP API{where} does not answer ({why}); try again later")


def read_problem(problem: dict[str, Any]) -> DormiceError:
    """Give the error that a problem of RFC 9457 stands for: by its type, else by its status."""
    status, field = problem["status"], problem.get("field") or ""
    by_status = RetryLater if status in PASSING else Misconfigured if status in _MISCONFIGURED else GiveUp
    kind = _TYPES.get(problem.get("type", "").removeprefix(PREFIX), by_status)
    return kind(problem.get("detail", f"the answer has status {status}; try again later"), field=field, status=status)
