"""Reasons of parked messages, told apart by their words: numbers, names and addresses in them make no group each."""

import re
from collections import defaultdict
from collections.abc import Sequence

ANYTHING = "…"
"""What stands in the reason of a group, and in a filter, for any text."""
VALUES_MAX = 5
"""Of values that come again, as codes of a status do, so many are told apart."""

FIELDS = frozenset({"payload", "answer"})
"""With what the path of a field begins, as in "payload.port"."""

_HOST = re.compile(r"(?:[\w-]+\.)+[A-Za-z][\w-]*")
_PART = re.compile(
    r"""
    (?<!\w)'[^']*'(?!\w) | (?<!\w)"[^"]*"(?!\w) | `[^`]*`   # what is quoted; the mark in "can't" quotes nothing
    | \w+://[^\s,;)'"]+
    | [\w.+\-/@%#]*[\w/%] (?: (?<=\d):\d [\w.+\-/@%#]* )*   # a word, a number, a path, or a moment with its colons
    """,
    re.VERBOSE,
)


def group_reasons(reasons: Sequence[str]) -> list[str]:
    """Give the reason of each one's group: the reason itself, with `ANYTHING` for values that hardly come twice.

    Reasons with the same words are of one group, unless a value in them is one of a few that come again.
    """
    by_words = defaultdict[tuple[str, ...], list[int]](list)
    values = list[Sequence[str]]()
    for number, reason in enumerate(reasons):
        words, found = _split(reason)
        by_words[words].append(number)
        values.append(found)

    grouped = [*reasons]
    for words, numbers in by_words.items():
        columns = zip(*(values[number] for number in numbers), strict=True)
        are_distinct = [_come_again(column) for column in columns]
        for number in numbers:
            shown = [
                value if is_distinct else ANYTHING
                for value, is_distinct in zip(values[number], are_distinct, strict=True)
            ]
            grouped[number] = _join(words, shown)
    return grouped


def holds(reason: str, wanted: str) -> bool:
    """Whether a reason holds a text, in which `ANYTHING` stands for any text."""
    begin = 0
    for part in wanted.split(ANYTHING):
        found = reason.find(part, begin)
        if found < 0:
            return False
        begin = found + len(part)
    return True


def _split(reason: str) -> tuple[tuple[str, ...], list[str]]:
    """Give the words of a reason, and the values that stand between them."""
    words = list[str]()
    values = list[str]()
    end = 0
    for part in _PART.finditer(reason):
        if _is_value(part[0]):
            words.append(reason[end : part.start()])
            values.append(part[0])
            end = part.end()

    return (*words, reason[end:]), values


def _is_value(part: str) -> bool:
    is_address = "@" in part or "://" in part or part.startswith("/") or part.count("/") > 1
    return is_address or part[0] in "'\"`" or any(map(str.isdigit, part)) or _is_host(part)


def _is_host(part: str) -> bool:
    """Whether a part may be the name of a host, as in most reasons of requests; fields of a message have dots, too."""
    return _HOST.fullmatch(part) is not None and part.partition(".")[0] not in FIELDS


def _come_again(column: Sequence[str]) -> bool:
    """Whether the values of one place are few, and not one a message."""
    count = len(set(column))
    return count == 1 or (count <= VALUES_MAX and count < len(column))


def _join(words: Sequence[str], values: Sequence[str]) -> str:
    parts = [words[0]]
    for value, following in zip(values, words[1:], strict=True):
        parts += [value, following]
    return "".join(parts)
