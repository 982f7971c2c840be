"""Kafka's jars are fetched once, whole, and never used when they are not the expected ones."""

import asyncio
import contextlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shared.errors import Misconfigured, RetryLater
from starter.local.kafka.jars import DEPENDENCIES, REPOSITORY_VARIABLE, find_cache, prepare_jars
from starter.local.kafka.java import find_java
from starter.local.supervised_process import find_free_port

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
KAFKA = DEPENDENCIES[0]
KAFKA_JAR = f"{DEPENDENCIES[0][1]}-{DEPENDENCIES[0][2]}.jar"
POM = "<project><modelVersion>4.0.0</modelVersion>{}{}</project>"
COORDINATES = "<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"


class Repository:
    """A Maven repository in a folder, and what has been asked of it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.asked: list[str] = []

    def path_of(self, jar: str) -> Path:
        """Where the repository keeps this jar."""
        org, name, revision = coordinates_of(jar)
        return self.folder / org.replace(".", "/") / name / revision / jar


def coordinates_of(jar: str) -> tuple[str, str, str]:
    """Give organisation, name and revision; the organisation matters for those that we ask for by name alone."""
    split = re.fullmatch(r"(.+?)-(\d.*)\.jar", jar)
    assert split is not None
    name, revision = split.groups()
    orgs = {wanted: org for org, wanted, _ in DEPENDENCIES}
    return orgs.get(name, "org.example"), name, revision


@pytest.fixture(scope="session")
async def jars() -> list[Path]:
    """The real jars, as every user gets them."""
    return await prepare_jars(find_java(), find_cache())


@pytest.fixture
def repository(jars: list[Path], tmp_path: Path) -> Iterator[Repository]:
    """A mirror on loopback that serves the real jars; Kafka's own depends on all others."""
    folder = tmp_path / "repository"

    class Served(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002, ARG002 — the base class's own
            mirror.asked.append(f"{self.command} {Path(self.path).name}")

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, directory=str(folder))) as server:
        mirror = Repository(folder, f"http://127.0.0.1:{server.server_port}/")
        others = [coordinates_of(jar.name) for jar in jars if jar.name != KAFKA_JAR]
        needed = "".join(f"<dependency>{COORDINATES.format(*other)}</dependency>" for other in others)
        for jar in jars:
            place = mirror.path_of(jar.name)
            place.parent.mkdir(parents=True)
            place.symlink_to(jar)
            dependencies = f"<dependencies>{needed}</dependencies>" if jar.name == KAFKA_JAR else ""
            pom = POM.format(COORDINATES.format(*coordinates_of(jar.name)), dependencies)
            place.with_suffix(".pom").write_text(pom)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield mirror
        finally:
            server.shutdown()
            serving.join()


async def test_two_processes_that_fetch_at_once_both_end_well(repository: Repository, tmp_path: Path) -> None:
    """One of them fetches, the other one uses what it fetched; nothing else stays behind."""
    cache = tmp_path / "cache"
    program = (
        "import asyncio; from starter.local.kafka.jars import find_cache, prepare_jars; "
        "from starter.local.kafka.java import find_java; "
        "print(len(asyncio.run(prepare_jars(find_java(), find_cache()))))"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), REPOSITORY_VARIABLE: repository.url}
    both = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program), cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(2)
    ]
    try:
        said = [out for out, _ in await asyncio.gather(*(process.communicate() for process in both))]
    finally:
        for process in both:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    folder = find_cache({"XDG_CACHE_HOME": str(cache)})
    assert said == [f"{len(list(folder.iterdir()))}\n".encode()] * 2
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]
    assert repository.asked.count(f"GET {KAFKA_JAR}") == 1


async def test_a_fetched_jar_that_is_not_the_expected_one_is_refused(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of that fetch is kept, and neither is what an earlier, killed one has left behind."""
    monkeypatch.setenv(REPOSITORY_VARIABLE, repository.url)
    served = repository.path_of("jose4j-0.9.6.jar")
    served.unlink()
    served.write_bytes(b"something else")
    folder = tmp_path / "cache" / "kafka"
    left = folder.with_name("kafka.part-left")
    left.mkdir(parents=True)

    with pytest.raises(Misconfigured) as told:
        await prepare_jars(find_java(), folder)

    assert str(told.value).startswith(f"{repository.url} gave a jose4j-0.9.6.jar that is not the expected one; unset ")
    assert [path.name for path in folder.parent.iterdir()] == ["kafka.lock"]


async def test_a_repository_that_does_not_answer_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command may succeed later."""
    url = f"http://127.0.0.1:{find_free_port()}/"
    monkeypatch.setenv(REPOSITORY_VARIABLE, url)

    with pytest.raises(
        RetryLater, match=rf"^Apache Kafka 4\.1\.1 can't be fetched from {url} \(module not found: .*\); try"
    ):
        await prepare_jars(find_java(), tmp_path / "cache" / "kafka")


@pytest.mark.parametrize("damage", ["other bytes", "cut short", "gone"])
async def test_a_damaged_jar_in_the_cache_is_noticed(jars: list[Path], tmp_path: Path, damage: str) -> None:
    """Its digest differs, even where its size is right; the sentence says what to delete."""
    folder = tmp_path / "kafka"
    shutil.copytree(jars[0].parent, folder)
    assert await prepare_jars(find_java(), folder) == [folder / jar.name for jar in jars]
    victim = folder / KAFKA_JAR
    whole = victim.read_bytes()
    if damage == "gone":
        victim.unlink()
    else:
        victim.write_bytes(whole[:-1] + (b"" if damage == "cut short" else bytes([whole[-1] ^ 1])))

    with pytest.raises(Misconfigured) as told:
        await prepare_jars(find_java(), folder)

    assert str(told.value) == (
        f"{victim} is missing or damaged; delete the folder {folder} and try again, it is then fetched anew"
    )


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"XDG_CACHE_HOME": "/somewhere"}, Path("/somewhere")),
        ({"XDG_CACHE_HOME": "relative"}, Path.home() / ".cache"),
        ({"XDG_CACHE_HOME": ""}, Path.home() / ".cache"),
        ({}, Path.home() / ".cache"),
    ],
)
def test_the_cache_is_where_users_keep_caches(environ: dict[str, str], cache: Path) -> None:
    """A relative XDG_CACHE_HOME is invalid by its specification and ignored."""
    assert find_cache(environ) == cache / "dormice" / "kafka-4.1.1"
