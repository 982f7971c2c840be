"""Limits as workers see them: calls ask for their turns together, a few times a second, and wait if there is none."""

import asyncio
import contextlib
import functools
import math
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from shared.keepers import limits
from shared.keepers.limits import EndedLease, Pace, ShardTurns, TurnRequest, TurnResponse
from shared.messages.message import Outcome, Turn, clip_reason
from shared.temporal.connect import is_missing

COLLECT_SECONDS = 0.02  # a call waits this long for others that ask the same workflow
EVERY_SECONDS = 0.25  # shortest time between two requests to one workflow: at most 32 a second from a process
ASK_SECONDS = 2.5  # longest time that a call waits for an answer; less than what Temporal leaves it beyond its timeout
TASK_TIMEOUT = timedelta(seconds=5)  # after it another worker goes on when one is killed while it counts
AGAIN_LEAST, AGAIN_MAX = 5.0, 300.0  # seconds until a message asks again that got no answer; doubled with each failure
ENDED_MAX = 10_000  # ends of calls kept while there is no answer; leases beyond them end by themselves
SLOT_SHARE = 0.6  # part of the grace in which a pack may wait for further slots, so that one wake serves several
LOOK_SHARE, LOOK_LEAST, LOOK_MOST = 0.125, 5.0, 300.0  # by how much later than asked for a message may ask again
LEASE_LOOK_LEAST = 0.5
PASS_ON_SECONDS = 1.0  # how long a call waits in this process for a lease that another call passes on
CLOCK_SECONDS = 3.0  # by how much this machine's clock may differ from the server's
KEY_SHOWN = 8  # characters of a key's digest by which a message knows its turn again

Unanswered = (
    RPCError,
    TimeoutError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    LookupError,
    TypeError,
    ValueError,
)
"""Raised where there is no answer; the last three for one that can't be read, such as one that is encrypted."""

Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])


class _Granted(NamedTuple):
    slot: float
    lease: "_Lease | None"  # None: the limit counts no calls at work


class _Later(NamedTuple):
    position: float
    look_at: float


