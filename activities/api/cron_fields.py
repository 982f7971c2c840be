"""Cron fields: reads a cron expression in the ways people write one, and names the forms that are none here."""

import re
from typing import NamedTuple

STEP_EXAMPLE = "write for example '*/15'"
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = "january february march april may june july august september october november december"
_WEEKDAYS = "sunday monday tuesday wednesday thursday friday saturday"
_NUMBER = re.compile(r"[0-9]{1,9}")
_NAMES_SHORT = 3  # letters


class CronField(NamedTuple):
    """One of the five parts of a cron expression: its first and last number, and the names that stand for numbers."""

    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many values it has."""
        return self.last - self.first + 1


WEEKDAY = CronField("weekday", 0, 6, tuple(_WEEKDAYS.split()))
DAY = CronField("day of the month", 1, 31)
FIELDS = (
    CronField("minute", 0, 59),
    CronField("hour", 0, 23),
    DAY,
    CronField("month", 1, 12, tuple(_MONTHS.split())),
    WEEKDAY,
)

_FOREIGN = (
    (re.compile(r"\?"), "is a form of Quartz; write '*'"),
    (re.compile(r"l-[0-9]+"), "is a form of Quartz for a day before the last; write 'L' for the last, or numbers"),
    (re.compile(r"[0-9]+w"), "is a form of Quartz for the nearest working day; write 'LW' for the last, or numbers"),
    (re.compile(r"h(\(.*\))?(/[0-9]+)?"), "is a form of Jenkins; write a number, and spread by the tolerance of Again"),
    (re.compile(r".*~.*"), "is a form of cronie for a random moment; write a number"),
)
"""What other programs take, with what to write instead."""


def read_expression(text: str) -> str:
    """Give the five fields of an expression with numbers for names, and lists for ranges; raises ValueError."""
    parts = _split(text)
    fields = zip(FIELDS, parts, strict=True)
    return " ".join(",".join(_read_term(field, term) for term in part.split(",")) for field, part in fields)


def _split(text: str) -> list[str]:
    parts = text.split()
    first = parts[0].lower() if parts else ""

    if first.startswith("@"):
        return _expand(first, len(parts)).split()
    if first.startswith(("tz=", "cron_tz=")):
        raise ValueError(f"the zone stands beside the expression; write zone={parts[0].partition('=')[2]!r}")
    if len(parts) == len(FIELDS):
        return parts

    order = "minute, hour, day of the month, month and weekday"
    if len(parts) > len(FIELDS):
        raise ValueError(f"has {len(parts)} fields; write five, without seconds or years: {order}")
    raise ValueError(f"has {len(parts)} of five fields; write {order}, for example '0 8 * * mon-fri'")


def _expand(alias: str, words: int) -> str:
    if words == 1 and alias in ALIASES:
        return ALIASES[alias]
    if alias == "@reboot":
        raise ValueError("no clock shows when a machine starts; start a message there instead")
    if alias == "@every":
        raise ValueError("an interval is no time of a clock; return Again(after=timedelta(…)) instead")
    raise ValueError(f"no such word is known; write one of {', '.join(ALIASES)}, or five fields")


def _read_term(field: CronField, term: str) -> str:
    """Give one item of a field's list as CronSim reads it."""
    text = term.lower()
    if text == "*" or (field is DAY and text in ("l", "lw")):
        return text
    if field is WEEKDAY and (found := _read_weekday_of_month(text)):
        return found

    for pattern, problem in _FOREIGN:
        if pattern.fullmatch(text):
            raise ValueError(f"{field.name} {term!r} {problem}")
    return _read_range(field, term)


def _read_weekday_of_month(text: str) -> str:
    """Give a form such as `fri#2` or `fril` with the number of its day; nothing for any other."""
    found = re.fullmatch(r"(\w+)#([1-5])|(\w+)l", text, re.ASCII)
    day = _find_number(WEEKDAY, found[1] or found[3]) if found else None
    if not found or day is None:
        return ""
    return f"{day}#{found[2]}" if found[2] else f"{day}L"


def _read_range(field: CronField, term: str) -> str:
    span, slash, step_text = term.partition("/")
    begin_text, hyphen, end_text = span.partition("-")
    step = _read_step(field, term, step_text) if slash else 1

    if span == "*":
        _check_step(field, term, step, field.size)
        return term

    begin = _read_number(field, term, begin_text)
    if hyphen:
        values = _list_values(field, begin, _read_number(field, term, end_text))
        _check_step(field, term, step, len(values))
        return ",".join(map(str, values[::step]))
    if slash:
        _check_step(field, term, step, field.size)
    return f"{begin}/{step}" if slash else str(begin)


def _list_values(field: CronField, begin: int, end: int) -> list[int]:
    """Give the values of a range, which may lead over the field's end, as `22-6` and `fri-mon` do."""
    if end < begin:
        end += field.size
    return [field.first + (value - field.first) % field.size for value in range(begin, end + 1)]


def _read_step(field: CronField, term: str, text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) == 0:
        raise ValueError(f"{field.name} {term!r} has no step after its '/'; {STEP_EXAMPLE}")
    return int(text)


def _check_step(field: CronField, term: str, step: int, count: int) -> None:
    if step > count:
        problem = f"has a step beyond its range; give 1 to {count}, or return Again(after=timedelta(…)) instead"
        raise ValueError(f"{field.name} {term!r} {problem}")


def _read_number(field: CronField, term: str, text: str) -> int:
    found = _find_number(field, text.lower())
    if found is not None:
        return found

    known = f"{field.first} to {field.last}"
    if field.names:
        known += f" or names such as '{field.names[1][:_NAMES_SHORT]}'"
    raise ValueError(f"{field.name} {term!r} is no number, range or list of {known}; correct it")


def _find_number(field: CronField, text: str) -> int | None:
    for position, name in enumerate(field.names):
        if text in (name, name[:_NAMES_SHORT]):
            return field.first + position
    if not _NUMBER.fullmatch(text):
        return None

    number = int(text)
    # Sunday has two numbers
    last = field.last + 1 if field is WEEKDAY else field.last
    return number if field.first <= number <= last else None
