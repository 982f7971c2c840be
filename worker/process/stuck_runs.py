"""Stuck runs: a fault of the SDK's core that stops one workflow in this process, and how to recover from it."""

import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn, Self

from shared.telemetry.logs import CORE

# temporalio 1.35, crates/sdk-core worker/workflow/workflow_stream.rs, process_post_activation: when several tasks come
# for a run while the cache is full, the first may have to fetch its history. The activation of the next task is then
# dropped, and whatever comes for the run later waits behind it for ever. We know of no issue about it.
DROPPED = "Extra buffered run should not have produced an activation"

logger = logging.getLogger(__name__)


class StuckRuns(logging.Handler):
    """Reads the core's log; once the core has dropped something, sets `is_found` and calls `tell`, in any thread."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__(logging.ERROR)
        self._tell = tell
        self.is_found = False

    def emit(self, record: logging.LogRecord) -> None:
        """Check a line of the log."""
        if DROPPED in record.getMessage() and not self.is_found:
            self.is_found = True
            fields = {"action": "worker_stuck"}
            logger.error("a workflow is stuck in this process: it drains, and begins anew", extra=fields)
            self._tell()

    def __enter__(self) -> Self:
        """Start to read the log."""
        logging.getLogger(CORE).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading the log."""
        logging.getLogger(CORE).removeHandler(self)


def begin_anew() -> NoReturn:
    """Replace this process by a new one with the same command line; its supervisor sees no change."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 — our own command line, without a shell
