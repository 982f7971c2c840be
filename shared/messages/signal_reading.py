"""Reading signals: turns arguments of any number, encoding and type into a signal, or says what is wrong.

Anybody who may signal a workflow may send it anything, and a workflow task that raises is retried for ever. So
everything is checked here, to the last field. Every function raises only ValueError, with half a sentence.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, cast

from temporalio.common import RawValue

from shared.messages.json_value import find_flaw, parse_json
from shared.messages.signals import MOMENTS, VERBS, PullMany, Signal, UnreadableSignal
from shared.messages.timespan import MOMENT_MAX

SHOWN_MAX = 40  # characters of a wrong value that an error shows
SOURCE_MAX_BYTES = 300  # a topic's name has at most 249, and a message keeps the last of its sources for ever
TRACE_MAX = 1000  # characters of a trace context, which a message keeps too; W3C asks for 512 of `tracestate`
KEY_MAX_BYTES = 200  # as in the envelope
TOKEN_MAX = 200  # characters of a token; a pack keeps tokens for minutes
AnySignal = TypeVar("AnySignal", bound=Signal)
Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class PackSignal:
    """A signal for some messages of a pack, or what is wrong with it; the pack recognizes a repetition by `token`."""

    ids: list[str]
    signal: Signal | UnreadableSignal
    token: str = ""


def read_object(arguments: Sequence[Any]) -> dict[str, Any]:
    """Read the one JSON object that a signal takes; none and null count as empty, because the Web UI sends them."""
    if len(arguments) > 1:
        raise ValueError(f"it came with {len(arguments)} arguments; give one")
    given = check_readable(arguments[0]) if arguments else None
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ValueError(f"its input is {show(given)}; give an object")  # noqa: TRY004 — readers raise ValueError alone
    return cast("dict[str, Any]", given)


def read_checked_object(arguments: Sequence[Any]) -> dict[str, Any]:
    """Read the one JSON object that a signal takes, and check that its content can be sent on as JSON."""
    return _check_content(read_object(arguments))


def read_nothing(arguments: Sequence[Any]) -> None:
    """Check that a signal which takes no input came with none, null or an empty object."""
    if read_object(arguments):
        raise ValueError("it takes no input")


def check_readable(argument: Any) -> Any:
    """Return an argument of a signal as the converter has read it; raises if it could not read it."""
    if isinstance(argument, RawValue):
        raise ValueError(f"its input {_explain(argument)}")  # noqa: TRY004 — readers raise ValueError alone
    if isinstance(argument, bytes | bytearray):
        raise ValueError("its input is binary; give JSON")  # noqa: TRY004 — readers raise ValueError alone
    return argument


def read_signal(kind: type[AnySignal], arguments: Sequence[Any]) -> AnySignal:
    """Read a signal as a message gets it."""
    return _build(kind, read_checked_object(arguments))


def read_steering(name: str, arguments: Sequence[Any]) -> PackSignal:
    """Read a signal as a pack gets it; raises if it names no messages, which remember any other fault of it."""
    given = read_object(arguments)
    ids: Any = given.get("ids")
    if not isinstance(ids, list) or not all(map(is_text, cast("list[Any]", ids))) or find_flaw(ids):
        raise ValueError("a pack wants an object with ids, a list of strings, beside the signal's own fields")

    ids = cast("list[str]", ids)
    kind = VERBS[name]

    token = given.get("token", "")
    try:
        if token != "":
            check_token(token)
        return PackSignal(ids, _build(kind, _check_content(given)), token)
    except ValueError as exc:
        known = token if is_token(token) else ""
        return PackSignal(ids, UnreadableSignal(kind.__name__, str(exc)), known)


def read_pull_forward(arguments: Sequence[Any]) -> PackSignal | PullMany:
    """Read a pack's `pull_forward`: for the messages in `ids`, or without `ids` for the `count` earliest due."""
    given = read_object(arguments)
    if "ids" in given:
        return read_steering("pull_forward", arguments)
    count, at, until, token = (given.get(field.name) for field in fields(PullMany))
    if not (is_int(count) and is_moment(at) and is_moment(until) and is_token(token)) or cast("int", count) <= 0:
        raise ValueError("a pack wants ids, or count, at, until and token")
    return PullMany(cast("int", count), cast("float", at), cast("float", until), cast("str", token))


