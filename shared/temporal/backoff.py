"""The backoff: how long every caller waits before it calls the server again, and when it gives up."""

import asyncio
import random
import time
from datetime import timedelta

BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 5.0

REST = 10.0
"""What is read on and on rests this many times as long as reading it took: a tenth of the time at most."""


def backoff_seconds(attempts: int) -> float:
    """Return the wait after `attempts` failures in a row: doubled each time, up to a limit, its upper half random."""
    return add_jitter(min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** min(attempts, 10)))


def add_jitter(longest: float) -> float:
    """Return a wait between half of `longest` and all of it: who failed together does not come back together."""
    return longest * random.uniform(0.5, 1)  # noqa: S311 — jitter needs no cryptography


def rest_seconds(took: float, minimum: float, times: float = REST) -> float:
    """Return the wait after a reading that took `took` seconds, so that its price does not grow with what there is."""
    return max(minimum, took * times)


class Patience:
    """How long a caller repeats what fails for a passing reason, with a backoff before each further attempt.

    A loop makes an attempt, returns if that is accepted, gives up if the patience `is_over`, and else has a `wait`.
    """

    def __init__(self, span: timedelta) -> None:
        self.attempts = 1
        """How many attempts there were, with the present one."""
        self._ends_at = time.monotonic() + span.total_seconds()

    @property
    def is_over(self) -> bool:
        """Whether no further attempt is to be made."""
        return time.monotonic() >= self._ends_at

    def renew(self, span: timedelta) -> None:
        """Begin the whole time anew; the attempts still count."""
        self._ends_at = time.monotonic() + span.total_seconds()

    async def wait(self) -> None:
        """Wait before the next attempt."""
        await asyncio.sleep(backoff_seconds(self.attempts))
        self.attempts += 1
