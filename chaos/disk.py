"""A disk that can be full: a file system in memory whose size is cut down to what it holds, and given back."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

SIZE_MB = 4096
"""Room of the file system while it is not full; memory is used for what it holds alone."""

PAGE_KB = 4


class Disk:
    """A mounted file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def fill(self) -> None:
        """Leave no more room than a page: from now on every write that needs room fails with ENOSPC."""
        found = os.statvfs(self.folder)
        used_kb = (found.f_blocks - found.f_bfree) * found.f_frsize // 1024
        # what is written between the look and the call makes the kernel refuse a size that is too small
        for spare_kb in (PAGE_KB, 1024, 16 * 1024):
            if await asyncio.to_thread(_mount, f"remount,size={used_kb + spare_kb}k", self.folder):
                return

    async def free(self) -> None:
        """Give it its room again."""
        await asyncio.to_thread(_mount, f"remount,size={SIZE_MB}m", self.folder)


@contextlib.contextmanager
def mount_disk(folder: Path) -> Generator[Disk | None]:
    """Have such a file system in a new folder for the length of a `with` block; None where that is not allowed."""
    folder.mkdir()
    if os.geteuid() or shutil.which("mount") is None or not _mount(f"size={SIZE_MB}m", folder):
        yield None
        return
    try:
        yield Disk(folder)
    finally:
        # for whoever wants to know why a promise was broken; the whole folder is removed when none was
        with contextlib.suppress(OSError):
            shutil.copytree(folder, folder.with_name(f"{folder.name}-files"))
        _run("umount", "--lazy", str(folder))


def _mount(options: str, folder: Path) -> bool:
    return _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))


def _run(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603 — our own
