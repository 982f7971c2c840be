"""The terminal: tables fit it, data stays whole."""

import contextlib
import os
from collections.abc import Callable

import pytest

from starter.local.terminal import print_table, shorten

LONG = "feed:https://example.org/" + "x" * 100 + "/end"
ROWS = [(LONG, "short", "in 3 h"), ("feed:1", "short", "soon")]


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [("abc", 3, "abc"), ("abcdefgh", 5, "ab…gh"), ("abcdefgh", 4, "ab…h"), ("", 2, "")],
)
def test_text_is_cut_in_the_middle(text: str, width: int, expected: str) -> None:
    """Both ends stay, because names may differ in either."""
    assert shorten(text, width) == expected


@pytest.fixture
def print_on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Print a table on a real terminal, 60 characters wide."""
    monkeypatch.setenv("COLUMNS", "60")

    def print_on_terminal(*, cuts_names: bool) -> list[str]:
        ours, theirs = os.openpty()
        with os.fdopen(theirs, "w") as stream, contextlib.redirect_stdout(stream):
            print_table(("MESSAGE", "LANE", "IN"), ROWS, cuts_names=cuts_names)
        printed = b""
        with contextlib.suppress(OSError):  # how a terminal whose other end is closed says that there is no more
            while chunk := os.read(ours, 10_000):
                printed += chunk
        os.close(ours)
        return printed.decode().splitlines()

    return print_on_terminal


def test_a_long_name_does_not_widen_a_table_beyond_the_terminal(print_on_terminal: Callable[..., list[str]]) -> None:
    """It is cut in the middle; the columns behind it stay in line."""
    header, long, short = print_on_terminal(cuts_names=True)

    assert max(map(len, (header, long, short))) <= 60
    assert long.startswith("feed:https://")
    assert "…" in long
    assert long.split()[0].endswith("/end")
    assert header.index("LANE") == long.index("short") == short.index("short")


def test_what_is_no_terminal_or_no_name_stays_whole(
    print_on_terminal: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads a table from a pipe gets names that can be used."""
    assert LONG in print_on_terminal(cuts_names=False)[1]
    print_table(("MESSAGE", "LANE", "IN"), ROWS, cuts_names=True)
    assert LONG in capsys.readouterr().out
