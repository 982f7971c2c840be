"""The memory of a worker process: its garbage collector and its allocator, told what kind of work this is."""

import ctypes
import gc
import platform

COLLECT_AFTER = (10_000, 10, 2)
"""Python looks for cycles after 700 new containers; a batch of a pack makes thousands, none of which is in a cycle. But a
pack that leaves the cache is in one, a megabyte of it: so the last, full look comes every 200,000, that is every fifty packs."""

MAPPED_FROM_BYTES = 64 * 1024
"""Histories and states come and go in pieces of this size and more, on many threads. The C library would keep their room
once it has seen a few; mapped, each is given back when it ends."""

_M_MMAP_THRESHOLD = -3  # of mallopt(3)


def tune_memory(collect_after: tuple[int, int, int] = COLLECT_AFTER) -> None:
    """Look for garbage less often, and never among what was imported; give large pieces back. Call it once all is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*collect_after)
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
