"""`./run bench NAME [ARGUMENT …]`: runs one scenario; without a name, lists them."""

import asyncio
import importlib
import inspect
import os
import pkgutil
import sys

import bench

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
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
