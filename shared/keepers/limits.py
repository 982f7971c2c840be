"""Limits of calls per key: turns by the generic cell rate algorithm, leases of running calls, and their wire forms.

A limit allows some calls in a period, or some at once. Time is divided into *slots*, one call each, an interval apart.
A message whose slot is near reserves it. All others get a position in line, and ask again when that is near.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from shared.messages.signal_reading import is_int, is_number
from shared.messages.timespan import ceil_ms

LIMITS_WORKFLOW = "limits"  # workflow type that keeps the turns of a part of all keys
TAKE = "take"  # update by which a worker process asks for its calls' turns
SHARDS = 8  # workflows that share the keys; with another number, workers of two versions would not share their counts
KEY_MAX_BYTES = 300
NUMBER_MAX = 1e12  # far above any moment in seconds since the epoch
WAITING_MAX = 100_000  # calls that one request may be for: many times what a process can have in flight
KEYS_MAX = 20_000  # busy keys that one of the workflows keeps; calls of further keys wait until others are at rest
FULL_SECONDS = 60.0  # how long these wait

AHEAD_SECONDS = 20.0  # how far ahead slots are reserved; the slots of messages that are stopped meanwhile are lost
LOOK_MAX_SECONDS = 3600.0  # a message further back in line asks again after this time, so that a new limit reaches it
LOOK_SHARE = 0.75  # or after this share of the time until its turn
LOOK_MIN_SECONDS = 1.0

GRACE_SHARE = 0.05
GRACE_MIN = 3.0
"""How long after its slot a call may begin, as a share of the period and in seconds: as late as a busy worker."""
CREDIT_SHARE = 0.01
CREDIT_MIN = 0.5
"""How long unused slots stay usable, so that slots are not lost between two requests."""
LEASE_MARGIN_SECONDS = 15.0  # by how much a lease outlasts the longest call: it may be passed on, and told late
HOLD_FIRST = 0.1  # seconds that a call is thought to take before one has ended
HOLD_WEIGHT = 0.2  # weight of the newest call in the mean
CROWD = 0.6  # so they ask three times as often as there is a lease for them, because they come by chance
GOLDEN_RATIO = 0.618034  # its multiples, modulo 1, are spread as evenly as can be, wherever the row ends
HURRY = 0.9  # messages come back for a lease in this share of the time that calls take, so that no lease waits


def limits_workflow_id(prefix: str, shard: int) -> str:
    """Name one of the workflows that keep turns; no kind holds a tilde, so it is no message."""
    return f"{prefix}~limits-{shard}"


def limits_queue(prefix: str) -> str:
    """Name their task queue: not a lane's, whose slots may all be taken by calls that wait for their turns."""
    return f"{prefix}-limits"


def digest_key(key: str) -> str:
    """Give the form in which a key travels: 16 characters that show nothing of it."""
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


def shard_of(digest: str) -> int:
    """Return which of the workflows keeps a key."""
    return int(digest[:4], 16) % SHARDS


def check_key(name: str) -> str:
    """Give a limit's key if it is one; raises ValueError with the half of a sentence that says why not."""
    if not name.isprintable() or len(name.encode(errors="replace")) > KEY_MAX_BYTES:
        raise ValueError(f"{name[:40]!r} is no key; give 1 to {KEY_MAX_BYTES} bytes without control characters")
    return name


class Pace(NamedTuple):
    """The numbers of a limit as they travel, in seconds; `interval` 0: any rate, `at_once` 0: any number at once."""

    interval: float
    credit: float
    at_once: int
    lease: float  # after this time the lease of a call ends by itself, because the call's worker was killed

    @classmethod
    def of(cls, calls: int, period: float, at_once: int, lease: float) -> Self:
        """Make the pace of `calls` in a period, or of any number of calls if it is 0."""
        if not calls:
            return cls(0.0, 0.0, at_once, lease)
        return cls(period / calls, max(period * CREDIT_SHARE, CREDIT_MIN), at_once, lease)


def grace_of(period: float) -> float:
    """Return how long after its slot a call may begin, in seconds."""
    return max(period * GRACE_SHARE, GRACE_MIN)


