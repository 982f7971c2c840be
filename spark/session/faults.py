"""Faults of Spark: translates its long traces into errors of one sentence that says what to do."""

import contextlib
import re
from collections.abc import Generator
from typing import IO

from shared import errors
from shared.errors import DiskFull, DormiceError, GiveUp, Misconfigured, RetryLater

REASON_MAX = 300

_OWN = re.compile(
    r"^shared\.errors\.(RetryLater|ServerUnreachable|ServerBusy|PackNotServed|GiveUp|Misconfigured|InvalidSetting|"
    r"InvalidHandler|DiskFull|ServerNotReady): (.*)$",
    re.MULTILINE,
)
"""The last line of the trace when a Spark worker has raised one of dormice's errors."""

_FAULTS: dict[str, tuple[type[DormiceError], *tuple[str, ...]]] = {
    r"No module named '(shared|activities|workflows|worker|starter|spark)[.']": (
        Misconfigured,
        (
            "the executors' Python has no dormice (no module '{}'); install the same wheel on every node, or send an "
            "environment along: --conf spark.archives=FILE#environment and PYSPARK_PYTHON=environment/bin/python"
        ),
    ),
    r"No space left on device|Disk quota exceeded": (
        DiskFull,
        (
            "a disk is full ({}); free some space where the manifest or the receipts lie, and where Spark keeps "
            "what it works on (--conf spark.local.dir=FOLDER, else /tmp), then try again"
        ),
    ),
    r"PYTHON_VERSION_MISMATCH[^\n]*": (
        Misconfigured,
        "the executors run another version of Python ({}); set PYSPARK_PYTHON to one like the driver's",
    ),
    r'Cannot run program "([^"]+)"': (
        Misconfigured,
        "the executors have no program '{}'; set PYSPARK_PYTHON to their Python with dormice installed",
    ),
    r"(?:unresolved dependency: |UNRESOLVED DEPENDENCIES[^\n]*|unresolved dependency[^\n]*)([^\]\n]*)": (
        RetryLater,
        (
            "Spark can't fetch {}; try again with a connection, or name a mirror of Maven Central in "
            "DEFAULT_ARTIFACT_REPOSITORY"
        ),
        "the packages it needs",
    ),
    r"Could not parse Master URL: '?([^'\n]*)": (
        Misconfigured,
        "--master: Spark knows no '{}'; write for example local[4] or spark://HOST:7077",
    ),
    r"Master must either be ": (
        Misconfigured,
        "--master: is none that Spark knows; write for example local[4] or spark://HOST:7077",
    ),
    r"All masters are unresponsive": (RetryLater, "no Spark master answers; check --master, start one, and try again"),
    r"Master removed our application|Cannot call methods on a stopped SparkContext": (
        RetryLater,
        (
            "the cluster has ended the application, as it does when its executors do not start; "
            "see the logs of its workers"
        ),
    ),
    r"PATH_NOT_FOUND\] [^:]*: (?:file:)?([^\n]+?)\. +SQLSTATE": (
        GiveUp,
        "{}: there is no such file or folder; give the path of one",
    ),
    r"CANNOT_READ_FILE_FOOTER\] Encountered error while reading file (?:file:)?([^\n]+?)\.(?: |$)": (
        GiveUp,
        "{}: can't be read as Parquet; give a Parquet file",
    ),
    r"FAILED_READ_FILE\.[A-Z_]+\] Encountered error while reading file (?:file:)?([^\n]+?)\.(?: |$)": (
        GiveUp,
        "{}: can't be read as the other files are; restore it, or prepare it by itself",
    ),
    r"(?:PARQUET_TYPE_[A-Z_]+|UNSUPPORTED_TIME_TYPE|UNSUPPORTED_DATA_?TYPE[A-Z_.]*)\] ([^\n]+?)\. SQLSTATE": (
        GiveUp,
        "Spark can't read a column ({}); write it in another type, for example as text",
    ),
    r"UNRECOGNIZED_SQL_TYPE\] ([^\n]+?)\. SQLSTATE": (
        GiveUp,
        "Spark can't read a column of the table ({}); give a query as --table that casts it to text",
    ),
    r"SQLException: (Connection [^\n]*refused|The connection attempt failed)": (
        RetryLater,
        "the database does not answer ({}); check its URL, and try again",
    ),
    r"SQLException: ([^\n]+)": (GiveUp, "the database refuses ({}); correct --table, or the login in jdbc_user"),
    r"(?:ClassNotFoundException: |No suitable driver)([\w.]*)": (
        Misconfigured,
        "Spark has no {}; name its Maven coordinates with --packages, and its class with --option driver=CLASS",
        "driver for this database",
    ),
}
"""By what Spark writes: our error; "{}" is the pattern's group, else its match, or the second text if that is empty."""


def translate_spark_error(exc: BaseException, log: str = "") -> DormiceError | None:
    """Translate a failure, with Spark's log, into an error that says what to do; None for an unknown failure."""
    if isinstance(exc, DormiceError):
        return exc

    text = f"{exc}\n{log}"
    if own := _OWN.findall(text):
        name, sentence = own[-1]
        return vars(errors)[name](sentence)

    for pattern, (error, sentence, *unnamed) in _FAULTS.items():
        if found := re.search(pattern, text):
            said = found[found.re.groups][:REASON_MAX].strip()
            return error(sentence.format(said or "".join(unnamed)))

    return None


def explain_log(log: IO[bytes] | None) -> str:
    """Give the line of Spark's log that best explains why Spark did not start; empty if there is none."""
    if log is None:
        return ""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    reasons = [line for line in lines if re.search(r"Exception|Error|not found|UNRESOLVED", line)]
    return (reasons or [line for line in lines if line] or [""])[0][:REASON_MAX]


@contextlib.contextmanager
def translate_spark_errors() -> Generator[None]:
    """Raise a known failure of Spark inside a `with` block as an error that says what to do."""
    try:
        yield
    except Exception as exc:
        # Py4J, PySpark and Python raise the same failure as different classes; what nobody knows goes on as it is
        refusal = translate_spark_error(exc)
        if refusal is None or refusal is exc:
            raise
        raise refusal from exc
