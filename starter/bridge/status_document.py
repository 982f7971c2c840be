"""What a bridge says of itself over HTTP, and how to ask it: without Kafka's client, which who asks may not have."""

from dataclasses import dataclass
from http import HTTPStatus

from pydantic import TypeAdapter

ANSWER_SECONDS = 5.0
"""Time limit for a bridge to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Where a partition stands; None means that the bridge does not know it (yet)."""

    topic: str
    number: int
    received: int | None
    """The next offset to receive."""
    committed: int | None
    end: int | None
    """The offset after the last readable record, as the broker last reported."""
    lag: int | None
    """Records and transaction markers between `committed` and `end`."""
    time_lag_seconds: float | None
    """Age of the first unacknowledged record, by its own timestamp; 0 without lag."""
    oldest_unacknowledged_seconds: float
    """How long ago that record was received; 0 without one."""
    in_flight: int
    waiting: int
    is_paused: bool
    blocked: str
    """Why none of its records may begin; empty while all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeStatus:
    """One bridge as a whole; counts are since its start."""

    group: str
    member: str | None
    topics: tuple[str, ...]
    partitions: tuple[PartitionStatus, ...]
    received: int
    outcomes: dict[str, int]
    throttled: int
    """How often the Temporal server refused a call because it was overloaded."""
    retried: int
    """How often a call to the Temporal server was repeated for another reason."""
    rebalances: int
    commit_failures: int

    @classmethod
    def load(cls, raw: bytes) -> "BridgeStatus":
        """Read what another process has sent as JSON; raises ValueError for anything else."""
        return TypeAdapter(cls).validate_json(raw)


async def fetch_status(address: str) -> "BridgeStatus | str":
    """Ask a bridge at HOST:PORT for its status; gives a sentence where none answers, with what to do."""
    import aiohttp  # noqa: PLC0415 — loads for a quarter of a second, and few commands ask a bridge

    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)) as session,
            session.get(f"http://{address}/status") as answer,
        ):
            status = answer.status
            body = await answer.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
        why = f"{address} does not answer ({type(exc).__name__})"
        return f"{why}; start that bridge with --health-port, or leave it out"

    try:
        if status == HTTPStatus.OK:
            return BridgeStatus.load(body)
    except ValueError:
        pass
    why = f"{address} answers /status with code {status} and not as a bridge does"
    return f"{why}; wait until it has started, or correct the address"
