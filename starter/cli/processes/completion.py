"""The command `completion`: a script with which a shell completes the words of `dormice`."""

import sys

from click import Choice, argument
from click.shell_completion import BashComplete, FishComplete, PowerShellComplete, ZshComplete

from shared.exit import FINE
from shared.settings import Settings
from starter.cli.arguments import Arguments
from starter.cli.program import COMPLETE_VARIABLE, program

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete, "powershell": PowerShellComplete}

EPILOG = """\
Put the script where your shell looks for it, for example

\b
  dormice completion bash > ~/.local/share/bash-completion/completions/dormice
  dormice completion zsh > ~/.zfunc/_dormice            (with fpath+=~/.zfunc before compinit)
  dormice completion fish > ~/.config/fish/completions/dormice.fish

The script asks the program at each key, so it holds for later versions too."""


@program.command("completion", epilog=EPILOG, prints_data=False)
@argument("shell", type=Choice(SHELLS), help="the shell that is to complete")
def run(args: Arguments, settings: Settings) -> int:  # noqa: ARG001 — as every command
    """Print a script with which a shell completes commands, options and file names."""
    sys.stdout.write(SHELLS[args.shell](program, {}, "dormice", COMPLETE_VARIABLE).source())
    return FINE
