"""Heartbeats of workers: how many calls a second they finish, and which workers have gone without stopping."""

from collections.abc import Iterable
from datetime import UTC

from temporalio.api.worker.v1 import WorkerHeartbeat
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.idle.capacity import Capacity, is_fresh
from shared.lanes import task_queue

Reported = tuple[float, int]
"""When a worker has reported (seconds since the epoch) how many calls it has finished since it began."""


class Heartbeats:
    """Reads the heartbeats of lanes; a rate is known from a worker's second heartbeat on."""

    def __init__(self, client: Client, prefix: str, lanes: Iterable[str]) -> None:
        self._client = client
        self._queues = {lane: task_queue(prefix, lane) for lane in lanes}
        self._reported: dict[str, Reported] = {}
        self._rates: dict[str, float] = {}
        self.gone: dict[str, float] = {}
        """Workers that did not stop in good order and are silent, with the moment of their last heartbeat."""

    async def read(self) -> dict[str, float]:
        """Give the calls a second of each lane where they are known. Raises RPCError."""
        found = dict[str, float]()
        gone = dict[str, float]()

        for lane, queue in self._queues.items():
            try:
                beats = [beat async for beat in Capacity(self._client, queue).read_heartbeats()]
            except RPCError as exc:
                if exc.status is RPCStatusCode.UNIMPLEMENTED:  # an older server: nobody tells
                    return {}
                raise
            gone |= {beat.worker_identity: _find_time(beat) for beat in beats if not is_fresh(beat)}
            rates = [rate for beat in beats if is_fresh(beat) and (rate := self._measure(beat)) is not None]
            if rates:
                found[lane] = sum(rates)

        self.gone = gone
        return found

    def _measure(self, beat: WorkerHeartbeat) -> float | None:
        key = beat.worker_instance_key
        at = _find_time(beat)
        calls = beat.activity_task_slots_info.total_processed_tasks
        before = self._reported.get(key)
        if before is None or at > before[0]:
            self._reported[key] = (at, calls)
        if before is not None and at > before[0]:
            self._rates[key] = max(0, calls - before[1]) / (at - before[0])
        return self._rates.get(key)


def _find_time(beat: WorkerHeartbeat) -> float:
    return beat.heartbeat_time.ToDatetime(UTC).timestamp()
