"""The session: how Spark is started for dormice, on this machine, on a cluster or under spark-submit."""

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from shared.errors import InvalidSetting, Misconfigured
from shared.settings import Settings
from spark.session.faults import explain_log, translate_spark_error
from spark.session.java_home import make_java_home
from starter.local.kafka.jars import find_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*,4]"
"""All cores, and four attempts for a task, as on a cluster."""
LOOPBACK = "127.0.0.1"
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""Set when spark-submit has already started the JVM and chosen the master."""

SPECULATION = "spark.speculation"


def build_session(
    settings: Settings,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
) -> "SparkSession":
    """Start Spark, or give the session that this process already has, with its configuration unchanged.

    Spark runs on `master`, else on the setting `spark_master`, else on what spark-submit chose, else on all cores of
    this machine, on loopback only. `conf` is Spark's own configuration and overrides ours; `packages` are Maven
    coordinates to fetch. Spark's log is hidden unless the setting `log_level` is debug. Times are UTC. Raises
    Misconfigured when pyspark or Java is missing, when Spark does not start, and for speculation, which would start
    messages from two tasks at once.
    """
    given = dict(conf or {})
    _refuse_speculation(given.get(SPECULATION, "false"))
    session = _find_session() or _start(_configure(settings, master, given, packages), settings)
    _refuse_speculation(session.sparkContext.getConf().get(SPECULATION, "false") or "false")
    return session


def _find_session() -> "SparkSession | None":
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 — an extra, and slow to import
    except ImportError as exc:
        raise Misconfigured("Spark jobs need pyspark; install dormice with its extra 'spark'") from exc
    return SparkSession.getActiveSession()


def _refuse_speculation(value: str) -> None:
    if value.lower() == "true":
        raise InvalidSetting(
            f"{SPECULATION}: is true, and two tasks would start the same messages at once; leave it out, "
            "or set it to false"
        )


def _configure(
    settings: Settings, master: str | None, given: Mapping[str, str], packages: Sequence[str]
) -> dict[str, str]:
    wanted = {"spark.app.name": "dormice", "spark.sql.session.timeZone": "UTC"}
    place = master or settings.spark_master or given.get("spark.master")
    if place or GATEWAY_VARIABLE not in os.environ:
        wanted["spark.master"] = place or LOCAL
    if _is_local(wanted):
        wanted |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.ui.enabled": "false",  # a job that ends by itself needs no web page
        }
    if packages:
        wanted |= {"spark.jars.packages": ",".join(packages), "spark.jars.ivy": str(find_cache().parent / "ivy")}
    return {**wanted, **given, **({"spark.master": place} if place else {})}


def _is_local(conf: Mapping[str, str]) -> bool:
    return conf.get("spark.master", "").startswith("local")


def _start(conf: Mapping[str, str], settings: Settings) -> "SparkSession":
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 — see _find_session
    from pyspark.sql import SparkSession  # noqa: PLC0415

    with _environment(conf), _open_log(settings) as log:
        try:
            # SparkConf reads Spark's own defaults in the JVM, so the JVM must run first
            gateway = _launch(SparkConf().setAll(list(conf.items())), log)
            SparkContext(conf=SparkConf().setAll(list(conf.items())), gateway=gateway)
        except Exception as exc:
            refusal = translate_spark_error(exc, explain_log(log))
            raise refusal or Misconfigured(
                f"Spark does not start ({explain_log(log) or exc}); correct its configuration"
            ) from exc
    return SparkSession.builder.getOrCreate()


def _launch(conf: Any, log: IO[bytes] | None) -> Any:
    """Start the JVM with its output going to `log`, or give the one that this process or spark-submit has started."""
    context: Any = importlib.import_module("pyspark").SparkContext
    if context._gateway is not None:  # noqa: SLF001 — a JVM outlives its context, and only this attribute names it
        return context._gateway  # noqa: SLF001
    launch: Any = importlib.import_module("pyspark.java_gateway").launch_gateway
    return launch(conf, None if log is None else {"stdout": log, "stderr": log})


@contextlib.contextmanager
def _open_log(settings: Settings) -> Generator[IO[bytes] | None]:
    """Give an unnamed file for the output of the JVM and its workers, or None at the log level debug."""
    if settings.log_level == "debug":
        yield None
        return
    with tempfile.TemporaryFile() as log:
        yield log


@contextlib.contextmanager
def _environment(conf: Mapping[str, str]) -> Generator[None]:
    """Set, during the start only, what Spark can read from the environment alone."""
    changes: dict[str, str] = {}
    if GATEWAY_VARIABLE not in os.environ:
        changes["JAVA_HOME"] = str(make_java_home())
    if _is_local(conf):
        # python3 on the PATH may be another Python, without our packages
        changes |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    elif "PYSPARK_PYTHON" not in os.environ:
        changes["PYSPARK_PYTHON"] = sys.executable
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
