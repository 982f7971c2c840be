"""The Spark session of a command, and the options that configure it."""

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from click import argument

from shared.errors import InvalidSetting
from shared.settings import Settings
from spark.session.session import JAVA_OPTIONS, SERIAL
from starter.cli.arguments import FOLDER, Arguments, Group, join, read_pair, section
from starter.cli.program import program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BRIEF: Mapping[str, str] = {JAVA_OPTIONS: f"-XX:TieredStopAtLevel=1 {SERIAL}"}
"""Configuration of a command whose jobs are short: Java's best code would take longer to make than it would save."""


spark = Group("spark", "Millions of rows at once: a manifest, its start, its proof, its report; a rehearsal.")
program.add_command(spark)

in_spark = section("Spark")
session_options = join(
    in_spark("--master", metavar="URL", help="where it runs, for example local[4]; setting spark_master"),
    in_spark("--conf", metavar="NAME=VALUE", multiple=True, help="Spark's own configuration; may be repeated"),
    in_spark("--packages", metavar="GROUP:NAME:VERSION", multiple=True, help="fetch from Maven; may be repeated"),
)
"""They say how Spark is started."""

manifest_argument = argument("manifest", **FOLDER, help="folder that 'spark prepare' has written")


@contextlib.contextmanager
def open_session(
    args: Arguments,
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


def read_conf(args: Arguments) -> dict[str, str]:
    """Read Spark's own configuration; raises InvalidSetting."""
    return read_pairs("--conf", args.conf, "spark.driver.memory=4g")


def read_pairs(option: str, given: Iterable[str], example: str) -> dict[str, str]:
    """Read every NAME=VALUE of an option; raises InvalidSetting."""
    try:
        return dict(read_pair(text, example) for text in given)
    except ValueError as exc:
        raise InvalidSetting(f"{option}: {exc}") from exc
