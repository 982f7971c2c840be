"""What a webhook's answer says is next, read into an outcome; each flaw is a sentence that names the field."""

import math
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from activities.api.outcome import UNCHANGED, Again, Done, Reject
from shared.errors import RetryLater
from shared.lanes import LANES
from shared.messages.json_value import find_flaw, find_size_flaw, parse_json
from shared.messages.timespan import HORIZON, parse_moment

WORDS = ("again", "done", "reject", "retry_after")
REFUSALS = ("reject", "retry_after")  # what an answer with another status than 2xx may say
AGAIN_FIELDS = ("after", "at", "earliest", "tolerance", "data", "reason", "lane")
CODINGS = ("", "identity", "gzip", "x-gzip")  # of the content: none, or the one that was asked for
START_MAX = 80  # characters of a body that a reason shows

ACKNOWLEDGEMENTS = frozenset({"ok", "okay", "success", "accepted", "received", "queued", "delivered", "true", "1"})
"""What services write that answer in plain text, as Slack does: they have the message."""

_DURATION = TypeAdapter(timedelta)

_Found = TypeVar("_Found")


class InvalidAnswer(RetryLater):
    """An answer that can't be followed: a failed attempt, because whoever wrote it may mend it meanwhile."""


@dataclass(frozen=True, slots=True)
class WebhookAnswer:
    """What a webhook replied: names of headers are in lower case, and gzip in the body is decoded."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether its status is 2xx."""
        return 200 <= self.status < 300


class Pause(NamedTuple):
    """What `retry_after` says: the same version again after a delay."""

    delay: timedelta


def read_answer(
    answer: WebhookAnswer, payload: Mapping[str, Any], payload_max_bytes: int, *, is_strict: bool
) -> Again | Done | Reject | Pause | None:
    """Read what an answer says is next; None where only its status tells. Raises InvalidAnswer."""
    if not answer.is_success:
        return _read_failure(answer)

    # a receiver with nothing to say, and a program whose files begin with a byte order mark
    text = answer.body.removeprefix(BOM_UTF8).strip()
    if not text or (not is_strict and _is_acknowledgement(text)):
        return Done()

    said = _read_object(answer)
    if not is_strict and not any(name in WORDS for name in said):
        return Done()  # the answer of a service that does not know dormice: it has the message

    return _follow(said, payload, payload_max_bytes)


def _is_acknowledgement(text: bytes) -> bool:
    word = text.strip(b'".!').lower()
    return word.isascii() and word.decode() in ACKNOWLEDGEMENTS


def _read_failure(answer: WebhookAnswer) -> Reject | Pause | None:
    try:
        said = _read_object(answer)
    except InvalidAnswer:  # the page of some proxy
        return None
    return _read_refusal({name: said[name] for name in REFUSALS if name in said})


def _read_object(answer: WebhookAnswer) -> Mapping[str, Any]:
    """Parse the body, whatever its Content-Type; raises InvalidAnswer with its first characters if it is no object."""
    try:
        value = parse_json(answer.body)
    except ValueError as exc:
        flaw = str(exc)
    else:
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        flaw = "is no JSON object"

    # asked last: some servers name a character set here, before a body that is plain
    coding = answer.headers.get("content-encoding", "")
    if coding.strip().lower() not in CODINGS:
        flaw = f"has the content coding {_show(coding)}, which was not asked for"
    raise InvalidAnswer(f"answer: {flaw}; send a JSON object or nothing, not {_show_start(answer.body)}")


def _follow(
    said: Mapping[str, Any], payload: Mapping[str, Any], payload_max_bytes: int
) -> Again | Done | Reject | Pause | None:
    known = ", ".join(WORDS)
    if unknown := [name for name in said if name not in WORDS]:
        raise InvalidAnswer(f"answer.{unknown[0][:40]}: is not a field of an answer; use one of {known}")
    if not said:
        raise InvalidAnswer(f"answer: says nothing; use one of {known}")
    if len(said) > 1:
        raise InvalidAnswer(f"answer: says {' and '.join(said)}; say one thing")

    if "again" in said:
        return _read_again(said["again"], payload, payload_max_bytes)
    if "done" in said:
        return _read_done(said["done"], payload_max_bytes)
    return _read_refusal(said)


