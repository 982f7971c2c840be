"""How much the runs in a worker process's caches may hold: beyond it, those that were used least recently leave.

The SDK's core counts runs, and one pack holds as much as a thousand messages with workflows of their own.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from temporalio.worker import WorkflowInstance

from shared.telemetry.metrics import CACHED_BYTES, CACHED_RUNS
from shared.telemetry.sdk import Telemetry

RUN_BYTES = 50_000
"""What the SDK holds of a run, whatever is in it, as measured with thousands of sleeping messages."""

NO_LABELS: dict[str, str] = {}


class _Run(NamedTuple):
    held_bytes: int
    evict: Callable[[str], None]


class Cache:
    """What the runs in all caches of one process hold, the least recently used first; for any thread."""

    def __init__(self, bytes_max: int, telemetry: Telemetry) -> None:
        """Let runs hold `bytes_max` in all; 0 means as much as they like."""
        self._bytes_max = bytes_max
        self._telemetry = telemetry
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._lock = threading.Lock()
        self.held_bytes = 0

    def __len__(self) -> int:
        """Count the runs."""
        return len(self._runs)

    def note(self, run_id: str, held_bytes: int, evict: Callable[[str], None]) -> None:
        """Note that a run has just been used and what it holds; `evict` takes a run of its worker out of the cache.

        The run itself stays, however much it holds.
        """
        with self._lock:
            before = self._runs.pop(run_id, None)
            self._runs[run_id] = _Run(held_bytes, evict)
            if before is None:
                self._count(1, held_bytes)
            else:
                self._count(0, held_bytes - before.held_bytes)
            crowded_out = self._take_oldest()

        for oldest, run in crowded_out:
            run.evict(oldest)

    def forget(self, run_id: str) -> bool:
        """Note that a run has left its worker's cache; return whether that was not asked for here."""
        with self._lock:
            return self._remove(run_id)

    def _take_oldest(self) -> list[tuple[str, _Run]]:
        taken: list[tuple[str, _Run]] = []
        while self._bytes_max and self.held_bytes > self._bytes_max and len(self._runs) > 1:
            oldest = next(iter(self._runs))
            taken.append((oldest, self._runs[oldest]))
            self._remove(oldest)
        return taken

    def _remove(self, run_id: str) -> bool:
        run = self._runs.pop(run_id, None)
        if run is None:
            return False

        self._count(-1, -run.held_bytes)
        return True

    def _count(self, runs: int, held_bytes: int) -> None:
        self.held_bytes += held_bytes
        if runs:
            self._telemetry.record(CACHED_RUNS, runs, NO_LABELS)
        if held_bytes:
            self._telemetry.record(CACHED_BYTES, held_bytes, NO_LABELS)


def find_held_bytes(instance: WorkflowInstance) -> int:
    """Return about how much memory a run takes; a workflow whose state may be large says how much it holds."""
    # temporalio 1.35 keeps the workflow's own object under this name; without it, all runs count alike
    workflow = getattr(instance, "_object", None)
    return RUN_BYTES + getattr(workflow, "held_bytes", 0)
