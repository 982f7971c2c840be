"""The Spark session of a command, and the options that configure it."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
import contextlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from shared.errors import InvalidSetting
from shared.settings import Settings
from starter.cli.arguments import CommandParser

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_session(parser: CommandParser) -> None:
    """Add the options that say how Spark is started."""
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", metavar="URL", help="where it runs, for example local[4]; setting spark_master")
    group.add_argument(
        "--conf", metavar="NAME=VALUE", action="append", default=[], help="Spark's own configuration; may be repeated"
    )
    group.add_argument(
        "--packages",
        metavar="GROUP:NAME:VERSION",
        action="append",
        default=[],
        help="fetch from Maven; may be repeated",
    )


@contextlib.contextmanager
def open_session(
    args: argparse.Namespace, settings: Settings, packages: Sequence[str] = ()
) -> Generator["SparkSession"]:
    """Start Spark for a `with` block; its failures are raised as errors of one sentence."""
    from spark.session.faults import told_of_spark
    from spark.session.session import build_session

    wanted = (*packages, *args.packages)
    session = build_session(settings, master=args.master, conf=dict(map(_read_pair, args.conf)), packages=wanted)
    try:
        with told_of_spark():
            yield session
    finally:
        session.stop()


def _read_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidSetting(f"--conf: is {text!r}; write NAME=VALUE, for example spark.driver.memory=4g")
    return name, value