def _read_done(result: Any, payload_max_bytes: int) -> Done:
    if flaw := find_flaw(result) or find_size_flaw(result, payload_max_bytes):
        raise InvalidAnswer(f"answer.done: {flaw}")
    return Done(result)


def _read_refusal(said: Mapping[str, Any]) -> Reject | Pause | None:
    if "reject" in said:
        return Reject(_read_text(said["reject"], "answer.reject") or "rejected by the webhook")
    return Pause(_read_duration(said["retry_after"], "answer.retry_after")) if said else None


def _read_again(value: Any, payload: Mapping[str, Any], payload_max_bytes: int) -> Again:
    if not isinstance(value, Mapping):
        raise InvalidAnswer('answer.again: is no object; write for example {"after": "PT1H"}')

    said = cast("Mapping[str, Any]", value)
    if unknown := [name for name in said if name not in AGAIN_FIELDS]:
        known = ", ".join(AGAIN_FIELDS)
        raise InvalidAnswer(f"answer.again.{unknown[0][:40]}: is not a field of again; use {known}")

    if (said.get("after") is None) == (said.get("at") is None):
        raise InvalidAnswer("answer.again: needs exactly one of after and at")

    lane = said.get("lane")
    if lane is not None and lane not in tuple(LANES):
        raise InvalidAnswer(f"answer.again.lane: is {_show(lane)}; use one of {', '.join(LANES)}")

    changed: Any = UNCHANGED
    if "data" in said:
        changed = _replace_data(payload, said["data"], payload_max_bytes)

    return Again(
        after=_read_optional(said, "after", _read_duration),
        at=_read_optional(said, "at", _read_moment),
        earliest=_read_optional(said, "earliest", _read_earliest),
        tolerance=_read_optional(said, "tolerance", _read_duration),
        payload=changed,
        reason=_read_text(said.get("reason", ""), "answer.again.reason"),
        lane=lane,
    )


def _replace_data(payload: Mapping[str, Any], data: Any, payload_max_bytes: int) -> dict[str, Any]:
    replaced = {**payload, "data": data}
    if flaw := find_flaw(replaced) or find_size_flaw(replaced, payload_max_bytes):
        raise InvalidAnswer(f"answer.again.data: the payload with it {flaw}")
    return replaced


def _read_optional(said: Mapping[str, Any], name: str, read: Callable[[Any, str], _Found]) -> _Found | None:
    return None if said.get(name) is None else read(said[name], f"answer.again.{name}")


def _read_earliest(value: Any, where: str) -> timedelta | datetime:
    is_moment = isinstance(value, str) and value[:1].isdigit()
    return _read_moment(value, where) if is_moment else _read_duration(value, where)


def _read_duration(value: Any, where: str) -> timedelta:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and math.isfinite(value):
        maximum = HORIZON.total_seconds() + 1  # dormice clamps it, and says so
        return timedelta(seconds=min(max(value, -maximum), maximum))
    if isinstance(value, str) and value.startswith(("P", "-P")):
        try:
            return _DURATION.validate_python(value)
        except ValidationError:
            pass

    raise InvalidAnswer(f'{where}: is {_show(value)}, no duration; write seconds, or ISO 8601 like "PT1H30M"')


def _read_moment(value: Any, where: str) -> datetime:
    try:
        text = value if isinstance(value, str) else str(value)[:40]
        return parse_moment(text)
    except ValueError as exc:
        raise InvalidAnswer(f"{where}: {exc}") from exc


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidAnswer(f"{where}: is {_show(value)}; give a string")
    return value


def _show(value: Any) -> str:
    return repr(value)[:60]


def _show_start(body: bytes) -> str:
    """Quote the first characters of a body; those that can't be printed, or are not UTF-8, are replaced."""
    text = body[: 4 * START_MAX].decode(errors="replace")  # a character has four bytes at most
    return repr(text[:START_MAX])
