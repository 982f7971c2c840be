"""What Spark sends to its workers arrives, or says in one sentence why it can't."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark.tasks.pickling import PicklableByName

cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")  # Spark's own pickler; it has no types
SITE = Path(cloudpickle.__file__).parents[2]
UNPACK = "import pickle, sys; print(pickle.load(sys.stdin.buffer).number)"


class Parcel(PicklableByName):
    """Something to send."""

    def __init__(self, number: int) -> None:
        """Hold a number."""
        self.number = number


def test_it_arrives_as_it_was() -> None:
    """Where our packages are, nothing is special about it."""
    received = cloudpickle.loads(cloudpickle.dumps(Parcel(7)))

    assert type(received) is Parcel
    assert received.number == 7


def test_an_executor_without_dormice_says_so(tmp_path: Path) -> None:
    """Nothing of ours is needed to say it: the Python there has Spark's own packages alone."""
    for name in ("pyspark", "py4j"):
        (tmp_path / name).symlink_to(SITE / name)
    sent = cloudpickle.dumps(Parcel(7))

    ran = subprocess.run(
        [sys.executable, "-S", "-c", UNPACK],
        input=sent,
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=50,
    )

    assert ran.returncode == 1
    last = ran.stderr.decode().strip().splitlines()[-1]
    assert last.startswith("RuntimeError: dormice can't be used on executor ")
    assert last.endswith("install its wheel with the extra 'spark' in the Python that PYSPARK_PYTHON names there")


@pytest.mark.parametrize("protocol", [2, 5])
def test_it_travels_by_any_protocol(protocol: int) -> None:
    """Spark chooses it."""
    assert cloudpickle.loads(cloudpickle.dumps(Parcel(1), protocol=protocol)).number == 1
