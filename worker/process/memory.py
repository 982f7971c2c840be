"""The memory of a worker process: settings of the garbage collector and the allocator for this kind of work."""

import ctypes
import gc
import platform

COLLECT_AFTER = (10_000, 10, 2)
"""Thresholds of Python's garbage collector, which looks for cycles after 700 new containers by default.

A batch of a pack makes thousands of containers, none of them in a cycle. But a pack that leaves the cache is in one,
and holds a megabyte: so a full collection comes after 200,000 containers, which is every fifty packs.
"""

MAPPED_FROM_BYTES = 64 * 1024
"""Allocations of this size and more are mapped, so that each is given back to the system when it is freed.

Histories and states are allocated in such pieces, on many threads. After a few, the C library would keep their memory.
"""

_M_MMAP_THRESHOLD = -3  # of mallopt(3)


def tune_memory(collect_after: tuple[int, int, int] = COLLECT_AFTER) -> None:
    """Collect garbage less often, never among what is loaded by now; give large pieces of memory back."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*collect_after)
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
