"""The command `init`: the folder of a first handler."""

import argparse
import re
from dataclasses import replace
from pathlib import Path

from shared.errors import InvalidSetting
from shared.exit import FINE
from shared.settings import Settings
from starter.cli.arguments import Commands
from starter.local.terminal import echo_err

NAME_MAX = 50
"""As long as a kind may be."""


def add(commands: Commands) -> None:
    purpose = "make a folder with a handler, its test and messages, as a beginning"
    add = commands.add("init", _run, purpose, prints_data=False).add_argument
    add("name", metavar="NAME", type=Path, help="the new folder; its last part is the kind of the messages")


def _run(args: argparse.Namespace, settings: Settings) -> int:
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
