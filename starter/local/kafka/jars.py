"""The jars of Apache Kafka: fetched once into the user's cache, and each checked by its digest."""

import asyncio
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

from shared.errors import Misconfigured, RetryLater, check_extra
from starter.local.kafka.java import find_java
from starter.local.supervised_process import has_locked, run_supervised

KAFKA_VERSION = "4.1.1"
SLF4J_VERSION = "1.7.36"
MANIFEST = Path(__file__).with_name("jars.sha256")
"""Digest and name of each jar, as `sha256sum` writes them; `python -m starter.local.kafka.jars` writes it anew."""

CENTRAL = "https://repo1.maven.org/maven2/"
REPOSITORY_VARIABLE = "DEFAULT_ARTIFACT_REPOSITORY"
"""Names a mirror of Maven Central, for Spark and for us; it needs no trust, because digests are checked."""

END_SECONDS = 5.0

# Kafka logs through slf4j and brings no binding: without slf4j-simple, a broker that can't start logs nothing
DEPENDENCIES = (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), ("org.slf4j", "slf4j-simple", SLF4J_VERSION))


def find_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Give the folder of the jars in the user's cache: below XDG_CACHE_HOME, else below ~/.cache."""
    named = Path(environ.get("XDG_CACHE_HOME", ""))
    cache = named if named.is_absolute() else Path.home() / ".cache"
    return cache / "dormice" / f"kafka-{KAFKA_VERSION}"


def has_jars(folder: Path) -> bool:
    """Say whether the jars have been fetched before; `prepare_jars` checks that they are complete."""
    return folder.exists()


async def prepare_jars(java: Path, folder: Path) -> list[Path]:
    """Give the jars for the class path, all checked by digest; fetches them when `folder` is not there.

    Of several processes, one fetches and the others wait. Raises Misconfigured when a jar is not the expected one, and
    RetryLater when the repository can't be reached.
    """
    if not has_jars(folder):
        await _fetch(java, folder)
    if wrong := await asyncio.to_thread(_find_wrong, folder):
        flaw = f"{folder / wrong} is missing or damaged"
        raise Misconfigured(f"{flaw}; delete the folder {folder} and try again, it is then fetched anew")
    return [folder / name for name in _read_manifest()]


def _read_manifest() -> dict[str, str]:
    lines = MANIFEST.read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def _find_wrong(folder: Path) -> str | None:
    """Name the first jar that differs from the manifest, if there is one; reading all of them takes 0.1 s."""
    jars = ((name, folder / name, digest) for name, digest in _read_manifest().items())
    return next((name for name, jar, digest in jars if not jar.is_file() or _digest(jar) != digest), None)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


async def _fetch(java: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while not has_locked(lock):  # noqa: ASYNC110 — the lock is another process's, no event says when it ends
            await asyncio.sleep(0.1)
        if not has_jars(folder):  # otherwise another process fetched it while this one waited
            await _fetch_alone(java, folder, lock)
    finally:
        os.close(lock)


async def _fetch_alone(java: Path, folder: Path, lock: int) -> None:
    prefix = f"{folder.name}.part-"
    for left in folder.parent.glob(f"{prefix}*"):  # by killed processes: as we have the lock, none of them still runs
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as temporary:
        fetched = await _resolve(java, Path(temporary), lock)
        if wrong := await asyncio.to_thread(_find_wrong, fetched):
            flaw = f"{_repository()} gave a {wrong} that is not the expected one"
            raise Misconfigured(f"{flaw}; unset {REPOSITORY_VARIABLE} or have it name a true mirror of Maven Central")
        fetched.rename(folder)


async def _resolve(java: Path, work: Path, lock: int | None = None) -> Path:
    """Let Ivy fetch everything that the broker depends on; gives the folder of the jars."""
    jars = work / "jars"
    log = work / "ivy.log"
    _write_plan(work)
    async with run_supervised(_ivy_command(java, work, jars), log, keep=lock, stop_seconds=END_SECONDS) as process:
        code = await process.wait()
    if code:
        fault = f"Apache Kafka {KAFKA_VERSION} can't be fetched from {_repository()} ({_read_reason(log)})"
        raise RetryLater(f"{fault}; try again with a connection, or name a mirror in {REPOSITORY_VARIABLE}")

    return jars


def _ivy_command(java: Path, work: Path, jars: Path) -> list[str]:
    command = [str(java), "-Xmx256m", f"-Divy.home={work / 'ivy'}", "-jar", str(_find_ivy())]
    command += ["-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml"), "-confs", "default"]
    command += ["-types", "jar", "bundle"]  # scala-logging's packaging is "bundle", and the broker needs it
    return [*command, "-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]"]


def _write_plan(work: Path) -> None:
    """Write what Ivy is to fetch, and from where: one repository, and nothing of the user's own Ivy."""
    (work / "settings.xml").write_text(
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true" root={quoteattr(_repository())}/>'
        "</resolvers></ivysettings>\n"
    )
    form = '<dependency org="{}" name="{}" rev="{}" conf="default->default"/>'
    wanted = "".join(form.format(*dependency) for dependency in DEPENDENCIES)
    (work / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="dormice" module="broker"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{wanted}</dependencies></ivy-module>\n'
    )


def _repository() -> str:
    return os.environ.get(REPOSITORY_VARIABLE) or CENTRAL


def _find_ivy() -> Path:
    """Find the Ivy jar in the pyspark package without importing it."""
    check_extra("embedded-kafka", "fetching Kafka", "pyspark")
    spark = importlib.util.find_spec("pyspark")
    for place in (spark.submodule_search_locations or []) if spark else []:
        for jar in Path(place, "jars").glob("ivy-*.jar"):
            return jar
    raise Misconfigured("pyspark has no jar of Ivy, which fetches Kafka; install the extra 'embedded-kafka' anew")


def _read_reason(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    reasons = [line for line in lines if "error" in line.lower() or "not found" in line]
    return (reasons or lines or ["Ivy did not say why"])[0][:300]


async def _write_manifest() -> None:
    with tempfile.TemporaryDirectory() as work:
        jars = await _resolve(find_java(), Path(work))
        sys.stdout.writelines(f"{_digest(jar)}  {jar.name}\n" for jar in sorted(jars.iterdir()))


if __name__ == "__main__":
    asyncio.run(_write_manifest())