class EndedLease(NamedTuple):
    """A lease that a process gives back: its key and end, how long each of its calls took, and how often it went on."""

    key: str
    until: float
    seconds: float
    passed_on: int


class TurnRequest(NamedTuple):
    """What the calls of one process want of a key: positions that messages hold in line, and how many hold none."""

    key: str
    pace: Pace
    held: Sequence[float]
    fresh: int


class TurnResponse(NamedTuple):
    """Slots for the first of those who asked, in the order of their positions; the others' positions and next looks."""

    slots: list[float]
    later: list[tuple[float, float]]
    lease_until: float = 0.0  # names the leases that come with the slots; 0: there are none


class LeaseLine:
    """Those who wait for a lease of one key: how many they are, and when each asks again."""

    __slots__ = ("_spot", "hold", "waiting")

    def __init__(self, hold: float = HOLD_FIRST, waiting: int = 0) -> None:
        self.hold = hold  # mean seconds of a call
        self.waiting = waiting  # about how many messages wait
        self._spot = 0.0  # where in the time of all others the last of them asks again

    def let_in(self, free: int, held: int, fresh: int) -> int:
        """Give how many of those who ask may begin; first those who held a place in line, then the fresh ones."""
        taken = min(free, held + fresh)
        joining = max(fresh - max(taken - held, 0), 0)
        leaving = min(taken, held)
        self.waiting = max(self.waiting + joining - leaving, held + fresh - taken)
        return taken

    def find_look(self, at_once: int) -> float:
        """Give in how many seconds one who waits asks again: evenly spread over the time until all had their turn."""
        self._spot = (self._spot + GOLDEN_RATIO) % 1
        drain = CROWD * self.waiting * self.hold / at_once
        return min(max(drain * self._spot, LOOK_MIN_SECONDS), LOOK_MAX_SECONDS)

    def note_end(self, seconds: float, passed_on: int) -> None:
        """Note the end of a lease whose calls took some seconds each; it was passed on to some that waited."""
        self.waiting = max(self.waiting - passed_on, 0)
        self.hold += HOLD_WEIGHT * (seconds - self.hold)


