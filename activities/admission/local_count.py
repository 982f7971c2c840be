"""The count of one process alone: its calls of a key that are at work, kept in its memory."""

import math
import time
from dataclasses import dataclass, field

from activities.admission.leases import PASS_ON_SECONDS, Count, GrantedTurn, LaterTurn, Lease
from shared.keepers.limits import KEYS_MAX, LeaseLine, Pace

HOLD_MIN = 0.001  # seconds that a call is thought to take at least


@dataclass(slots=True)
class _BusyKey:
    """A key of which calls are at work, or of which messages wait for their turns."""

    line: LeaseLine = field(default_factory=LeaseLine)
    leases: dict[Lease, None] = field(default_factory=dict[Lease, None])  # in the order in which they began
    moved_at: float = 0.0  # when a call has last begun or ended, by the monotonic clock


class LocalCount(Count):
    """Counts the calls of this process; nearly every call finds room, so that costs nothing but an entry."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[str, _BusyKey] = {}
        self._forget_beyond = KEYS_MAX

    async def take_turn(self, key: str, pace: Pace, position: float) -> GrantedTurn | LaterTurn:
        """Answer at once."""
        busy = self._keys.get(key) or self._add(key)
        now = time.time()
        has_waited = math.isfinite(position)
        if len(busy.leases) >= pace.at_once:
            _end_overdue(busy, now)

        free = max(pace.at_once - len(busy.leases), 0)
        if not busy.line.let_in(free, int(has_waited), int(not has_waited)):
            since = position if has_waited else now
            return LaterTurn(since, now + busy.line.find_look(pace.at_once))

        lease = Lease(self, key, pace, now + pace.lease)
        busy.leases[lease] = None
        busy.moved_at = lease.begun_at
        return GrantedTurn(now, lease)

    def has_leases(self, key: str) -> bool:
        """Return whether calls of a key are at work."""
        busy = self._keys.get(key)
        return busy is not None and bool(busy.leases)

    def wake_next(self, key: str, pace: Pace, lease: Lease) -> bool:
        """Pass a lease on, and note that the key's calls move."""
        if busy := self._keys.get(key):
            busy.moved_at = time.monotonic()
        return super().wake_next(key, pace, lease)

    def find_room(self, key: str) -> float:
        """Let wait as many as will have their turn in that time; each holds the place of a call of another key.

        When the key's calls have begun to hang, their usual length says nothing.
        """
        busy = self._keys[key]
        stood_still = time.monotonic() - busy.moved_at
        return PASS_ON_SECONDS * len(busy.leases) / max(busy.line.hold, stood_still, HOLD_MIN)

    def take_idle(self, key: str, pace: Pace) -> Lease | None:  # noqa: ARG002 — what is given back is free at once
        """Find none: a lease is counted until it is given back, and no longer."""
        return None

    def end_lease(self, key: str, lease: Lease) -> None:
        """Take it back at once; one that was overdue is counted no more."""
        busy = self._keys.get(key)
        if busy is None or lease not in busy.leases:
            return

        del busy.leases[lease]
        ended = lease.to_end()
        busy.line.note_end(ended.seconds, ended.passed_on)
        if not busy.leases and not busy.line.waiting:
            del self._keys[key]

    def _add(self, key: str) -> _BusyKey:
        if len(self._keys) >= self._forget_beyond:  # messages that waited may have been stopped
            self._keys = {name: busy for name, busy in self._keys.items() if busy.leases}
            self._forget_beyond = max(KEYS_MAX, 2 * len(self._keys))
        busy = self._keys[key] = _BusyKey()
        return busy


def _end_overdue(busy: _BusyKey, now: float) -> None:
    """Count those no more whose handlers pay no heed to their time limit: they must not stop a host for good."""
    while busy.leases and (first := next(iter(busy.leases))).until <= now:
        del busy.leases[first]
