"""The reference of the command line: `python -m starter.cli.reference > docs/cli-reference.md` writes it."""

import sys
from collections.abc import Iterable, Iterator, Sequence

from shared.exit import MEANINGS
from shared.settings import describe_settings
from starter.cli.program import walk

INTRODUCTION = """\
# Command line reference

Every command, exit code and setting of dormice, with its meaning.

`python -m starter.cli.reference > docs/cli-reference.md` writes this page from the program itself.

What people read goes to standard error, data goes to standard output. With `--json` a command prints one
JSON document, or one a line where it lists things. Moments are RFC 3339 with an offset
(`2026-11-21T20:00:00Z`), `+15m` from now on, or `now`; durations are written `90s`, `15m`, `6h`, `2d`.
"""

SETTINGS = """\
## Settings

A flag (`--set NAME=VALUE`) beats the environment, which beats a file (`--config FILE`, or `dormice.toml` in the
working folder), which beats the default. `dormice settings` prints the values that hold now.
"""


def write_reference() -> str:
    """Write the whole page as Markdown; the same code gives the same page on every machine."""
    pages = (f"## {each.command_path}\n\n```text\n{each.get_help()}\n```\n" for each in walk())
    codes = ((str(code), meaning) for code, meaning in MEANINGS.items())
    settings = (
        (f"`{variable.partition('_')[2].lower()}`", f"`{variable}`", f"`{default}`" if default else "", meaning)
        for variable, default, meaning in describe_settings()
    )
    parts = (
        INTRODUCTION,
        *pages,
        "## Exit codes\n",
        *(*_write_table(("Code", "Meaning"), codes), ""),
        SETTINGS,
        *_write_table(("Setting", "Environment", "Default", "Meaning"), settings),
    )

    return "\n".join(parts) + "\n"


def _write_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in (header, ["---"] * len(header), *rows):
        cells = (cell.replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(write_reference())
