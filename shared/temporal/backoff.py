"""The backoff: how long every caller waits before it calls the server again after a failure."""

import random

BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 5.0


def backoff_seconds(attempts: int) -> float:
    """Return the wait after `attempts` failures in a row: doubled each time, up to a limit, its upper half random."""
    ceiling = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** min(attempts, 10))
    return ceiling * random.uniform(0.5, 1)  # noqa: S311 — jitter needs no cryptography
