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
from bench.harness import CLUSTER_OPTION

NO_SCENARIO = {
    "__main__",
    "bare_loop",
    "bare_pack",
    "bridge_faults",
    "bridging",
    "handlers",
    "harness",
    "pack_filling",
    "pack_rhythms",
    "spark_processes",
    "worker_process",
}


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
        return 0 if not arguments else 2
    asyncio.run(importlib.import_module(f"bench.{arguments[0]}").main(arguments[1:]))
    return 0


if __name__ == "__main__":
    code = main([argument for argument in sys.argv[1:] if argument != CLUSTER_OPTION])
    sys.stdout.flush()
    os._exit(code)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
