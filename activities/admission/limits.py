"""Limits as workers see them: calls ask for their turns together, a few times a second, and wait if there is none."""

import asyncio
import contextlib
import functools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from activities.admission.leases import Count, GrantedTurn, LaterTurn, Lease
from activities.admission.local_count import LocalCount
from shared.keepers import limits
from shared.keepers.limits import EndedLease, Pace, TurnRequest, TurnResponse
from shared.messages.message import Outcome, Turn, clip_reason
from shared.temporal.connect import is_missing

COLLECT_SECONDS = 0.02  # a call waits this long for others that ask the same workflow
EVERY_SECONDS = 0.25  # shortest time between two requests to one workflow: at most 32 a second from a process
ASK_SECONDS = 2.5  # longest time that a call waits for an answer; less than what Temporal leaves it beyond its timeout
TASK_TIMEOUT = timedelta(seconds=5)  # after it another worker goes on when one is killed while it counts
# seconds until a message asks again that got no answer; doubled with each failure
AGAIN_MIN = 5.0
AGAIN_MAX = 300.0
ENDED_MAX = 10_000  # ends of calls kept while there is no answer; leases beyond them end by themselves
SLOT_SHARE = 0.6  # part of the grace in which a pack may wait for further slots, so that one wake serves several
# by how much later than asked for a message may ask again
LOOK_SHARE = 0.125
LOOK_MIN = 5.0
LOOK_MAX = 300.0
LEASE_LOOK_MIN = 0.5
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


class _Want:
    """A call that waits for an answer, and its position in line: infinite, if it holds none."""

    __slots__ = ("answer", "position")

    def __init__(self, position: float) -> None:
        self.position = position
        self.answer = asyncio.get_running_loop().create_future()