class KeyTurns:
    """The turns of one key; moments are seconds since the epoch."""

    __slots__ = ("back", "credit", "leases", "line", "next_slot")

    def __init__(
        self, next_slot: float = 0.0, back: float = 0.0, credit: float = 0.0, line: LeaseLine | None = None
    ) -> None:
        self.next_slot = next_slot  # the first slot that nobody has reserved
        self.back = back  # the last position in line
        self.credit = credit
        self.line = line or LeaseLine()
        self.leases: dict[int, int] = {}  # how many calls run, by when their leases end, in milliseconds

    def take(self, pace: Pace, now: float, held: Sequence[float], fresh: int) -> TurnResponse:
        """Give out what is free, and positions in line for all others."""
        if pace.at_once and not pace.interval:
            return self._take_leases(pace, now, held, fresh)

        self.credit = pace.credit
        self.leases = {until: count for until, count in self.leases.items() if until > now * 1000}
        free = pace.at_once - sum(self.leases.values()) if pace.at_once else math.inf
        ahead = 0.0 if pace.at_once else AHEAD_SECONDS  # with leases nothing is reserved: a lease is free or not
        hurry = HURRY * self.line.hold / pace.at_once if pace.at_once else 0.0
        interval = max(pace.interval, hurry)
        until = ceil_ms(now + pace.lease) / 1000 if pace.at_once else 0.0
        answer = TurnResponse([], [], until)
        self.next_slot = max(self.next_slot, now - pace.credit)
        for position in (*sorted(held), *[math.inf] * fresh):
            is_first = position <= now + max(ahead, LOOK_MIN_SECONDS)
            has_room = self.next_slot <= now + ahead and len(answer.slots) < free
            if has_room and (is_first or self._is_line_short(position, now, ahead)):
                slot = self.next_slot if pace.interval else now
                answer.slots.append(slot)
                self.next_slot += pace.interval
                continue
            place = self._join_line(now, interval) if math.isinf(position) else position
            answer.later.append((place, self._find_look(place, now, ahead, interval)))
        if pace.at_once and answer.slots:
            until = round(answer.lease_until * 1000)
            self.leases[until] = self.leases.get(until, 0) + len(answer.slots)
        return answer

    def _take_leases(self, pace: Pace, now: float, held: Sequence[float], fresh: int) -> TurnResponse:
        """Give out free leases, to those first who have waited for longest; a position is when they began to wait."""
        self.leases = {until: count for until, count in self.leases.items() if until > now * 1000}
        free = max(pace.at_once - sum(self.leases.values()), 0)
        taken = self.line.let_in(free, len(held), fresh)
        left = [*sorted(held), *[now] * fresh][taken:]
        looks = [now + self.line.find_look(pace.at_once) for _ in left]

        until = ceil_ms(now + pace.lease)
        if taken:
            self.leases[until] = self.leases.get(until, 0) + taken
        return TurnResponse([now] * taken, list(zip(left, looks, strict=True)), until / 1000)

    def _join_line(self, now: float, interval: float) -> float:
        self.back = max(self.back, self.next_slot, now) + interval
        return self.back

    def _is_line_short(self, position: float, now: float, ahead: float) -> bool:
        """Return whether one whose turn has not come takes nothing from others: the line is empty, or has gaps."""
        if math.isinf(position) or not ahead:
            return self.back <= now + ahead
        return self.next_slot < now + ahead / 2

    def _find_look(self, position: float, now: float, ahead: float, interval: float) -> float:
        left = position - now
        if left > ahead:
            wait = min(left - ahead / 2, max(left * LOOK_SHARE, ahead), LOOK_MAX_SECONDS)
        else:  # what it waits for was not there in time: the longer it is overdue, the less often it asks
            wait = min(max(ahead / 2, interval, -left / 2), LOOK_MAX_SECONDS)
        return now + max(wait, LOOK_MIN_SECONDS)

    def end_lease(self, lease_until: float, seconds: float, passed_on: int) -> None:
        """Take a lease back whose calls took some seconds each; it was passed on to some that waited."""
        self.line.note_end(seconds, passed_on)
        until = round(lease_until * 1000)
        if (count := self.leases.pop(until, 0)) > 1:
            self.leases[until] = count - 1

    def is_at_rest(self, now: float) -> bool:
        """Return whether a new key would be the same."""
        has_leases = any(until > now * 1000 for until in self.leases)
        return self.next_slot + self.credit <= now and self.back <= now and not has_leases

    def dump(self) -> list[Any]:
        """Give the wire form."""
        numbers = [round(n, 3) for n in (self.next_slot, self.back, self.credit, self.line.hold)]
        leases = [part for lease in self.leases.items() for part in lease]
        return [*numbers, leases, self.line.waiting] if leases or self.line.waiting else numbers

    @classmethod
    def load(cls, wire: Sequence[Any]) -> Self:
        """Read a wire form."""
        next_slot, back, credit, hold = wire[:4]
        waiting = wire[5] if len(wire) > 5 else 0
        turns = cls(next_slot, back, credit, LeaseLine(hold, waiting))
        leases: list[int] = wire[4] if len(wire) > 4 else []
        turns.leases = dict(zip(leases[::2], leases[1::2], strict=True))
        return turns


