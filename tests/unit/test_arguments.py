"""Arguments: whatever is typed behind an option is its value, and refused with a sentence of ours."""

from typing import Any

import pytest

from shared.errors import InvalidSetting
from starter.cli import arguments
from starter.cli.arguments import CommandParser
from starter.cli.parser import build_parser

READERS: dict[Any, tuple[str, str]] = {
    arguments.duration: ("-1d", "is '-1d', which is negative; leave out the sign"),
    arguments.moment: ("-15m", "is '-15m', no moment; write"),
    arguments.count: ("-5", "is '-5'; give a whole number of at least 1"),
    arguments.port: ("-1", "is '-1'; give a port from 0 to 65535"),
    arguments.priority: ("-1", "is '-1'; give a whole number from 1 (first) to 5 (last)"),
    arguments.number: ("-.5s", "is '-.5s'; give a number, for example 30 or 0.5"),
}


def find_options() -> list[tuple[CommandParser, str, Any]]:
    """Find every option of every command that takes a value."""
    return [
        (parser, action.option_strings[0], action.type)
        for parser in build_parser()[1].leaves
        for action in parser._actions  # pyright: ignore[reportPrivateUsage] — argparse shows them nowhere else
        if action.option_strings and action.nargs in (None, "?") and action.type is not None
    ]


def test_a_negative_value_is_no_option() -> None:
    """Of no command: its reader says what is wrong with it, if anything is."""
    asked: set[Any] = set()
    for parser, option, reader in find_options():
        text, sentence = READERS.get(reader, ("-1d", ""))
        asked.add(reader)
        with pytest.raises(InvalidSetting) as caught:
            parser.parse_args([option, text, "--no-such-option"])
        assert "expected one argument" not in str(caught.value), (parser.prog, option)
        assert sentence in str(caught.value), (parser.prog, option)

    assert asked >= set(READERS)


@pytest.mark.parametrize("text", ["nan", "inf", "x", ""])
def test_what_is_no_number_is_refused(text: str) -> None:
    """NaN and infinity are none that an option could use."""
    with pytest.raises(Exception, match=f"is '{text}'; give a number, for example 30 or 0.5"):
        arguments.number(text)