class _Shard(Count):
    """Asks one of the workflows that keep turns, for all calls of this process, one request at a time."""

    late_seconds = EVERY_SECONDS

    def __init__(self, workflow_id: str, task_queue: str) -> None:
        super().__init__()
        self._leases: Counter[str] = Counter()  # leases that this process holds, by key
        self._id = workflow_id
        self._task_queue = task_queue
        self._wants: dict[tuple[str, Pace], list[_Want]] = {}
        self._ended: list[EndedLease] = []
        self._idle: dict[str, list[Lease]] = {}
        self._sent_at = self._closed_until = -math.inf
        self._failures = 0
        self.sending: asyncio.Task[None] | None = None

    async def take_turn(self, key: str, pace: Pace, position: float) -> GrantedTurn | LaterTurn:
        """Wait for an answer for one call; raises TimeoutError if there is none within `ASK_SECONDS`."""
        if asyncio.get_running_loop().time() < self._closed_until:
            raise TimeoutError
        want = _Want(position)
        self._wants.setdefault((key, pace), []).append(want)
        self._begin_sending()
        async with asyncio.timeout(ASK_SECONDS):
            return await want.answer

    def has_leases(self, key: str) -> bool:
        """Return whether this process holds leases of a key."""
        return key in self._leases

    def take_idle(self, key: str, pace: Pace) -> Lease | None:
        """Take a lease that is about to be given back; None if there is none that lasts for another call."""
        idle = self._idle.get(key, [])
        lease = next((each for each in idle if each.pace == pace and each.is_usable), None)
        if lease is not None:
            idle.remove(lease)
            self._leases[key] += 1
        return lease

    def end_lease(self, key: str, lease: Lease) -> None:
        """Give a lease back with the next request."""
        self._let_go(key)
        self._idle.setdefault(key, []).append(lease)
        if asyncio.get_running_loop().time() >= self._closed_until:
            self._begin_sending()

    def _begin_lease(self, key: str, pace: Pace, until: float) -> Lease | None:
        if not until:
            return None
        self._leases[key] += 1
        return Lease(self, key, pace, until)

    def _let_go(self, key: str) -> None:
        self._leases[key] -= 1
        if not self._leases[key]:
            del self._leases[key]

    @property
    def again_seconds(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride] — it grows with failures
        """In how many seconds a message asks again that got no answer."""
        return min(AGAIN_MIN * 2.0 ** min(max(self._failures - 1, 0), 10), AGAIN_MAX)

    def _begin_sending(self) -> None:
        if self.sending is None or self.sending.done():
            self.sending = asyncio.create_task(self._send_requests(activity.client()))

    async def _send_requests(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        while self._wants or self._ended or self._idle:
            await asyncio.sleep(max(COLLECT_SECONDS, self._sent_at + EVERY_SECONDS - loop.time()))
            wants = self._wants
            self._wants = {}
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

        wire = limits.write_requests(requests, ended)
        patience = timedelta(seconds=ASK_SECONDS)

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
        granted = [GrantedTurn(slot, self._begin_lease(key, pace, answer.lease_until)) for slot in answer.slots]
        places = [*granted, *(LaterTurn(*pair) for pair in answer.later)]
        # those who wait go first, so that they are in line when the first call ends
        for want, place in reversed(list(zip(waiting, places, strict=True))):
            if not want.answer.done():
                want.answer.set_result(place)
            elif isinstance(place, GrantedTurn) and place.lease:  # its call was cancelled, or waits no longer
                place.lease.pass_on()


class Limits:
    """Who may call now, shared by all handlers of one process. The methods work only in activities."""

    def __init__(self, prefix: str) -> None:
        queue = limits.limits_queue(prefix)
        self._shards = [_Shard(limits.limits_workflow_id(prefix, n), queue) for n in range(limits.SHARDS)]
        self._local = LocalCount()

    async def admit(
        self, function: Function, key: str, pace: Pace, grace: float, held: Sequence[Any], *, is_local: bool = False
    ) -> Function | Outcome:
        """Give the function to call if it is a message's turn, else the outcome of one that waits.

        `held` is the turn that the message came with. Without an answer it keeps what it has, and asks again later.
        `is_local` counts the calls of this process alone.
        """
        turn = Turn.load(held) if held else None
        if turn is not None and turn.key != _show_key(key):
            turn = None  # of another key

        if turn is not None and turn.is_slot and not pace.at_once:
            now = time.time()
            if now < turn.moment:  # somebody has asked for it sooner
                return _wait(key, turn, turn.moment, grace * SLOT_SHARE)
            if now <= turn.moment + grace:
                return function

        count, counted = self._find_count(key, is_local=is_local)
        lease = count.take_idle(counted, pace)
        if lease is not None:
            return _with(lease, function)

        try:
            since = math.inf if turn is None else turn.moment
            place = await count.take_turn(counted, pace, since)
        except TimeoutError:
            return _wait_for_answer(key, count.again_seconds)

        if isinstance(place, GrantedTurn):
            return _begin(place, function, key, grace)
        lease = await count.await_lease(counted, pace)
        return _wait_in_line(key, place, pace) if lease is None else _with(lease, function)

    def _find_count(self, key: str, *, is_local: bool) -> tuple[Count, str]:
        """Give who counts the calls of a key, and the key's name there."""
        if is_local:
            return self._local, key
        digest = limits.digest_key(key)
        return self._shards[limits.shard_of(digest)], digest

    async def close(self) -> None:
        """Give back what has ended, if there is an answer soon."""
        sending = [shard.sending for shard in self._shards if shard.sending is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                await asyncio.gather(*sending)


def _show_key(key: str) -> str:
    return limits.digest_key(key)[:KEY_SHOWN]


def _with(lease: Lease, function: Function) -> Function:
    return cast("Function", functools.partial(lease.call, function))


def _begin(place: GrantedTurn, function: Function, key: str, grace: float) -> Function | Outcome:
    if place.lease is not None:
        return _with(place.lease, function)
    if place.slot > time.time():
        turn = Turn(place.slot, is_slot=True, key=_show_key(key))
        return _wait(key, turn, place.slot, grace * SLOT_SHARE)
    return function


def _wait_for_answer(key: str, again_seconds: float) -> Outcome:
    reason = clip_reason(f"waits for its turn at {key}, whose count can't be reached now")
    return Outcome("gated", reason, after=again_seconds, tolerance=again_seconds / 2)


def _wait_in_line(key: str, place: LaterTurn, pace: Pace) -> Outcome:
    turn = Turn(place.position, is_slot=False, key=_show_key(key))
    minimum = LEASE_LOOK_MIN if pace.at_once else LOOK_MIN
    tolerance = min(max(minimum, (place.look_at - time.time()) * LOOK_SHARE), LOOK_MAX)
    return _wait(key, turn, place.look_at, tolerance)


def _wait(key: str, turn: Turn, at: float, tolerance: float) -> Outcome:
    reason = clip_reason(f"waits for its turn at {key}")
    after = max(at - time.time(), 0.0)
    return Outcome(
        "gated", reason, after=after, at=at, tolerance=tolerance, turn=turn._replace(moment=round(turn.moment, 3))
    )
