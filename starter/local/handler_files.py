"""Handler files: the source files that the handlers' modules are made of, and which of them has changed."""

import asyncio
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path

from activities.registry import ENTRY_POINT_GROUP

LOOK_SECONDS = 0.5
OWN = "activities"
"""The package of the built-in handlers, which are not the user's to change."""


class HandlerFiles:
    """The files beside the modules that the setting `handlers` names, of packages all, and of installed handlers.

    What changes between two calls of `wait` is not missed. Files are looked at in place of asking the system to tell
    of changes, because that works everywhere, also in containers and on network disks.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        installed = (point.value for point in entry_points(group=ENTRY_POINT_GROUP))
        self._packages = {name.split(":")[0].partition(".")[0] for name in (*modules, *installed)} - {OWN}
        self._seen = self._read_times()

    async def wait(self) -> Path:
        """Wait until a file has come, gone or changed, and give it."""
        while (found := self._read_times()) == self._seen:  # noqa: ASYNC110 — no event tells of a file
            await asyncio.sleep(LOOK_SECONDS)
        changed = min(path for path, _ in found.items() ^ self._seen.items())
        self._seen = found
        return changed

    def _read_times(self) -> dict[Path, int]:
        """Give when each file was changed, in nanoseconds."""
        found = dict[Path, int]()
        for path in self._list():
            try:
                found[path] = path.stat().st_mtime_ns
            except FileNotFoundError:  # an editor has just replaced it
                continue
        return found

    def _list(self) -> Iterator[Path]:
        for package in self._packages:
            spec = PathFinder.find_spec(package)
            if spec is None:
                continue
            if spec.submodule_search_locations is not None:
                for folder in spec.submodule_search_locations:
                    yield from Path(folder).rglob("*.py")
            elif spec.origin is not None:
                yield from Path(spec.origin).parent.glob("*.py")
