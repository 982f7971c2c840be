"""The OpenAPI document: made from the table of operations by which requests are routed, so it can't say otherwise."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shared.lanes import LANES
from shared.messages.envelope import ID_MAX_BYTES, KIND_MAX_BYTES, TENANT_MAX_BYTES, TOLERANCE_MAX
from shared.settings import Settings
from starter.extras.web.problems import MEDIA_TYPE
from starter.steering.selection import STATES

Endpoint = Callable[[Request], Awaitable[Response]]
Schema = dict[str, Any]

MOMENT: Schema = {"type": "string", "format": "date-time", "description": "RFC 3339 with an offset"}
TEXT: Schema = {"type": "string"}
JSON_VALUE: Schema = {"description": "any JSON"}
PROBLEMS = (400, 401, 403, 404, 405, 406, 408, 409, 412, 413, 415, 421, 422, 503)
"""Statuses of a refusal; which of them an operation gives depends on the request."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the address or a header."""

    name: str
    summary: str
    schema: Schema = field(default_factory=TEXT.copy)
    place: str = "query"

    def describe(self) -> Schema:
        """Give it as OpenAPI has it."""
        required = {"required": True} if self.place == "path" else {}
        return {"name": self.name, "in": self.place, "description": self.summary, "schema": self.schema, **required}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that can be asked of the API."""

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    parameters: Sequence[Parameter] = ()
    body: Schema | None = None
    body_type: str = "application/json"
    is_body_optional: bool = False
    """Whether no body at all counts as an empty one."""
    answers: Mapping[int, str]
    """What each status means; every operation may also answer with a problem."""
    answer_type: str = "application/json"
    is_public: bool = False
    """It needs no token."""

    @property
    def name(self) -> str:
        """The name for programs."""
        return self.endpoint.__name__

    def describe(self) -> Schema:
        """Give it as OpenAPI has it."""
        names = [part[1:-1] for part in self.path.split("/") if part.startswith("{")]
        parts = [PATH_PARAMETERS[name] for name in names]
        described: Schema = {
            "operationId": self.name,
            "summary": self.summary,
            "responses": {
                **{str(s): self._describe_answer(text) for s, text in self.answers.items()},
                **{str(s): _refer_problem(s) for s in PROBLEMS if s not in self.answers},
            },
        }
        if parameters := [each.describe() for each in (*parts, *self.parameters)]:
            described["parameters"] = parameters

        if self.body is not None:
            content = {self.body_type: {"schema": self.body}}
            described["requestBody"] = {"content": content, "required": not self.is_body_optional}

        if self.is_public:
            described["security"] = []
        return described

    def _describe_answer(self, text: str) -> Schema:
        return {"description": text, "content": {self.answer_type: {}}}


def describe_api(operations: Sequence[Operation], version: str) -> Schema:
    """Give the document."""
    paths: dict[str, Schema] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = operation.describe()

    return {
        "openapi": "3.1.0",
        "info": {"title": "dormice", "version": version, "description": "Messages that sleep and come back."},
        "paths": paths,
        "security": [{"token": []}, {}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": _PROBLEM},
        },
    }


def describe_envelope(settings: Settings) -> Schema:
    """Give the schema of a body that starts or upserts a message, whose kind and id are in the path."""
    return describe_object(
        payload={**JSON_VALUE, "description": f"JSON of at most {settings.payload_max_bytes} bytes"},
        lane={"type": ["string", "null"], "enum": [*LANES, None]},
        scheduled_at={**MOMENT, "type": ["string", "null"], "description": "now when left out"},
        expires_at={
            **MOMENT,
            "type": ["string", "null"],
            "description": "it ends then; the handler's own when left out",
        },
        tolerance_seconds={"type": "number", "minimum": 0, "maximum": TOLERANCE_MAX.total_seconds()},
        priority={"type": "integer", "minimum": 1, "maximum": 5},
        tenant={**TEXT, "maxLength": TENANT_MAX_BYTES},
        correlation_id={**TEXT, "maxLength": ID_MAX_BYTES},
        idempotency_key={**TEXT, "maxLength": ID_MAX_BYTES},
        schema_version={"const": 1},
    )


def describe_object(required: Sequence[str] = (), **properties: Schema) -> Schema:
    """Give the schema of an object that has no other properties."""
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": list(required)} if required else {})


def _refer_problem(status: int) -> Schema:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": HTTPStatus(status).phrase, "content": content}


_PROBLEM = {
    "type": "object",
    "description": "RFC 9457",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {**TEXT, "description": "urn:dormice: and a name"},
        "title": TEXT,
        "status": {"type": "integer"},
        "detail": {**TEXT, "description": "one sentence that says what to do"},
        "field": {**TEXT, "description": "what it is about"},
    },
}
_KIND = {**TEXT, "pattern": "^[a-z0-9][a-z0-9_.-]*$", "maxLength": KIND_MAX_BYTES}
PATH_PARAMETERS = {
    "kind": Parameter("kind", "what handles the message", _KIND, "path"),
    "id": Parameter("id", "its name within the kind", {**TEXT, "minLength": 1, "maxLength": ID_MAX_BYTES}, "path"),
    "verb": Parameter("verb", "what is asked of it", TEXT, "path"),
    "gate": Parameter("gate", "the name of the gate", {**TEXT, "minLength": 1}, "path"),
}
FILTERS = (
    Parameter("kind", "messages of this kind"),
    Parameter("lane", "messages on this lane", {"enum": list(LANES)}),
    Parameter("state", "messages in this state; those that are alive when left out", {"enum": list(STATES)}),
    Parameter("due_before", "messages due before then; +15m is fine", TEXT),
)
