"""Faults of Spark as it words them: each known one becomes a sentence that says what to do."""

import io

import pytest

from shared.errors import DiskFull, DormiceError, GiveUp, Misconfigured, RetryLater
from spark.session.faults import explain_log, translate_spark_error, translate_spark_errors


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        (
            "PythonException: Traceback …\nModuleNotFoundError: No module named 'spark.prepare.validator'",
            Misconfigured,
            "the executors' Python has no dormice (no module 'spark')",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.12",
            Misconfigured,
            "the executors run another version of Python",
        ),
        (
            'java.io.IOException: Cannot run program "environment/bin/python": error=2',
            Misconfigured,
            "the executors have no program 'environment/bin/python'",
        ),
        (
            "java.lang.RuntimeException: [unresolved dependency: org.a#b;1: not found]",
            RetryLater,
            "Spark can't fetch org.a#b;1: not found",
        ),
        ("Could not parse Master URL: 'moon'", Misconfigured, "--master: Spark knows no 'moon'"),
        ("All masters are unresponsive! Giving up.", RetryLater, "no Spark master answers"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/a/b.csv. SQLSTATE: 42K03",
            GiveUp,
            "/a/b.csv: there is no such file or folder",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/a/b.parquet. SQLSTATE: KD001",
            GiveUp,
            "/a/b.parquet: can't be read as the other files are; restore it",
        ),
        (
            "[UNRECOGNIZED_SQL_TYPE] Unrecognized SQL type - name: geometry, id: 1111. SQLSTATE: 42704",
            GiveUp,
            "Spark can't read a column of the table (Unrecognized SQL type - name: geometry, id: 1111); give a query",
        ),
        (
            "Job aborted due to stage failure: …: java.io.IOException: No space left on device\n\tat …",
            DiskFull,
            "a disk is full (No space left on device); free some space where the manifest or the receipts lie, and",
        ),
        (
            "java.lang.ClassNotFoundException: org.db.Driver",
            Misconfigured,
            "Spark has no org.db.Driver; name its Maven",
        ),
    ],
)
def test_a_known_fault_is_one_sentence(text: str, error: type[DormiceError], sentence: str) -> None:
    """With what Spark says of it."""
    with pytest.raises(error) as told, translate_spark_errors():
        raise RuntimeError(text)

    assert str(told.value).startswith(sentence)
    assert "\n" not in str(told.value)


def test_what_is_not_known_stays_as_it_is() -> None:
    """A defect is not hidden behind a sentence."""
    assert translate_spark_error(ValueError("something else")) is None
    with pytest.raises(ZeroDivisionError), translate_spark_errors():
        raise ZeroDivisionError


def test_our_own_sentence_comes_out_of_a_task() -> None:
    """What a task has raised is reported as if it had been raised here."""
    trace = (
        "PythonException: \nTraceback (most recent call last):\n  File …\n"
        "shared.errors.GiveUp: a.csv: has changed; try again\n"
    )

    with pytest.raises(GiveUp, match=r"^a\.csv: has changed; try again$"), translate_spark_errors():
        raise RuntimeError(trace)


def test_the_log_tells_why() -> None:
    """The first line that names an error, else the first one."""
    assert (
        explain_log(io.BytesIO(b"WARNING: x\nException in thread main: y\nError: z\n")) == "Exception in thread main: y"
    )
    assert explain_log(io.BytesIO(b"\nsomething\n")) == "something"
    assert explain_log(None) == ""
