"""`./run bench NAME [ARGUMENT …] [--cluster]`: runs one scenario; without a name, lists them.

With `--cluster` on Temporal's server with a PostgreSQL of its own, both made for the run.
"""

import asyncio
import importlib
import inspect
import os
import pkgutil
import sys

import bench
from bench.harness import CLUSTER_OPTION, BadArgument
from shared.errors import Misconfigured
from shared.exit import FINE, INTERRUPTED, WRONG
from starter.cli.interruption import run_until_signal

NO_SCENARIO = {
    "__main__",
    "against_process",
    "bare_loop",
    "bare_pack",
    "bridge_faults",
    "bridging",
    "figures",
    "handlers",
    "harness",
    "lasting_overload",
    "limited_handlers",
    "pack_filling",
    "pack_rhythms",
    "pack_spread",
    "serving",
    "spark_processes",
    "worker_process",
}
HAVE_FLAGS = {"pollers", "slow", "visits"}
"""Scenarios that explain their flags themselves."""


def scenarios() -> dict[str, str]:
    """Give every scenario's name and the first line of its docstring."""
    names = [module.name for module in pkgutil.iter_modules(bench.__path__) if module.name not in NO_SCENARIO]
    return {name: (inspect.getdoc(importlib.import_module(f"bench.{name}")) or "").partition("\n")[0] for name in names}


def main(arguments: list[str]) -> int:
    """Run the scenario named first, handing it the rest."""
    known = scenarios()
    if not arguments or arguments[0] not in known:
        for name, summary in known.items():
            print(f"{name:10} {summary}")
        if arguments:
            print(f"bench: there is no scenario {arguments[0]!r}; name one of those above", file=sys.stderr)
        return WRONG if arguments else FINE

    code = asyncio.run(run_until_signal(_run(arguments[0], arguments[1:])))
    if code is None:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED

    return code


async def _run(name: str, arguments: list[str]) -> int:
    scenario = importlib.import_module(f"bench.{name}")
    if arguments[:1] in (["-h"], ["--help"]) and name not in HAVE_FLAGS:
        print(f"{inspect.getdoc(scenario)}\n\n{inspect.getdoc(scenario.main)}")
        return FINE

    try:
        await scenario.main(arguments)
    except BadArgument as exc:
        print(f"bench: {name}: {exc}", file=sys.stderr)
        return WRONG
    except Misconfigured as exc:  # a server or a program that it needs
        print(f"bench: {exc}", file=sys.stderr)
        return WRONG

    return FINE


if __name__ == "__main__":
    code = main([argument for argument in sys.argv[1:] if argument != CLUSTER_OPTION])
    sys.stdout.flush()
    os._exit(code)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
