"""The command `completion`: a script with which a shell completes the words of `dormice`."""

import argparse
import sys

from shared.exit import FINE
from shared.settings import Settings
from starter.cli.arguments import Commands
from starter.cli.parser import build_parser

SHELLS = ("bash", "zsh", "fish", "tcsh")

FILES = ("FILE", "DIR", "FOLDER", "MANIFEST", "SOURCE")
"""How help names arguments that are files or folders."""

EPILOG = """\
Put the script where your shell looks for it, for example

  dormice completion bash > ~/.local/share/bash-completion/completions/dormice
  dormice completion zsh > ~/.zfunc/_dormice            (with fpath+=~/.zfunc before compinit)
  dormice completion fish > ~/.config/fish/completions/dormice.fish

and again after an update of dormice: the script holds the commands of its version."""


def add(commands: Commands) -> None:
    purpose = "print a script with which a shell completes commands, options and file names"
    parser = commands.add("completion", _run, purpose, EPILOG, prints_data=False)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _run(args: argparse.Namespace, settings: Settings) -> int:  # noqa: ARG001 — as every command
    import shtab

    parser, commands = build_parser()
    for each in (parser, *commands.leaves):
        for action in each._actions:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] — argparse has no other way
            if action.metavar in FILES:
                setattr(action, "complete", shtab.FILE)  # noqa: B010 — shtab's name for it, unknown to argparse
    commands.subparsers.split_two_words()
    sys.stdout.write(shtab.complete(parser, args.shell))
    return FINE
