"""Problems: what the HTTP API refuses, as RFC 9457 has it: the sentence, the field, and a type for programs."""

import re
from http import HTTPStatus

from starlette.responses import Response

from shared.errors import (
    ConditionUnmet,
    DormiceError,
    GiveUp,
    InvalidEnvelope,
    MessageAlive,
    MessageNotFound,
    Misconfigured,
    RetryLater,
    StartRefused,
)
from shared.messages.json_value import encode_json

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:dormice:"
RETRY_AFTER_SECONDS = 2

_STATUSES: tuple[tuple[type[DormiceError], HTTPStatus], ...] = (
    (MessageNotFound, HTTPStatus.NOT_FOUND),
    (MessageAlive, HTTPStatus.CONFLICT),
    (StartRefused, HTTPStatus.CONFLICT),
    (ConditionUnmet, HTTPStatus.PRECONDITION_FAILED),
    (GiveUp, HTTPStatus.UNPROCESSABLE_ENTITY),
    (RetryLater, HTTPStatus.SERVICE_UNAVAILABLE),
    (Misconfigured, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""The first that an error is an instance of counts."""


class Problem(Exception):
    """A request that is refused: its status, one sentence, the field that the sentence is about, and its type."""

    def __init__(self, status: HTTPStatus, detail: str, field: str = "", name: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.name = name or status.name.lower().replace("_", "-")

    def to_response(self, **headers: str) -> Response:
        """Give the response that says so."""
        document = {
            "type": f"{TYPE_PREFIX}{self.name}",
            "title": self.status.phrase,
            "status": self.status.value,
            "detail": self.detail,
        }
        if self.field:
            document["field"] = self.field
        if self.status is HTTPStatus.SERVICE_UNAVAILABLE:
            headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        if self.status is HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
            headers["Accept-Encoding"] = "gzip"
        if self.status is HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"

        return Response(encode_json(document), self.status.value, headers, MEDIA_TYPE)


def to_problem(exc: DormiceError) -> Problem:
    """Translate an error of dormice; its type is the error's name in small letters."""
    status = next(status for kind, status in _STATUSES if isinstance(exc, kind))
    field = exc.field if isinstance(exc, InvalidEnvelope) else ""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(exc).__name__).lower()
    return Problem(status, str(exc), field, name)
