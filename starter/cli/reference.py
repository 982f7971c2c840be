"""The reference of the command line: `python -m starter.cli.reference > docs/cli-reference.md` writes it."""

import sys
from collections.abc import Iterator

from shared.settings import describe_settings
from starter.cli.exit_codes import MEANINGS
from starter.cli.main import build_parser


def write_reference() -> str:
    """Write the whole page as Markdown; the same code gives the same page on every machine."""
    return "\n".join(_write_lines()) + "\n"


def _write_lines() -> Iterator[str]:
    parser, commands = build_parser()
    yield "# Command line reference"
    yield ""
    yield "Every command, exit code and setting of dormice, with its meaning."
    yield ""
    yield "`python -m starter.cli.reference > docs/cli-reference.md` writes this page from the program itself."
    yield ""
    yield "What people read goes to standard error, data goes to standard output. With `--json` a command prints one"
    yield "JSON document, or one a line where it lists things. Moments are RFC 3339 with an offset"
    yield "(`2026-11-21T20:00:00Z`), `+15m` from now on, or `now`; durations are written `90s`, `15m`, `6h`, `2d`."
    yield ""
    yield from _write_help("dormice", parser.format_help())
    for leaf in commands.leaves:
        yield from _write_help(leaf.prog, leaf.format_help())
    yield "## Exit codes"
    yield ""
    yield from _write_table(("Code", "Meaning"), ((str(code), meaning) for code, meaning in MEANINGS.items()))
    yield ""
    yield "## Settings"
    yield ""
    yield (
        "A flag (`--set NAME=VALUE`) beats the environment, which beats a file (`--config FILE`, or `dormice.toml` "
        "in the"
    )
    yield "working folder), which beats the default. `dormice settings` prints the values that hold now."
    yield ""
    yield from _write_table(
        ("Setting", "Environment", "Default", "Meaning"),
        ((f"`{v.partition('_')[2].lower()}`", f"`{v}`", f"`{d}`" if d else "", m) for v, d, m in describe_settings()),
    )


def _write_help(name: str, text: str) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    yield "```text"
    yield from text.rstrip().splitlines()
    yield "```"
    yield ""


def _write_table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| {' | '.join('---' for _ in header)} |"
    for row in rows:
        cells = (cell.replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(write_reference())
