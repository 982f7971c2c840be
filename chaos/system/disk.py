"""A disk that can be full: a file system in memory whose size is reduced to its content, and restored."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

SIZE_MB = 4096
"""Size of the file system while it is not full; it uses memory only for its content."""

PAGE_KB = 4


class Disk:
    """A mounted file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def fill(self) -> None:
        """Leave almost no free space: every write that needs more then fails with ENOSPC."""
        found = os.statvfs(self.folder)
        used_kb = (found.f_blocks - found.f_bfree) * found.f_frsize // 1024
        # writes between reading the size and the call can make the size too small, which the kernel refuses
        for spare_kb in (PAGE_KB, 1024, 16 * 1024):
            if await asyncio.to_thread(_mount, f"remount,size={used_kb + spare_kb}k", self.folder):
                return

    async def free(self) -> None:
        """Restore the full size."""
        await asyncio.to_thread(_mount, f"remount,size={SIZE_MB}m", self.folder)


@contextlib.contextmanager
def mount_disk(folder: Path) -> Generator[Disk | None]:
    """Mount such a file system on a new folder for a `with` block; None if mounting is not allowed."""
    folder.mkdir()
    if os.geteuid() or shutil.which("mount") is None or not _mount(f"size={SIZE_MB}m", folder):
        yield None
        return

    try:
        yield Disk(folder)
    finally:
        # keep the files to find out why a promise was broken; if none was, the whole folder is removed
        with contextlib.suppress(OSError):
            shutil.copytree(folder, folder.with_name(f"{folder.name}-files"))
        _run("umount", "--lazy", str(folder))


def _mount(options: str, folder: Path) -> bool:
    return _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))


def _run(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603 — our own
