"""The fast path: judges ordinary rows without pydantic, many at once; a row with any doubt is left to the rules."""

import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from shared.errors import InvalidEnvelope
from shared.messages.envelope import (
    DEFAULTS,
    EnvelopeRules,
    drop_nulls,
    encode_payload_fast,
    has_plain_options,
    is_plain_id,
    parse_envelope,
)
from shared.messages.timespan import HORIZON

_FIRST_MOMENT = datetime(2, 1, 1, tzinfo=UTC)  # earlier ones may have an offset that leads out of the calendar
_ID_LIMIT = 10**18  # larger whole numbers are left to the rules
_DAY = timedelta(days=1)
_MOMENT = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}(:?\d{2})?)$"
"""Moments that Arrow reads as Python does: it refuses more digits than microseconds, and Python cuts them off."""
COLUMNS = (
    *("kind", "id", "lane", "scheduled_at", "payload"),
    *("tolerance_seconds", "priority", "tenant", "correlation_id", "idempotency_key"),
)
"""What is known of an ordinary row, in this order."""

_OPTIONS = COLUMNS[COLUMNS.index("payload") + 1 :]
_NO_OPTIONS = tuple(DEFAULTS[name] for name in _OPTIONS)


@dataclass(frozen=True, slots=True)
class FastPath:
    """The envelope's rules in a form that is quick to check; `lanes` has the default lane of each valid kind."""

    lanes: Mapping[str, str]
    rules: EnvelopeRules
    last_moment: datetime  # later ones may be beyond the rules' horizon

    @classmethod
    def of(cls, rules: EnvelopeRules) -> Self:
        """Make it for an installation's rules."""
        lanes: dict[str, str] = {}
        name_rules = rules.for_names()
        for kind in rules.kinds.keys() - rules.expires_after.keys():
            with suppress(InvalidEnvelope):
                lanes[kind] = parse_envelope({"kind": kind, "id": "-"}, name_rules).lane or ""
        # a day less, because the rules count from their import on
        return cls(lanes, rules, datetime.now(UTC) + HORIZON - _DAY)

    def check(self, fields: Mapping[str, Any], *, is_json: bool) -> tuple[Any, ...] | None:
        """Give a row's values for COLUMNS, with its payload as bytes of JSON, or None when in doubt.

        A moment's text is left to `read_moments`. `is_json`: orjson has parsed the fields.
        """
        fields = drop_nulls(fields)
        get = fields.get
        kind = get("kind")
        name = get("id")
        at = get("scheduled_at")
        payload = get("payload")
        if type(kind) is not str or (lane := self.lanes.get(kind)) is None:
            return None
        if type(name) is int and -_ID_LIMIT < name < _ID_LIMIT:
            name = str(name)
        if not is_plain_id(name):
            return None
        if at is not None and not (at.isascii() if type(at) is str else _has_offset(at)):
            return None

        if (text := encode_payload_fast(kind, payload, self.rules, is_parsed=is_json)) is None:
            return None

        others = len(fields) - 2 - ("scheduled_at" in fields) - ("payload" in fields)
        if not others:
            return (kind, name, lane, at, text, *_NO_OPTIONS)

        known = {**DEFAULTS, **fields}
        if len(known) > len(DEFAULTS) or not has_plain_options(known):
            return None
        return (kind, name, known["lane"] or lane, at, text, *[known[option] for option in _OPTIONS])

    def read_moments(self, given: Sequence[str | datetime | None]) -> Any:
        """Give moments as an array of Arrow, null for those in doubt, and for those that are null."""
        arrow: Any = importlib.import_module("pyarrow")
        compute: Any = importlib.import_module("pyarrow.compute")
        kind = arrow.timestamp("us", "UTC")
        if all(at is None for at in given):
            return arrow.nulls(len(given), kind)

        if any(isinstance(at, datetime) for at in given):
            # a table's column; where it is mixed, its texts are left to the rules
            moments = arrow.array([at if isinstance(at, datetime) else None for at in given], kind)
        else:
            texts = arrow.array(given, arrow.string())
            is_known = compute.match_substring_regex(texts, _MOMENT)
            moments = _read_texts(compute.if_else(is_known, texts, None), kind)

        first, last = (arrow.scalar(bound, kind) for bound in (_FIRST_MOMENT, self.last_moment))
        is_sure = compute.and_(compute.less_equal(first, moments), compute.less_equal(moments, last))
        return compute.if_else(is_sure, moments, None)


def _has_offset(at: Any) -> bool:
    """Whether a value is a moment with an offset that leads out of no calendar."""
    return type(at) is datetime and at.tzinfo is not None and at.year > 1


def _read_texts(texts: Any, kind: Any) -> Any:
    """Read moments, null for those that no calendar has; they are found by halves, because Arrow names none."""
    arrow: Any = importlib.import_module("pyarrow")
    try:
        return texts.cast(kind)
    except arrow.ArrowInvalid:
        if len(texts) == 1:
            return arrow.nulls(1, kind)
        middle = len(texts) // 2
        halves = (_read_texts(half, kind) for half in (texts[:middle], texts[middle:]))
        return arrow.concat_arrays(list(halves))
