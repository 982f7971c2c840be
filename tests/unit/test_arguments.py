"""Arguments: whatever is typed behind an option is its value, and refused with a sentence of ours."""

from typing import Any

import click
import pytest

from shared.errors import InvalidSetting
from starter.cli.arguments import COUNT, DURATION, MOMENT, PORT, PRIORITY, SECONDS, Command, read_number
from starter.cli.program import program, walk
from worker.options import parse

READERS: dict[Any, tuple[str, str]] = {
    DURATION["type"]: ("-1d", "is '-1d', which is negative; leave out the sign"),
    MOMENT["type"]: ("-15m", "is '-15m', no moment; write"),
    COUNT["type"]: ("-5", "is '-5'; give a whole number of at least 1"),
    PORT["type"]: ("-1", "is '-1'; give a port from 0 to 65535"),
    PRIORITY["type"]: ("-1", "is '-1'; give a whole number from 1 (first) to 5 (last)"),
    SECONDS["type"]: ("-.5s", "is '-.5s'; give a number, for example 30 or 0.5"),
}

VALUE_MAY_LACK = {"--kafka", "--wait"}
"""Behind these a word that begins with a dash is the next option."""


def find_options() -> list[tuple[str, str, Any]]:
    """Find every option of every command that takes a value, and what reads it."""
    return [
        (each.command_path, option.opts[0], getattr(option.type, "func", None))
        for each in walk()
        if isinstance(each.command, Command)
        for option in each.command.params
        if isinstance(option, click.Option) and not option.is_flag and option.opts[0] not in VALUE_MAY_LACK
    ]


def complain(words: list[str]) -> str:
    """Give the sentence that a command line is refused with, if it is."""
    try:
        parse(program, "dormice", words)
    except InvalidSetting as exc:
        return str(exc)
    return ""


def test_a_negative_value_is_no_option() -> None:
    """Of no command: its reader says what is wrong with it, if anything is."""
    asked: set[Any] = set()
    for command, option, reader in find_options():
        text, sentence = READERS.get(reader, ("-1d", ""))
        asked.add(reader)
        complaint = complain([*command.split()[1:], option, text])
        assert sentence in complaint, (command, option)
        assert "requires an argument" not in complaint, (command, option)
        assert "No such option" not in complaint, (command, option)

    assert asked >= set(READERS)


@pytest.mark.parametrize("text", ["nan", "inf", "x", ""])
def test_what_is_no_number_is_refused(text: str) -> None:
    """NaN and infinity are none that an option could use."""
    with pytest.raises(ValueError, match=f"is '{text}'; give a number, for example 30 or 0.5"):
        read_number(text)
