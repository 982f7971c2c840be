"""What a webhook's answer says is next, read into an outcome; each flaw is a sentence that names the field."""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError

from activities.api.outcome import UNCHANGED, Again, Done, Reject
from shared.errors import RetryLater
from shared.lanes import LANES
from shared.messages.json_value import find_flaw, find_size_flaw, parse_json
from shared.messages.timespan import HORIZON, parse_moment

WORDS = ("again", "done", "reject", "retry_after")
REFUSALS = ("reject", "retry_after")  # what an answer with another status than 2xx may say
AGAIN_FIELDS = ("after", "at", "earliest", "tolerance", "data", "reason", "lane")

_DURATION = TypeAdapter(timedelta)


class InvalidAnswer(RetryLater):
    """An answer that can't be followed: a failed attempt, because whoever wrote it may mend it meanwhile."""


class Pause(NamedTuple):
    """What `retry_after` says: the same version again after a delay."""

    delay: timedelta


def read_answer(
    body: bytes, payload: Mapping[str, Any], payload_max_bytes: int
) -> Again | Done | Reject | Pause | None:
    """Read the body of an answer with status 2xx; None where it says nothing. Raises InvalidAnswer."""
    said = _read_object(body)
    if not said:
        return None
    if unknown := [name for name in said if name not in WORDS]:
        raise InvalidAnswer(f"answer.{unknown[0][:40]}: is not a field of an answer; use one of {', '.join(WORDS)}")
    if len(said) > 1:
        raise InvalidAnswer(f"answer: says {' and '.join(said)}; say one thing")
    if "done" in said:
        if flaw := find_flaw(said["done"]) or find_size_flaw(said["done"], payload_max_bytes):
            raise InvalidAnswer(f"answer.done: {flaw}")
        return Done(said["done"])
    return _read_again(said["again"], payload, payload_max_bytes) if "again" in said else _read_refusal(said)


def read_refusal(body: bytes) -> Reject | Pause | None:
    """Read the body of an answer with another status; None where it says neither `reject` nor `retry_after`."""
    try:
        said = _read_object(body)
    except InvalidAnswer:  # the page of some proxy
        return None
    return _read_refusal({name: said[name] for name in REFUSALS if name in said})


def _read_refusal(said: Mapping[str, Any]) -> Reject | Pause | None:
    if "reject" in said:
        return Reject(_read_text(said["reject"], "answer.reject") or "rejected by the webhook")
    return Pause(_read_duration(said["retry_after"], "answer.retry_after")) if said else None


def _read_object(body: bytes) -> Mapping[str, Any]:
    """Parse the body if it is an object; any other says nothing, whatever its Content-Type."""
    if not body.lstrip().startswith(b"{"):
        return {}
    try:
        return parse_json(body)
    except ValueError as exc:
        raise InvalidAnswer(f"answer: {exc}; write JSON") from exc


def _read_again(value: Any, payload: Mapping[str, Any], payload_max_bytes: int) -> Again:
    if not isinstance(value, Mapping):
        raise InvalidAnswer('answer.again: is no object; write for example {"after": "PT1H"}')
    said = cast("Mapping[str, Any]", value)
    if unknown := [name for name in said if name not in AGAIN_FIELDS]:
        known = ", ".join(AGAIN_FIELDS)
        raise InvalidAnswer(f"answer.again.{unknown[0][:40]}: is not a field of again; use {known}")
    after, at = said.get("after"), said.get("at")
    if (after is None) == (at is None):
        raise InvalidAnswer("answer.again: needs exactly one of after and at")
    lane, earliest, tolerance = said.get("lane"), said.get("earliest"), said.get("tolerance")
    if lane is not None and lane not in tuple(LANES):
        raise InvalidAnswer(f"answer.again.lane: is {_show(lane)}; use one of {', '.join(LANES)}")
    return Again(
        after=None if after is None else _read_duration(after, "answer.again.after"),
        at=None if at is None else _read_moment(at, "answer.again.at"),
        earliest=None if earliest is None else _read_earliest(earliest),
        tolerance=None if tolerance is None else _read_duration(tolerance, "answer.again.tolerance"),
        payload=_replace_data(payload, said["data"], payload_max_bytes) if "data" in said else UNCHANGED,
        reason=_read_text(said.get("reason", ""), "answer.again.reason"),
        lane=lane,
    )


def _replace_data(payload: Mapping[str, Any], data: Any, payload_max_bytes: int) -> dict[str, Any]:
    replaced = {**payload, "data": data}
    if flaw := find_flaw(replaced) or find_size_flaw(replaced, payload_max_bytes):
        raise InvalidAnswer(f"answer.again.data: the payload with it {flaw}")
    return replaced


def _read_earliest(value: Any) -> timedelta | datetime:
    where = "answer.again.earliest"
    is_moment = isinstance(value, str) and value[:1].isdigit()
    return _read_moment(value, where) if is_moment else _read_duration(value, where)


def _read_duration(value: Any, where: str) -> timedelta:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and math.isfinite(value):
        most = HORIZON.total_seconds() + 1  # dormice clamps it, and says so
        return timedelta(seconds=min(max(value, -most), most))
    if isinstance(value, str) and value.startswith(("P", "-P")):
        try:
            return _DURATION.validate_python(value)
        except ValidationError:
            pass
    raise InvalidAnswer(f'{where}: is {_show(value)}, no duration; write seconds, or ISO 8601 like "PT1H30M"')


def _read_moment(value: Any, where: str) -> datetime:
    try:
        return parse_moment(value if isinstance(value, str) else str(value)[:40])
    except ValueError as exc:
        raise InvalidAnswer(f"{where}: {exc}") from exc


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidAnswer(f"{where}: is {_show(value)}; give a string")
    return value


def _show(value: Any) -> str:
    return repr(value)[:60]