class ShardTurns:
    """The turns of all keys of one workflow; keys at rest are forgotten."""

    def __init__(self, wire: Mapping[str, Any]) -> None:
        self._keys = {key: KeyTurns.load(turns) for key, turns in wire.items()}
        self._forget_beyond = KEYS_MAX // 2

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, wire: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Answer a worker process, after its calls that have ended."""
        for ended in wire["ended"]:
            self.end_lease(EndedLease(*ended))
        self.forget_rested(now)
        return {"now": now, "answers": [_dump_answer(self.answer(each, now), now) for each in read_requests(wire)]}

    def end_lease(self, lease: EndedLease) -> None:
        """Take a lease back; one of a key that is at rest is over already."""
        turns = self._keys.get(lease.key)
        if turns is not None:
            turns.end_lease(lease.until, lease.seconds, lease.passed_on)

    def answer(self, request: TurnRequest, now: float) -> TurnResponse:
        """Give turns to the calls of one process that share a key."""
        turns = self._keys.get(request.key)
        if turns is None:
            if len(self._keys) >= KEYS_MAX:
                later = [*sorted(request.held), *[now + FULL_SECONDS] * request.fresh]
                return TurnResponse([], [(position, now + FULL_SECONDS) for position in later])
            turns = self._keys[request.key] = KeyTurns()
        return turns.take(request.pace, now, request.held, request.fresh)

    def forget_rested(self, now: float) -> None:
        """Forget the keys that are at rest, when there are many."""
        if len(self._keys) > self._forget_beyond:
            self._keys = {key: turns for key, turns in self._keys.items() if not turns.is_at_rest(now)}
            self._forget_beyond = min(max(2 * len(self._keys), KEYS_MAX // 2), KEYS_MAX - 1)

    def dump(self, now: float) -> dict[str, Any]:
        """Give the wire form that the next run starts from."""
        return {key: turns.dump() for key, turns in self._keys.items() if not turns.is_at_rest(now)}


def write_requests(requests: Iterable[TurnRequest], ended: Sequence[EndedLease]) -> dict[str, Any]:
    """Give what a process sends: its requests, and the leases that it gives back."""
    return {"asks": [[a.key, list(a.pace), list(a.held), a.fresh] for a in requests], "ended": [list(e) for e in ended]}


def read_requests(wire: Mapping[str, Any]) -> list[TurnRequest]:
    """Read what a process has sent; with anything else than that it raises some kind of error."""
    return [TurnRequest(key, Pace(*pace[: len(Pace._fields)]), held, fresh) for key, pace, held, fresh in wire["asks"]]


def check_requests(wire: Any) -> None:
    """Raise ValueError if `ShardTurns.take` could fail on something that was sent, or take long."""
    try:
        requests = read_requests(wire)
        numbers = [
            *(n for each in requests for n in (*each.pace, *each.held)),
            *(n for e in wire["ended"] for n in e[1:]),
        ]
        keys = [*(each.key for each in requests), *(key for key, _, _, _ in wire["ended"])]
        counts = [n for each in requests for n in (each.fresh, each.pace.at_once)]
        counts += [passed_on for _, _, _, passed_on in wire["ended"]]
        is_right = all(is_number(n) and abs(n) <= NUMBER_MAX for n in numbers)
        is_right = is_right and all(is_int(count) and 0 <= count <= WAITING_MAX for count in counts)
        # each of them gets an answer of its own, in a task that has ten seconds
        is_right = is_right and sum(each.fresh + len(each.held) for each in requests) <= WAITING_MAX
        is_right = is_right and all(isinstance(key, str) and len(key) <= KEY_MAX_BYTES for key in keys)
    except (TypeError, KeyError, ValueError, IndexError, AttributeError) as exc:
        raise ValueError(f"the request can't be read ({exc}); let worker processes ask") from exc

    if not is_right:
        raise ValueError("the request holds something else than keys and numbers; let worker processes ask")


def _dump_answer(answer: TurnResponse, now: float) -> list[Any]:
    # offsets in milliseconds, rounded up: never early; first to the microsecond, below which floats have no meaning
    slots = [math.ceil(round((slot - now) * 1000, 3)) for slot in answer.slots]
    later = [math.ceil(round((moment - now) * 1000, 3)) for pair in answer.later for moment in pair]
    return [slots, later, answer.lease_until]


def read_answers(wire: Mapping[str, Any]) -> list[TurnResponse]:
    """Read the answers to what `write_requests` gave, in its order."""
    now: float = wire["now"]

    def read(slots: Sequence[int], later: Sequence[int], lease_until: float) -> TurnResponse:
        moments = [now + offset / 1000 for offset in later]
        pairs = list(zip(moments[::2], moments[1::2], strict=True))
        return TurnResponse([now + offset / 1000 for offset in slots], pairs, lease_until)

    return [read(*answer[:3]) for answer in wire["answers"]]