def require(name: str, value: Any, is_right: Check, wanted: str) -> Any:
    """Return a value if it is right; the error says what is wanted instead."""
    if not is_right(value):
        raise ValueError(f"{name} is {show(value)}; give {wanted}")
    return value


def is_text(value: Any) -> bool:
    """Return whether a value is a string."""
    return isinstance(value, str)


def is_int(value: Any) -> bool:
    """Return whether a value is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_offset(value: Any) -> bool:
    """Return whether a value is a whole number of at most 64 bits; a message keeps the last one of each source."""
    return is_int(value) and -(2**63) < value < 2**63


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number that a float can hold."""
    if isinstance(value, float):
        return math.isfinite(value)
    return is_offset(value)


def is_source(value: Any) -> bool:
    """Return whether a value can name where a record comes from; empty for no record."""
    return isinstance(value, str) and len(value.encode(errors="replace")) <= SOURCE_MAX_BYTES


def whole_number(minimum: int, maximum: int) -> Check:
    """Give the check for a whole number within bounds."""
    return lambda value: is_int(value) and minimum <= value <= maximum


def number(minimum: float, maximum: float) -> Check:
    """Give the check for a number within bounds."""
    return lambda value: is_number(value) and minimum <= value <= maximum


is_moment = number(0, MOMENT_MAX)  # seconds since the epoch that fit dates and timers


def is_token(value: Any) -> bool:
    """Return whether a value can be a token, by which a pack recognizes a repeated signal."""
    return isinstance(value, str) and 0 < len(value) <= TOKEN_MAX and find_flaw(value) is None


def check_token(value: Any) -> str:
    """Return a token if it is valid."""
    return require("its token", value, is_token, f"up to {TOKEN_MAX} characters")


def show(value: Any) -> str:
    """Describe a wrong value for an error: its type, and the value itself if it is short."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        value = value[:SHOWN_MAX]
    if is_int(value) and not is_number(value):
        return "a number of too many digits"
    return "null" if value is None else repr(value)


def _build(kind: type[AnySignal], given: Mapping[str, Any]) -> AnySignal:
    values: dict[str, Any] = {}
    for field in fields(kind):
        is_required = field.default is MISSING
        if field.name not in given and is_required:
            raise ValueError(f"{field.name} is missing")

        # null is absent, but for a payload, which it may be
        if is_required or given.get(field.name) is not None:
            require(field.name, given[field.name], *_FIELDS[field.name])
            values[field.name] = given[field.name]
    return kind(**values)


def _check_content(given: dict[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if flaw := find_flaw(name) or find_flaw(value):
            raise ValueError(flaw)
    return given


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and len(value.encode(errors="replace")) <= KEY_MAX_BYTES


def _is_trace(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    trace = cast("dict[str, Any]", value)
    return all(map(is_text, trace.values())) and sum(map(len, [*trace, *trace.values()])) <= TRACE_MAX


_FIELDS: dict[str, tuple[Check, str]] = {
    "reason": (is_text, "a string"),
    "idempotency_key": (_is_key, f"a string of at most {KEY_MAX_BYTES} bytes"),
    "source": (is_source, f"a string of at most {SOURCE_MAX_BYTES} bytes"),
    **dict.fromkeys(MOMENTS, (is_text, "a moment, for example 2026-11-21T20:00:00Z")),
    "priority": (is_int, "a whole number from 1 to 5"),
    "payload": (lambda _: True, "JSON"),
    **dict.fromkeys(("offset", "if_version"), (is_offset, "a whole number of at most 64 bits")),
    "lane": (is_text, "the name of a lane"),
    "trace": (_is_trace, f"an object of strings, of at most {TRACE_MAX:,} characters in all"),
}


def _explain(raw: RawValue) -> str:
    encoding = raw.payload.metadata.get("encoding", b"").decode(errors="replace")
    if encoding != "json/plain":
        return f"has the encoding {encoding[:SHOWN_MAX]!r}, which is none of those read here; give JSON"
    try:
        parse_json(raw.payload.data)
    except ValueError as exc:
        return str(exc)
    return "can't be read; give JSON"
