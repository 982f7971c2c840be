"""Payload models: turn what a message carries into what its handler declares, and back into plain JSON."""

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from shared.errors import EnvelopeFlaw, GiveUp, InvalidHandler, InvalidOutcome
from shared.messages.json_value import copy_json, encode_json, find_flaw
from shared.messages.message import REASON_MAX, clip_reason

FIELD_MAX = 100  # characters of a field's name
NEXT_STEP = "; replace it with 'dormice revise', or let before= of its handler read it; then 'dormice now'"


class InvalidPayload(GiveUp):
    """A payload that its handler's model can't read; the text is what its message is parked with."""

    def __init__(self, field: str, problem: str, flaw: EnvelopeFlaw = "InvalidField") -> None:
        super().__init__(f"{field}: {problem}"[: REASON_MAX - len(NEXT_STEP)] + NEXT_STEP)
        self.field = field
        self.problem = problem
        self.flaw: EnvelopeFlaw = flaw


@dataclass(frozen=True, slots=True)
class PayloadModel:
    """What the payloads of a kind are, and how to read those that an older model wrote.

    A payload is read at each call; what is stored stays as its sender or its handler's last outcome wrote it.
    """

    name: str
    adapter: TypeAdapter[Any]
    before: Callable[[Any], Any] | None = None  # makes JSON that this model can read of JSON that it can't

    def read(self, payload: Any) -> Any:
        """Give what the handler gets for a payload of plain JSON; raises InvalidPayload for one that can't be read."""
        try:
            return self._validate(payload)
        except InvalidPayload as exc:
            if self.before is None:
                raise
            own = exc

        try:
            return self._validate(self.before(copy_json(payload)))
        except InvalidPayload as exc:
            problem = f"{own.problem}, and after before= {exc.field}: {exc.problem}"
            raise InvalidPayload(own.field, problem, own.flaw) from exc
        except Exception as exc:
            # `before` is a handler author's; the message is rejected with this sentence, like one that does not fit
            raise InvalidPayload(own.field, f"{own.problem}, and before= raised {_describe(exc)}", own.flaw) from exc

    def write(self, value: Any) -> Any:
        """Give what is stored for a returned payload, which may be plain JSON; raises InvalidOutcome if it is unfit."""
        try:
            if find_flaw(value) is not None:
                value = self.adapter.dump_python(value, mode="json", by_alias=True, warnings="error")
        except Exception as exc:
            # a model's own code writes it; the outcome is a rejection with this sentence
            problem = f"the returned payload is no {self.name} and no JSON ({_describe(exc)})"
            raise InvalidOutcome(f"{problem}; return Again(payload={self.name}(…))") from exc

        if find_flaw(value) is None:
            try:
                self._validate(value)
            except InvalidPayload as exc:
                problem = f"the returned payload could not be read again, {exc.field}: {exc.problem}"
                raise InvalidOutcome(f"{problem}; correct it in the handler") from exc

        return value

    def describe(self) -> dict[str, Any]:
        """Give the JSON Schema of what a sender may write; one that takes anything if the model can't give it."""
        try:
            return self.adapter.json_schema(mode="validation", by_alias=True)
        except PydanticInvalidForJsonSchema as exc:
            return {"$comment": f"{self.name} has no JSON Schema ({_describe(exc)})"}

    def _validate(self, payload: Any) -> Any:
        if flaw := find_flaw(payload):
            raise InvalidPayload("payload", flaw)
        try:
            # as JSON, because only so does a strict model take a moment's text
            return self.adapter.validate_json(encode_json(payload))
        except ValidationError as exc:
            raise _translate(exc, self.name) from exc
        except Exception as exc:
            # a model's own validators raise what they like; the message is rejected, like one that does not fit
            raise InvalidPayload("payload", f"its model raised {_describe(exc)}") from exc


def make_model(where: str, payload: Any, before: Callable[[Any], Any] | None) -> PayloadModel | None:
    """Make the model that a handler declares, None for none; raises InvalidHandler for an unusable one."""
    if payload is None and before is None:
        return None
    if payload is None:
        raise InvalidHandler(f"{where}: before= is given without payload=; name the model that it writes for")

    if before is not None and (not callable(before) or inspect.iscoroutinefunction(before)):
        raise InvalidHandler(
            f"{where}: before={before!r} is no function; give one from old to new JSON, no 'async def'"
        )

    name = payload.__name__ if isinstance(payload, type) else repr(payload)[:60]
    if inspect.isroutine(payload):  # pydantic would call it with what it reads
        raise InvalidHandler(
            f"{where}: payload={name} is a function; give a pydantic model, a dataclass or a TypedDict"
        )

    try:
        adapter = TypeAdapter[Any](payload)
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
    except Exception as exc:
        # pydantic builds it with a handler author's own code; the process ends with this sentence
        problem = _describe(exc).partition(". ")[0]  # pydantic goes on with advice for its own users
        hint = "give a pydantic model, a dataclass or a TypedDict, defined above the handler"
        raise InvalidHandler(f"{where}: payload={name} is unusable ({problem}); {hint}") from exc

    return PayloadModel(name, adapter, before)


def _translate(exc: ValidationError, name: str) -> InvalidPayload:
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(("payload", *(repr(str(part))[1:-1] for part in first["loc"])))[:FIELD_MAX]
    if first["type"] == "missing":
        return InvalidPayload(field, "is missing", "MissingField")
    if first["type"] == "extra_forbidden":
        return InvalidPayload(field, f"is no field of {name}")
    return InvalidPayload(field, clip_reason(first["msg"].removeprefix("Value error, ").removeprefix("Input ")))


def _describe(exc: Exception) -> str:
    """Describe an error of code that is not ours, even one whose text can't be had."""
    return clip_reason(traceback.format_exception_only(exc)[-1].strip().partition("\n")[0])
