"""The Spark session of a command, and the options that configure it."""

import argparse
import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from shared.errors import InvalidSetting
from shared.settings import Settings
from spark.session.session import JAVA_OPTIONS, SERIAL
from starter.cli.arguments import REPEATED, CommandParser, read_pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BRIEF: Mapping[str, str] = {JAVA_OPTIONS: f"-XX:TieredStopAtLevel=1 {SERIAL}"}
"""Configuration of a command whose jobs are short: Java's best code would take longer to make than it would save."""


def add_session(parser: CommandParser) -> None:
    """Add the options that say how Spark is started."""
    add = parser.add_argument_group("Spark").add_argument
    add("--master", metavar="URL", help="where it runs, for example local[4]; setting spark_master")
    add("--conf", metavar="NAME=VALUE", **REPEATED, help="Spark's own configuration; may be repeated")
    add("--packages", metavar="GROUP:NAME:VERSION", **REPEATED, help="fetch from Maven; may be repeated")


def add_manifest(parser: CommandParser) -> None:
    """Add the argument that names a manifest."""
    parser.add_argument("manifest", metavar="MANIFEST", type=Path, help="folder that 'spark prepare' has written")


@contextlib.contextmanager
def open_session(
    args: argparse.Namespace,
    settings: Settings,
    packages: Sequence[str] = (),
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> Generator["SparkSession"]:
    """Start Spark for a `with` block; its failures are raised as errors of one sentence.

    `defaults` are configuration that a user's own goes before.
    """
    from spark.session.faults import translate_spark_errors
    from spark.session.session import build_session

    packages = (*packages, *args.packages)
    session = build_session(settings, master=args.master, conf={**defaults, **read_conf(args)}, packages=packages)
    try:
        with translate_spark_errors():
            yield session
    finally:
        session.stop()


def read_conf(args: argparse.Namespace) -> dict[str, str]:
    """Read Spark's own configuration; raises InvalidSetting."""
    return read_pairs("--conf", args.conf, "spark.driver.memory=4g")


def read_pairs(option: str, given: Iterable[str], example: str) -> dict[str, str]:
    """Read every NAME=VALUE of an option; raises InvalidSetting."""
    try:
        return dict(read_pair(text, example) for text in given)
    except ValueError as exc:
        raise InvalidSetting(f"{option}: {exc}") from exc
