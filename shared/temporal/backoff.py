"""The backoff: how long everybody waits who calls the server again after a failure."""

import random

BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 5.0


def backoff_seconds(attempts: int) -> float:
    """Say how long to wait after that many attempts in a row: doubling, capped, the upper half of it by chance."""
    ceiling = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** min(attempts, 10))
    return ceiling * random.uniform(0.5, 1)  # noqa: S311 — jitter needs no cryptography
