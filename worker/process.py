"""What worker processes stand on: how many fit, event loop and memory of each, and the way out of a stuck run."""

import asyncio
import ctypes
import gc
import importlib
import logging
import math
import os
import platform
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

from activities.calls.slots import SLOW_SHARE
from shared.telemetry.logs import CORE

logger = logging.getLogger(__name__)

T = TypeVar("T")

OWN_FILES = 500  # of the process itself: modules, logs, and connections to the server

# Python's garbage collector looks for cycles after 700 new containers by default. A batch of a pack makes thousands of
# them, none in a cycle, and each full collection walks through all messages of the packs in the cache. What is in a
# cycle is a run that leaves the cache, but it is taken apart first (`worker.lanes.evictions`): so collections
# may be rare.
COLLECT_AFTER = (200_000, 10, 10)

# Larger allocations are mapped, so that each is given back to the system when it is freed. Histories and states are
# allocated in such pieces, on many threads. After a few, the C library would keep their memory.
MAPPED_FROM_BYTES = 64 * 1024
_M_MMAP_THRESHOLD = -3  # of mallopt(3)

PROCESS_BYTES = 512 * 1024 * 1024  # a worker process with a full cache of packs takes up to 250 MB

# temporalio 1.35, crates/sdk-core worker/workflow/workflow_stream.rs, process_post_activation: when several tasks come
# for a run while the cache is full, the first may have to fetch its history. The activation of the next task is then
# dropped, and whatever comes for the run later waits behind it for ever. We know of no issue about it.
DROPPED = "Extra buffered run should not have produced an activation"


def count_processes(cgroup: str = "", root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many worker processes fit here: one for each core and for each 512 MB that may be used, at least one.

    Cores are those that this process is bound to, at most the CPU quota, rounded up. Quota and limit of memory are
    those of its control group and the ones around it, as `docker run` and Kubernetes set them. `cgroup` is the content
    of /proc/self/cgroup, read if left out.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = next((line[4:] for line in (cgroup or _read("/proc/self/cgroup")).splitlines() if line[:4] == "0::/"), "")
    folders = [folder for folder in (root / own, *(root / own).parents) if folder.is_relative_to(root)]
    # the last of each list is of version 1 of control groups
    quotas = [*(_read(folder / "cpu.max") for folder in folders), _read(root / "cpu/cpu.cfs_quota_us")]
    quotas[-1] += _read(root / "cpu/cpu.cfs_period_us")
    limits = [*(_read(folder / "memory.max") for folder in folders), _read(root / "memory/memory.limit_in_bytes")]
    by_quota = [math.ceil(int(words[0]) / int(words[1])) for words in map(str.split, quotas) if _is_limit(words, 2)]
    by_memory = [int(words[0]) // PROCESS_BYTES for words in map(str.split, limits) if _is_limit(words, 1)]

    return max(1, min([cores, *by_quota, *by_memory]))


def _is_limit(words: list[str], count: int) -> bool:
    return len(words) == count and words[0].isdecimal()  # without a limit it is "max" or -1


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, ValueError):
        return ""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop of uvloop, which saves a fifth of a worker's processor time, or Python's own on Windows."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    return importlib.import_module("uvloop").new_event_loop()


def run_unstoppably(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end or error, also when a handler stops the loop or a task left behind calls `sys.exit()`."""
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt, RuntimeError) as exc:
            if task.done():
                raise
            fields = {"action": "loop_stopped", "why": f"{type(exc).__name__}: {exc}"}
            logger.warning("a handler has stopped the event loop; it goes on", extra=fields)


def tune_memory(collect_after: tuple[int, int, int] = COLLECT_AFTER) -> None:
    """Collect garbage less often, never among what is loaded by now; give large pieces of memory back."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*collect_after)
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)


def raise_open_files(handlers_at_once: int) -> None:
    """Let this process open as many files as the system allows; warn if handlers may need more connections."""
    if sys.platform == "win32":
        return

    import resource  # noqa: PLC0415 — Windows has no such module

    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    needed = handlers_at_once * (1 + SLOW_SHARE) + OWN_FILES
    if maximum != resource.RLIM_INFINITY and maximum < needed:
        fields = {"action": "few_open_files", "limit": maximum, "needed": needed}
        logger.warning(
            "handlers may find no file for a connection: raise the limit of open files (ulimit -n)", extra=fields
        )


class StuckRuns(logging.Handler):
    """Reads the core's log; once the core has dropped something, sets `is_found` and calls `notify`, in any thread."""

    def __init__(self, notify: Callable[[], None]) -> None:
        super().__init__(logging.ERROR)
        self._notify = notify
        self.is_found = False

    def emit(self, record: logging.LogRecord) -> None:
        """Check a line of the log."""
        if DROPPED in record.getMessage() and not self.is_found:
            self.is_found = True
            fields = {"action": "worker_stuck"}
            logger.error("a workflow is stuck in this process: it drains, and begins anew", extra=fields)
            self._notify()

    def __enter__(self) -> Self:
        logging.getLogger(CORE).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(CORE).removeHandler(self)


def begin_anew() -> NoReturn:
    """Replace this process by a new one with the same command line; its supervisor sees no change."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 — our own command line, without a shell
