"""Deliveries: workflow tasks that the server has begun and given to no worker, as its own metrics count them.

The server has one second to record that a waiting worker gets a task. When that takes longer, the task is begun in the
database and delivered to nobody, and its repetition is dropped; it comes again when its timeout is over
(`recordTaskStartedSyncMatchTimeout` in the server's matching_engine.go, 1.32). Nothing turns that off.
"""

import asyncio
import re
from dataclasses import dataclass
from http.client import HTTPException
from urllib.request import ProxyHandler, build_opener

from shared.errors import InvalidSetting, RetryLater
from starter.insight.doctor.checks import Finding, fine, warning
from starter.local.terminal import plural

FETCH_SECONDS = 5.0
LOST_MIN = 10
LOST_SHARE = 0.001
"""Fewer than that, or a smaller share of all, are no cause for complaint: a restart or a busy minute."""

_ERROR = re.compile(
    r'^client_errors\{(?=[^}]*operation="HistoryClientRecordWorkflowTaskStarted")'
    r'[^}]*error_type="(?P<type>[^"]*)"[^}]*\} (?P<count>\S+)$',
    re.MULTILINE,
)
_ALL = re.compile(
    r'^client_requests\{(?=[^}]*operation="HistoryClientRecordWorkflowTaskStarted")[^}]*\} (?P<count>\S+)$',
    re.MULTILINE,
)
_GIVEN_UP = ("DeadlineExceeded", "Canceled")
_LOST = ("TaskAlreadyStarted",)


@dataclass(frozen=True, slots=True)
class Deliveries:
    """How many deliveries of workflow tasks went wrong since the server began."""

    given_up: int
    """Recording them took too long, or whoever had asked was gone; most of them are begun all the same."""
    lost: int
    """They were found begun when they were to be delivered again: nobody has them until their timeout is over."""
    tried: int = 0
    """All that were to be delivered."""


async def fetch_deliveries(url: str) -> Deliveries:
    """Count what went wrong by the server's metrics; raises RetryLater, or InvalidSetting for no address."""
    if not url.startswith(("http://", "https://")):
        raise InvalidSetting(
            f"--server-metrics: is {url!r}, no address; give for example http://localhost:9090/metrics"
        )
    try:
        return count_deliveries(await asyncio.to_thread(_read, url))
    except (OSError, HTTPException, ValueError) as exc:
        raise RetryLater(f"the server's metrics at {url} can't be read ({exc}); see whether it serves them") from exc


def _read(url: str) -> str:
    opener = build_opener(ProxyHandler({}))
    with opener.open(url, timeout=FETCH_SECONDS) as answer:
        return answer.read().decode(errors="replace")


def count_deliveries(text: str) -> Deliveries:
    """Count what went wrong in metrics as Prometheus reads them."""
    counts = [(found["type"], round(float(found["count"]))) for found in _ERROR.finditer(text)]

    def total(names: tuple[str, ...]) -> int:
        return sum(count for name, count in counts if name.endswith(names))

    tried = sum(round(float(found["count"])) for found in _ALL.finditer(text))
    return Deliveries(given_up=total(_GIVEN_UP), lost=total(_LOST), tried=tried)


def check_deliveries(found: Deliveries) -> Finding:
    """Report whether the server is too slow to give its tasks to workers."""
    seen = f"{found.lost:,} of {plural(found.tried, 'workflow task')} since the server began"
    if found.lost < max(LOST_MIN, LOST_SHARE * found.tried):
        return fine(f"{seen} had to be delivered twice")
    seen += " were delivered to nobody at first: their messages waited until the task's timeout"
    return warning(seen, "give the server's database a faster disk, or the server more processors or history shards")
