"""Faults of Spark: translates its long traces into errors of one sentence that says what to do."""

import contextlib
import re
from collections.abc import Callable, Generator
from typing import IO

from shared import errors
from shared.errors import DiskFull, DormiceError, GiveUp, Misconfigured, RetryLater

ROOMS = ("shared", "activities", "workflows", "worker", "starter", "spark")
REASON_MAX = 300

_Make = Callable[[str], DormiceError]

_OWN = re.compile(
    r"^shared\.errors\.(RetryLater|ServerUnreachable|ServerBusy|PackNotServed|GiveUp|Misconfigured|InvalidSetting|"
    r"HandlerProblem|DiskFull|ServerNotReady): (.*)$",
    re.MULTILINE,
)
"""The last line of the trace when a Spark worker has raised one of dormice's errors."""

_MISSING = re.compile(r"No module named '(" + "|".join(ROOMS) + r")[.']")


def translate_spark_error(exc: BaseException, log: str = "") -> DormiceError | None:
    """Translate a failure of Spark into an error that says what to do; None for an unknown failure.

    `log` is Spark's log.
    """
    if isinstance(exc, DormiceError):
        return exc
    text = f"{exc}\n{log}"
    if own := _OWN.findall(text):
        name, sentence = own[-1]
        return vars(errors)[name](sentence)
    for pattern, make in _KNOWN:
        if found := re.search(pattern, text):
            return make((found.groups() or (found.group(),))[0][:REASON_MAX])
    return None


def explain_log(log: IO[bytes] | None) -> str:
    """Give the line of Spark's log that best explains why Spark did not start; empty if there is none."""
    if log is None:
        return ""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    reasons = [line for line in lines if re.search(r"Exception|Error|not found|UNRESOLVED", line)]
    return (reasons or [line for line in lines if line] or [""])[0][:REASON_MAX]


_KNOWN: tuple[tuple[str, _Make], ...] = (
    (
        _MISSING.pattern,
        lambda module: Misconfigured(
            f"the executors' Python has no dormice (no module {module!r}); install the same wheel on every node, or "
            "send an environment along: --conf spark.archives=FILE#environment and "
            "PYSPARK_PYTHON=environment/bin/python"
        ),
    ),
    (
        r"No space left on device|Disk quota exceeded",
        lambda reason: DiskFull(
            f"a disk is full ({reason}); free some space where the manifest or the receipts lie, and where Spark keeps "
            "what it works on (--conf spark.local.dir=FOLDER, else /tmp), then try again"
        ),
    ),
    (
        r"PYTHON_VERSION_MISMATCH[^\n]*",
        lambda reason: Misconfigured(
            f"the executors run another version of Python ({reason}); set PYSPARK_PYTHON to one like the driver's"
        ),
    ),
    (
        r'Cannot run program "([^"]+)"',
        lambda program: Misconfigured(
            f"the executors have no program {program!r}; set PYSPARK_PYTHON to their Python with dormice installed"
        ),
    ),
    (
        r"(?:unresolved dependency: |UNRESOLVED DEPENDENCIES[^\n]*|unresolved dependency[^\n]*)([^\]\n]*)",
        lambda name: RetryLater(
            f"Spark can't fetch {name.strip() or 'the packages it needs'}; try again with a connection, or name a "
            "mirror of Maven Central in DEFAULT_ARTIFACT_REPOSITORY"
        ),
    ),
    (
        r"Could not parse Master URL: '?([^'\n]*)",
        lambda master: Misconfigured(
            f"--master: Spark knows no {master!r}; write for example local[4] or spark://HOST:7077"
        ),
    ),
    (
        r"Master must either be ([^\n]+)",
        lambda _: Misconfigured("--master: is none that Spark knows; write for example local[4] or spark://HOST:7077"),
    ),
    (
        r"All masters are unresponsive",
        lambda _: RetryLater("no Spark master answers; check --master, start one, and try again"),
    ),
    (
        r"(?:Master removed our application|Cannot call methods on a stopped SparkContext)[^\n]*",
        lambda _: RetryLater(
            "the cluster has ended the application, as it does when its executors do not start; "
            "see the logs of its workers"
        ),
    ),
    (
        r"PATH_NOT_FOUND\] [^:]*: (?:file:)?([^\n]+?)\. +SQLSTATE",
        lambda path: GiveUp(f"{path}: there is no such file or folder; give the path of one"),
    ),
    (
        r"SQLException: (Connection [^\n]*refused|The connection attempt failed)",
        lambda reason: RetryLater(f"the database does not answer ({reason}); check its URL, and try again"),
    ),
    (
        r"SQLException: ([^\n]+)",
        lambda reason: GiveUp(f"the database refuses ({reason}); correct --table, or the login in jdbc_user"),
    ),
    (
        r"(?:ClassNotFoundException: |No suitable driver)([\w.]*)",
        lambda name: Misconfigured(
            f"Spark has no {name or 'driver for this database'}; name its Maven coordinates with --packages, "
            "and its class with --option driver=CLASS"
        ),
    ),
)


@contextlib.contextmanager
def told_of_spark() -> Generator[None]:
    """Raise a known failure of Spark inside a `with` block as an error that says what to do."""
    try:
        yield
    except Exception as exc:
        refusal = translate_spark_error(exc)
        if refusal is None or refusal is exc:
            raise
        raise refusal from exc
