"""Local files: finds out without Spark whether a path or pattern of this machine has anything to read."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from shared.errors import GiveUp

_FILE_SCHEMES = ("file://", "file:")
_PATTERN_ONLY_OF_SPARK = "[]{}\\"


def check_local_files(place: str, *, is_default: bool) -> None:
    """Raise GiveUp for a place of this machine without anything to read; do nothing where only Spark can know.

    `is_default`: paths without a scheme are files of this machine for Spark, too.
    """
    scheme = next((prefix for prefix in _FILE_SCHEMES if place.startswith(prefix)), "")
    path = os.path.abspath(place.removeprefix(scheme))  # noqa: PTH100 — a pattern is no Path
    if ("://" in place and not scheme) or not (scheme or is_default) or set(_PATTERN_ONLY_OF_SPARK) & set(path):
        return

    found = glob.glob(path, include_hidden=True)  # noqa: PTH207 — Path.glob takes no absolute pattern
    if not found:
        raise GiveUp(f"{path}: there is no such file or folder; give the path of one")

    try:
        if not any(_holds_data(file) for file in _list_files(found)):
            raise GiveUp(f"{place}: is empty; there is nothing to start")
    except OSError as exc:
        raise GiveUp(f"{exc.filename}: can't be read ({exc.strerror}); give the path of a file that can be") from exc


def _list_files(paths: list[str]) -> Iterator[Path]:
    """Give the files that Spark reads; it leaves out those whose names begin as those of temporary files do."""
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        for folder, _, names in os.walk(path, onerror=_raise):
            yield from (Path(folder, name) for name in names if not name.startswith((".", "_")))


def _holds_data(file: Path) -> bool:
    if file.exists() and not file.is_file():
        return True  # a pipe would lose what is read here
    with file.open("rb") as stream:
        return bool(stream.read(1))


def _raise(exc: OSError) -> None:
    raise exc