class _Lease:
    """The right to one of the calls that may be at work; the next call of its key here may go on with it.

    Else each call would wait until the end of another had been told and answered, a quarter of a second or more.
    """

    def __init__(self, count: "_Count", key: str, pace: Pace, until: float) -> None:
        self._count = count
        self._key = key
        self.pace = pace
        self._until = until
        self._usable_until = until - (pace.lease - limits.LEASE_MARGIN_SECONDS) - CLOCK_SECONDS
        self._is_counted_alone = not pace.interval
        self._begun_at = time.monotonic()
        self._calls = 0
        self._passed_on = 0  # to calls that waited

    async def call(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Call a handler, then pass this on, or give it back."""
        try:
            return await function(*arguments)
        finally:
            self._calls += 1
            self.pass_on()

    def pass_on(self) -> None:
        """Let the next call of the key begin; without one, give this back with the next request."""
        if self.is_usable and self._count.wake_next(self._key, self.pace, self):
            self._passed_on += 1
        else:
            self._count.end_lease(self._key, self)

    @property
    def is_usable(self) -> bool:
        """Whether only calls at work are counted, and this lasts for another one."""
        return self._is_counted_alone and time.time() <= self._usable_until

    def to_end(self) -> EndedLease:
        """Give what the workflow is told when it gets this back."""
        seconds = (time.monotonic() - self._begun_at + self._count.late_seconds) / max(self._calls, 1)
        return EndedLease(self._key, self._until, round(seconds, 3), self._passed_on)


class _Want:
    """A call that waits for an answer, and its position in line: infinite, if it holds none."""

    __slots__ = ("answer", "position")

    def __init__(self, position: float) -> None:
        self.position = position
        self.answer = asyncio.get_running_loop().create_future()


class _Count(ABC):
    """Who may call: gives turns to the calls of this process, and passes leases on among them."""

    again_seconds = 0.0
    """In how many seconds a message asks again that got no answer."""

    late_seconds = 0.0
    """How long it takes until a lease that is given back is free for another."""

    def __init__(self) -> None:
        self._leases: Counter[str] = Counter()  # leases that this process holds, by key
        # a lease goes on to calls of the same pace only: others may be fewer at once, or take longer
        self._in_line: dict[tuple[str, Pace], deque[asyncio.Future[_Lease]]] = {}

    @abstractmethod
    async def take_turn(self, key: str, pace: Pace, position: float) -> _Granted | _Later:
        """Give a call its turn or a place in line; raises TimeoutError if nobody can tell."""

    @abstractmethod
    def take_idle(self, key: str, pace: Pace) -> _Lease | None:
        """Take a lease that is about to be given back; None if there is none that lasts for another call."""

    @abstractmethod
    def end_lease(self, key: str, lease: _Lease) -> None:
        """Take a lease back that no call of this process goes on with."""

    def find_room(self, key: str) -> float:  # noqa: ARG002 — the shape of a count
        """Give how many calls of a key may wait in this process for a lease that is passed on."""
        return math.inf

    async def await_lease(self, key: str, pace: Pace) -> _Lease | None:
        """Wait a little for a lease that a call of this process passes on; None if it holds none, or passes none on."""
        line = self._in_line.get((key, pace), ())
        if key not in self._leases or len(line) >= self.find_room(key):
            return None
        turn: asyncio.Future[_Lease] = asyncio.get_running_loop().create_future()
        line = self._in_line.setdefault((key, pace), deque())
        line.append(turn)
        try:
            async with asyncio.timeout(PASS_ON_SECONDS):
                return await asyncio.shield(turn)
        except TimeoutError:
            return turn.result() if turn.done() else None
        except asyncio.CancelledError:
            if turn.done():
                turn.result().pass_on()
            raise
        finally:
            turn.cancel()  # so that nothing is passed on to nobody
            with contextlib.suppress(ValueError):  # it had its turn
                line.remove(turn)
            if not line and self._in_line.get((key, pace)) is line:
                del self._in_line[key, pace]

    def wake_next(self, key: str, pace: Pace, lease: _Lease) -> bool:
        """Pass a lease on to the call that has waited for longest; return whether there was one."""
        line = self._in_line.get((key, pace), deque())
        while line:
            turn = line.popleft()
            if not turn.done():
                turn.set_result(lease)
                return True
        self._in_line.pop((key, pace), None)
        return False

    def _begin_lease(self, key: str, pace: Pace, until: float) -> _Lease | None:
        if not until:
            return None
        self._leases[key] += 1
        return _Lease(self, key, pace, until)

    def _let_go(self, key: str) -> None:
        self._leases[key] -= 1
        if not self._leases[key]:
            del self._leases[key]


class _LocalCount(_Count):
    """Counts the calls of this process alone, in its memory."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = ShardTurns({})
        self._moved_at: dict[str, float] = {}  # when a call of a key has last begun or ended, by the monotonic clock

    async def take_turn(self, key: str, pace: Pace, position: float) -> _Granted | _Later:
        """Answer at once."""
        now, is_new = time.time(), math.isinf(position)
        self._turns.forget_rested(now)
        request = TurnRequest(key, pace, [] if is_new else [position], int(is_new))
        answer = self._turns.answer(request, now)
        if answer.slots:
            self._moved_at[key] = time.monotonic()
            return _Granted(answer.slots[0], self._begin_lease(key, pace, answer.lease_until))
        return _Later(*answer.later[0])

    def wake_next(self, key: str, pace: Pace, lease: _Lease) -> bool:
        """Pass a lease on, and note that the key's calls move."""
        self._moved_at[key] = time.monotonic()
        return super().wake_next(key, pace, lease)

    def find_room(self, key: str) -> float:
        """Let wait as many as will have their turn in that time; each holds the place of a call of another key.

        When the key's calls have begun to hang, their usual length says nothing.
        """
        stood_still = time.monotonic() - self._moved_at.get(key, 0.0)
        return PASS_ON_SECONDS * self._leases[key] / max(self._turns.find_hold(key), stood_still)

    def take_idle(self, key: str, pace: Pace) -> _Lease | None:  # noqa: ARG002 — what is given back is free at once
        """Find none: a lease is counted until it is given back, and no longer."""
        return None

    def end_lease(self, key: str, lease: _Lease) -> None:
        """Take it back at once."""
        self._let_go(key)
        self._turns.end_lease(lease.to_end())
        if key not in self._leases:
            self._moved_at.pop(key, None)


class _Shard(_Count):
    """Asks one of the workflows that keep turns, for all calls of this process, one request at a time."""

    late_seconds = EVERY_SECONDS

    def __init__(self, workflow_id: str, task_queue: str) -> None:
        super().__init__()
        self._id = workflow_id
        self._task_queue = task_queue
        self._wants: dict[tuple[str, Pace], list[_Want]] = {}
        self._ended: list[EndedLease] = []
        self._idle: dict[str, list[_Lease]] = {}
        self._sent_at = self._closed_until = -math.inf
        self._failures = 0
        self.sending: asyncio.Task[None] | None = None

    async def take_turn(self, key: str, pace: Pace, position: float) -> _Granted | _Later:
        """Wait for an answer for one call; raises TimeoutError if there is none within `ASK_SECONDS`."""
        if asyncio.get_running_loop().time() < self._closed_until:
            raise TimeoutError
        want = _Want(position)
        self._wants.setdefault((key, pace), []).append(want)
        self._begin_sending()
        async with asyncio.timeout(ASK_SECONDS):
            return await want.answer

    def take_idle(self, key: str, pace: Pace) -> _Lease | None:
        """Take a lease that is about to be given back; None if there is none that lasts for another call."""
        idle = self._idle.get(key, [])
        lease = next((each for each in idle if each.pace == pace and each.is_usable), None)
        if lease is not None:
            idle.remove(lease)
            self._leases[key] += 1
        return lease

    def end_lease(self, key: str, lease: _Lease) -> None:
        """Give a lease back with the next request."""
        self._let_go(key)
        self._idle.setdefault(key, []).append(lease)
        if asyncio.get_running_loop().time() >= self._closed_until:
            self._begin_sending()

    @property
    def again_seconds(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride] — it grows with failures
        """In how many seconds a message asks again that got no answer."""
        return min(AGAIN_LEAST * 2.0 ** min(max(self._failures - 1, 0), 10), AGAIN_MAX)

    def _begin_sending(self) -> None:
        if self.sending is None or self.sending.done():
            self.sending = asyncio.create_task(self._send_requests(activity.client()))

    async def _send_requests(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        while self._wants or self._ended or self._idle:
            await asyncio.sleep(max(COLLECT_SECONDS, self._sent_at + EVERY_SECONDS - loop.time()))
            wants, self._wants = self._wants, {}
            ended = [*self._ended, *(lease.to_end() for idle in self._idle.values() for lease in idle)][-ENDED_MAX:]
            self._ended = []
            self._idle = {}
            self._sent_at = loop.time()
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    answers = await self._request(client, wants, ended)
                for (key, pace), asked, answer in zip(wants, wants.values(), answers, strict=True):
                    self._hand_out(key, pace, asked, answer)
            except Unanswered:
                self._failures += 1
                self._closed_until = loop.time() + min(self.again_seconds, ASK_SECONDS * self._failures)
                self._ended = [*ended, *self._ended][-ENDED_MAX:]
                for want in (want for waiting in (wants, self._wants) for each in waiting.values() for want in each):
                    if not want.answer.done():
                        want.answer.set_exception(TimeoutError())
                self._wants.clear()
                return
            self._failures = 0

    async def _request(
        self, client: Client, wants: Mapping[tuple[str, Pace], list[_Want]], ended: Sequence[EndedLease]
    ) -> list[TurnResponse]:
        requests: list[TurnRequest] = []
        for (key, pace), waiting in wants.items():
            waiting.sort(key=lambda want: want.position)  # answers come in this order
            held = [round(want.position, 3) for want in waiting if math.isfinite(want.position)]
            requests.append(TurnRequest(key, pace, held, len(waiting) - len(held)))
        wire, patience = limits.write_requests(requests, ended), timedelta(seconds=ASK_SECONDS)
        update = cast("Any", client.get_workflow_handle(self._id)).execute_update  # the SDK leaves its types open
        try:
            return limits.read_answers(await update(limits.TAKE, wire, rpc_timeout=patience))
        except RPCError as exc:
            if not is_missing(exc):
                raise
        await client.start_workflow(
            limits.LIMITS_WORKFLOW,
            {},
            id=self._id,
            task_queue=self._task_queue,
            task_timeout=TASK_TIMEOUT,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            rpc_timeout=patience,
        )
        return limits.read_answers(await update(limits.TAKE, wire, rpc_timeout=patience))

    def _hand_out(self, key: str, pace: Pace, waiting: Sequence[_Want], answer: TurnResponse) -> None:
        granted = [_Granted(slot, self._begin_lease(key, pace, answer.lease_until)) for slot in answer.slots]
        places = [*granted, *(_Later(*pair) for pair in answer.later)]
        # those who wait go first, so that they are in line when the first call ends
        for want, place in reversed(list(zip(waiting, places, strict=True))):
            if not want.answer.done():
                want.answer.set_result(place)
            elif isinstance(place, _Granted) and place.lease:  # its call was cancelled, or waits no longer
                place.lease.pass_on()


class Limits:
    """Who may call now, shared by all handlers of one process. The methods work only in activities."""

    def __init__(self, prefix: str) -> None:
        queue = limits.limits_queue(prefix)
        self._shards = [_Shard(limits.limits_workflow_id(prefix, n), queue) for n in range(limits.SHARDS)]
        self._local = _LocalCount()

    async def admit(
        self, function: Function, key: str, pace: Pace, grace: float, held: Sequence[Any], *, is_local: bool = False
    ) -> Function | Outcome:
        """Give the function to call if it is a message's turn, else the outcome of one that waits.

        `held` is the turn that the message came with. Without an answer it keeps what it has, and asks again later.
        `is_local` counts the calls of this process alone.
        """
        digest = limits.digest_key(key)
        turn = Turn.load(held) if held else None
        if turn is not None and turn.key != digest[:KEY_SHOWN]:
            turn = None  # of another key

        if turn is not None and turn.is_slot and not pace.at_once:
            now = time.time()
            if now < turn.moment:  # somebody has asked for it sooner
                return _wait(key, turn, turn.moment, grace * SLOT_SHARE)
            if now <= turn.moment + grace:
                return function

        count = self._local if is_local else self._shards[limits.shard_of(digest)]
        lease = count.take_idle(digest, pace)
        if lease is not None:
            return _with(lease, function)
        try:
            place = await count.take_turn(digest, pace, math.inf if turn is None else turn.moment)
        except TimeoutError:
            return _wait_for_answer(key, count.again_seconds)
        return await self._take_place(function, place, count, key=key, pace=pace, grace=grace)

    async def _take_place(
        self, function: Function, place: _Granted | _Later, count: _Count, *, key: str, pace: Pace, grace: float
    ) -> Function | Outcome:
        """Give the function to call, or the outcome of a message that waits, by what the workflow has answered."""
        digest = limits.digest_key(key)
        if isinstance(place, _Later):
            lease = await count.await_lease(digest, pace)
            if lease is not None:
                return _with(lease, function)
            return _wait_in_line(key, Turn(place.position, is_slot=False, key=digest[:KEY_SHOWN]), place.look_at, pace)

        if place.lease is not None:
            return _with(place.lease, function)
        if place.slot > time.time():
            return _wait(key, Turn(place.slot, is_slot=True, key=digest[:KEY_SHOWN]), place.slot, grace * SLOT_SHARE)
        return function

    async def close(self) -> None:
        """Give back what has ended, if there is an answer soon."""
        sending = [shard.sending for shard in self._shards if shard.sending is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                await asyncio.gather(*sending)


def _with(lease: _Lease, function: Function) -> Function:
    return cast("Function", functools.partial(lease.call, function))


def _wait_for_answer(key: str, again_seconds: float) -> Outcome:
    reason = clip_reason(f"waits for its turn at {key}, whose count can't be reached now")
    return Outcome("gated", reason, after=again_seconds, tolerance=again_seconds / 2)


def _wait_in_line(key: str, turn: Turn, look_at: float, pace: Pace) -> Outcome:
    least = LEASE_LOOK_LEAST if pace.at_once else LOOK_LEAST
    return _wait(key, turn, look_at, min(max(least, (look_at - time.time()) * LOOK_SHARE), LOOK_MOST))


def _wait(key: str, turn: Turn, at: float, tolerance: float) -> Outcome:
    reason = clip_reason(f"waits for its turn at {key}")
    after = max(at - time.time(), 0.0)
    return Outcome(
        "gated", reason, after=after, at=at, tolerance=tolerance, turn=turn._replace(moment=round(turn.moment, 3))
    )
