"""Limits as workers see them: calls ask for their turns together, a few times a second, and wait if there is none."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from shared.keepers import limits
from shared.keepers.limits import Pace, TurnRequest, TurnResponse
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
    lease_until: float


class _Later(NamedTuple):
    position: float
    look_at: float


class _Want:
    """A call that waits for an answer, and its position in line: infinite, if it holds none."""

    __slots__ = ("answer", "position")

    def __init__(self, position: float) -> None:
        self.position = position
        self.answer = asyncio.get_running_loop().create_future()


class _Shard:
    """Asks one of the workflows that keep turns, for all calls of this process, one request at a time."""

    def __init__(self, workflow_id: str, task_queue: str) -> None:
        self._id = workflow_id
        self._task_queue = task_queue
        self._wants: dict[tuple[str, Pace], list[_Want]] = {}
        self._ended: list[tuple[str, float, float]] = []
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

    def end_call(self, key: str, lease_until: float, seconds: float) -> None:
        """Give a lease back with the next request."""
        self._ended.append((key, lease_until, seconds))
        del self._ended[:-ENDED_MAX]
        if asyncio.get_running_loop().time() >= self._closed_until:
            self._begin_sending()

    @property
    def again_seconds(self) -> float:
        """In how many seconds a message asks again that got no answer."""
        return min(AGAIN_LEAST * 2.0 ** min(max(self._failures - 1, 0), 10), AGAIN_MAX)

    def _begin_sending(self) -> None:
        if self.sending is None or self.sending.done():
            self.sending = asyncio.create_task(self._send_requests(activity.client()))

    async def _send_requests(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        while self._wants or self._ended:
            await asyncio.sleep(max(COLLECT_SECONDS, self._sent_at + EVERY_SECONDS - loop.time()))
            wants, self._wants = self._wants, {}
            ended, self._ended = self._ended, []
            self._sent_at = loop.time()
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    answers = await self._request(client, wants, ended)
                for (key, _), asked, answer in zip(wants, wants.values(), answers, strict=True):
                    self._hand_out(key, asked, answer)
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
        self, client: Client, wants: Mapping[tuple[str, Pace], list[_Want]], ended: Sequence[tuple[str, float, float]]
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

    def _hand_out(self, key: str, waiting: Sequence[_Want], answer: TurnResponse) -> None:
        places = [
            *(_Granted(slot, answer.lease_until) for slot in answer.slots),
            *(_Later(*pair) for pair in answer.later),
        ]
        for want, place in zip(waiting, places, strict=True):
            if not want.answer.done():
                want.answer.set_result(place)
            elif isinstance(place, _Granted) and place.lease_until:  # its call was cancelled, or waits no longer
                self._ended.append((key, place.lease_until, 0.0))


class Limits:
    """Who may call now, shared by all handlers of one process. The methods work only in activities."""

    def __init__(self, prefix: str) -> None:
        queue = limits.limits_queue(prefix)
        self._shards = [_Shard(limits.limits_workflow_id(prefix, n), queue) for n in range(limits.SHARDS)]

    async def admit(
        self, function: Function, key: str, pace: Pace, grace: float, held: Sequence[Any]
    ) -> Function | Outcome:
        """Give the function to call if it is a message's turn, else the outcome of one that waits.

        `held` is the turn that the message came with. Without an answer it keeps what it has, and asks again later.
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
        shard = self._shards[limits.shard_of(digest)]
        try:
            place = await shard.take_turn(digest, pace, math.inf if turn is None else turn.moment)
        except TimeoutError:
            again = shard.again_seconds
            reason = clip_reason(f"waits for its turn at {key}, whose count can't be reached now")
            return Outcome("gated", reason, after=again, tolerance=again / 2)
        if isinstance(place, _Later):
            return _wait_in_line(key, Turn(place.position, is_slot=False, key=digest[:KEY_SHOWN]), place.look_at, pace)
        if place.slot > time.time():
            return _wait(key, Turn(place.slot, is_slot=True, key=digest[:KEY_SHOWN]), place.slot, grace * SLOT_SHARE)
        return _returning(function, shard, digest, place.lease_until) if place.lease_until else function

    async def close(self) -> None:
        """Give back what has ended, if there is an answer soon."""
        sending = [shard.sending for shard in self._shards if shard.sending is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                await asyncio.gather(*sending)


def _returning(function: Any, shard: _Shard, digest: str, lease_until: float) -> Any:
    async def call(*arguments: Any) -> Any:
        begun_at = time.monotonic()
        try:
            return await function(*arguments)
        finally:
            shard.end_call(digest, lease_until, round(time.monotonic() - begun_at + EVERY_SECONDS, 3))

    return call


def _wait_in_line(key: str, turn: Turn, look_at: float, pace: Pace) -> Outcome:
    least = LEASE_LOOK_LEAST if pace.at_once else LOOK_LEAST
    return _wait(key, turn, look_at, min(max(least, (look_at - time.time()) * LOOK_SHARE), LOOK_MOST))


def _wait(key: str, turn: Turn, at: float, tolerance: float) -> Outcome:
    reason = clip_reason(f"waits for its turn at {key}")
    after = max(at - time.time(), 0.0)
    return Outcome(
        "gated", reason, after=after, at=at, tolerance=tolerance, turn=turn._replace(moment=round(turn.moment, 3))
    )
