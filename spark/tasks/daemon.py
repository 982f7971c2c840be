"""The process from which Spark forks its Python workers: it imports once what each of them would have to import."""

import importlib
import sys
from typing import Any


def main() -> None:
    """Import what tasks need, then fork workers until Spark is done."""
    for name in ("spark.tasks.placement", "spark.tasks.starting"):
        importlib.import_module(name)
    _spare_pandas()
    daemon: Any = importlib.import_module("pyspark.daemon")
    daemon.manager()


def _spare_pandas() -> None:
    """Let pyarrow look for pandas where there is none: it would import it for seconds at the first array it makes."""
    arrow: Any = importlib.import_module("pyarrow")
    places = sys.path
    sys.path = []
    try:
        arrow.array([])
    finally:
        sys.path = places


if __name__ == "__main__":
    main()
