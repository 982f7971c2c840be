"""The disk: whether it is full, and the error that says so."""

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from shared.errors import DiskFull, DormiceError, GiveUp

START_BYTES = 8 * 1024 * 1024
"""What the first start of the embedded server needs, with some room for messages."""

FULL_BYTES = 1024 * 1024
WATCH_SECONDS = 2.0
DEFAULT_DATA = Path(".dormice")
"""Where `dormice dev` keeps messages, unless it is told another folder."""
ADDRESSES_FILE = "addresses.json"
"""The addresses of server, Web UI and the server's metrics, for commands that run beside them."""
SERVER_COMPLAINT = b"database or disk is full"


def is_full_error(exc: OSError) -> bool:
    """Say whether a write failed because the disk is full or this user's quota is used up."""
    return exc.errno in (errno.ENOSPC, errno.EDQUOT)


def explain_write_error(name: str, path: Path, exc: OSError) -> DormiceError:
    """Give the error for what can't be written to a path; `name` is the option or argument that names it."""
    if is_full_error(exc):
        return DiskFull(f"{name}: the disk that holds {path} is full; free some space, or give a path on another disk")
    return GiveUp(f"{name}: {path} can't be written ({exc.strerror}); give another path")


def check_room(folder: Path) -> None:
    """Raise DiskFull when a server could not work in a folder."""
    if (free := find_free_bytes(folder)) < START_BYTES:
        lack = f"{free / 1e6:.1f} MB left, {START_BYTES / 1e6:.0f} are needed"
        flaw = f"--data: the disk that holds {folder} is full ({lack})"
        raise DiskFull(f"{flaw}; free some space, or choose a folder on another disk")


def find_free_bytes(folder: Path) -> int:
    """Give the free bytes that this user may use: some file systems reserve space for root."""
    found = os.statvfs(folder)
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)


def find_full_disk(folder: Path) -> str:
    """Say that the disk of a server's folder is full; empty if it is not."""
    return _describe_full(folder) if find_free_bytes(folder) < FULL_BYTES else ""


def find_full_disk_of(server: str) -> str:
    """Say that the disk of the embedded server at HOST:PORT is full; empty if it is not.

    Known are the servers that were started in the working folder, for its messages are kept below it.
    """
    try:
        return find_full_disk(DEFAULT_DATA.absolute()) if read_addresses(server, DEFAULT_DATA) else ""
    except OSError:
        return ""


def read_addresses(server: str, folder: Path) -> dict[str, str | None]:
    """Give the addresses of the embedded server of a folder by name, if it is the `server` (HOST:PORT), or nothing.

    A server that was killed leaves them behind.
    """
    try:
        addresses = json.loads((folder / ADDRESSES_FILE).read_text("utf-8"))
        is_meant = server.replace("localhost", "127.0.0.1") == addresses["server"]
    except (OSError, ValueError, LookupError):
        return {}
    return addresses if is_meant else {}


def _describe_full(folder: Path) -> str:
    problem = f"the disk that holds {folder} is full: the server can't write, and messages stand still"
    return f"{problem}; free some space, nothing that has been started is lost"


@contextlib.asynccontextmanager
async def watch_disk(folder: Path, log: Path, report: Callable[[str], None]) -> AsyncGenerator[None]:
    """Report, within a `with` block, when the disk of a running server is full, and when it has room again."""
    watching = asyncio.create_task(_watch(folder, log, report))
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _watch(folder: Path, log: Path, report: Callable[[str], None]) -> None:
    was_full = False
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            complains = SERVER_COMPLAINT in file.read()  # the only sign when a quota is used up
            is_full = complains or find_free_bytes(folder) < FULL_BYTES
            if is_full and not was_full:
                report(_describe_full(folder))
            if was_full and not is_full:
                report(f"the disk that holds {folder} has room again; messages go on")
            was_full = is_full
