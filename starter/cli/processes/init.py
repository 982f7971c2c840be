"""The command `init`: the folder of a first handler."""

import re
from dataclasses import replace
from pathlib import Path

from click import argument

from shared.errors import InvalidSetting
from shared.exit import FINE
from shared.settings import Settings
from starter.cli.arguments import Arguments
from starter.cli.program import program
from starter.local.terminal import echo_err

NAME_MAX = 50
"""As long as a kind may be."""


@program.command("init", prints_data=False)
@argument("name", type=Path, help="the new folder; its last part is the kind of the messages")
def run(args: Arguments, settings: Settings) -> int:
    """Make a folder with a handler, its test and messages, as a beginning."""
    from activities.registry import load_registry
    from starter.local.project import FILES, make_project

    folder = args.name
    kind = args.name.name
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", kind) or len(kind) > NAME_MAX:
        rule = f"use 1 to {NAME_MAX} lower-case letters, digits, '_' and '-', a letter first"
        raise InvalidSetting(f"NAME: is {str(folder)!r}; {rule}, for example reminders")
    if kind in load_registry(replace(settings, handlers=())):
        raise InvalidSetting(f"NAME: kind {kind!r} has a handler already; choose another name")
    make_project(folder, kind)
    echo_err(
        f"{folder}: {', '.join(FILES)}\n"
        "try:\n"
        f"  cd {folder}\n"
        "  dormice dev --reload\n"
        "and in a second terminal, in the same folder:\n"
        "  dormice load messages.jsonl\n"
        f"  dormice list --kind {kind}"
    )
    return FINE
