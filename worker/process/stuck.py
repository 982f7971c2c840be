"""Stuck runs: a fault of the SDK's core after which one workflow runs no more in this process, and the way out of it."""

import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn, Self

from shared.telemetry.logs import CORE

# temporalio 1.35, crates/sdk-core worker/workflow/workflow_stream.rs, process_post_activation: of several tasks that came
# for a run while the cache was full, the first may have to fetch its history; what the next one brings about is dropped
# then, and whatever comes for the run later waits behind it for ever. We know of no issue about it.
DROPPED = "Extra buffered run should not have produced an activation"

logger = logging.getLogger(__name__)


class StuckRuns(logging.Handler):
    """Reads what the core logs; `is_found` once it has dropped something, and `tell` is called then, in any thread."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__(logging.ERROR)
        self._tell = tell
        self.is_found = False

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log."""
        if DROPPED in record.getMessage() and not self.is_found:
            self.is_found = True
            told = {"action": "worker_stuck"}
            logger.error("a workflow is stuck in this process: it drains, and begins anew", extra=told)
            self._tell()

    def __enter__(self) -> Self:
        """Begin to read."""
        logging.getLogger(CORE).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Read no more."""
        logging.getLogger(CORE).removeHandler(self)


def begin_anew() -> NoReturn:
    """Replace this process by a new one of the same command line; whoever supervises it sees no change."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 — our own command line, without a shell
