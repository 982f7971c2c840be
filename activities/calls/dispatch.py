"""The one activity that runs handlers: finds the handler, limits its time, and turns every result into an Outcome."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from temporalio import activity

from activities.admission.gates import Gates, wait_at
from activities.admission.limits import Limits
from activities.api.context import CallContext, Context, build_context, no_heartbeat
from activities.api.handler import Handler, HandlerFunction
from activities.api.limit import Limit
from activities.api.outcome import Done, Message, RetryAfter, build_message, to_outcome
from activities.api.payload import InvalidPayload
from activities.api.resources import Resources
from activities.calls.deadlines import Deadlines
from activities.calls.heartbeats import beating
from activities.calls.hooks import call_hook, describe_error
from activities.registry import Registry
from activities.reporting import FAILURES, OutcomeEvents, begin_cycle, end_cycle, is_parking, record_cycle
from shared.errors import InvalidOutcome
from shared.keepers.gates import GateClosure
from shared.keepers.limits import grace_of
from shared.lanes import LANES
from shared.messages.decision import Spread
from shared.messages.message import HandlerCall, Outcome, clip_reason
from shared.messages.timespan import ceil_ms, format_moment
from shared.settings import Settings
from shared.telemetry.logs import ABOUT
from shared.telemetry.metrics import AT_WORK, PARKED
from shared.telemetry.sdk import Telemetry
from shared.telemetry.spans import NO_SPAN

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

DISPATCH = "run_handler"
NO_HANDLER_DELAY = timedelta(minutes=1)  # the deployment's fault, not the message's: it waits and is not parked


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Holds what the handlers of one process share; its `run_handler` is registered with every worker."""

    registry: Registry
    settings: Settings
    get_session: Callable[[], "aiohttp.ClientSession"]  # of `ctx.http`
    gates: Gates
    limits: Limits
    telemetry: Telemetry
    calls: Counter[str] = field(default_factory=Counter[str])  # calls of handlers that have ended, by lane
    events: OutcomeEvents | None = None  # where outcome events are sent; None without an outcomes topic
    resources: Resources = field(default_factory=Resources)
    clock: Callable[[], float] = time.time  # the present moment, in seconds since the epoch; a test's may be virtual

    @activity.defn(name=DISPATCH)
    async def run_handler(self, wire: dict[str, Any]) -> dict[str, Any]:
        """Run one cycle and give the wire form of its outcome.

        Never raises for what a handler does: exceptions, timeouts and impossible outcomes become outcomes. The workflow
        itself has to notice only two cases: the loss of this process, and the lane's own timeout when a handler blocks
        the event loop.
        """
        call = HandlerCall.load(wire)
        with beating(LANES[call.lane].heartbeat_timeout):
            outcome = await self.refuse_exhausted(call, call.attempt - 1)
            if outcome is None:
                deadlines = self.make_deadlines(call.kind, call.lane)
                outcome = await self.run(call, activity.heartbeat, deadlines)

        settings = self.settings
        stamped = outcome._replace(
            cycles_per_run=settings.cycles_per_run,
            index_after=settings.index_after.total_seconds(),
            payload_max_bytes=settings.payload_max_bytes,
            ended_at=outcome.ended_at or stamp_end(self.clock),
        )
        return stamped.dump()

    async def refuse_exhausted(self, call: HandlerCall, attempts: int, spread: Spread | None = None) -> Outcome | None:
        """Give the outcome of a message whose attempts are used up, all lost with their workers; None for others."""
        found = self.registry.get(call.kind)
        if found is None or attempts < found.max_attempts:
            return None

        lost = f"its {attempts} calls before were lost with their workers, or blocked them"
        around = CallContext(call._replace(attempt=attempts), no_heartbeat, NO_SPAN)

        now = self.clock()
        if call.is_over(now):
            outcome = expire(call, lost)
        else:  # a further `failed` would report an attempt that nobody made
            outcome = Outcome("reject", f"attempt {attempts} of {found.max_attempts}: {lost}")
            self.telemetry.record(PARKED, 1, {"kind": call.kind, "lane": call.lane})

        _log(around, outcome, now, self.clock)
        return await self._publish(around, outcome, now, spread)

    async def find_wait(self, kind: str, lane: str, tenant: str = "") -> Outcome | None:
        """Give the outcome of messages of a kind on a lane while a gate of theirs that nobody declares is closed."""
        if (now := self.clock()) >= self.gates.fresh_until:
            await self.gates.keep_fresh(now)
        return self.gates.find_wait(kind, lane, tenant) if self.gates.implicit else None

    def make_deadlines(self, kind: str, lane: str) -> Deadlines:
        """Make the limit of time for calls of one kind on one lane; without a handler for the kind it is never used."""
        found = self.registry.get(kind)
        seconds = 0.0 if found is None else found.timeout_on(lane).total_seconds()
        return Deadlines(seconds)

    async def run(
        self, call: HandlerCall, beat: Callable[[], None], deadlines: Deadlines, spread: Spread | None = None
    ) -> Outcome:
        """Call the handler of one message and give its outcome; `beat` is what `ctx.heartbeat()` calls.

        `spread` is what the decision will use for the due time, so that the outcome event has the same one.
        """
        started_at = self.clock()
        around = CallContext(call, beat, begin_cycle(self.telemetry, call, started_at))
        ABOUT.set(around)  # for good: each call has a task of its own
        begin = self._measure if self.telemetry.is_on else self._begin

        outcome = await begin(around, deadlines, started_at)
        if outcome.verdict in ("handed_back", "gated"):
            return outcome

        self.calls[call.lane] += 1
        if self.events is not None or outcome.verdict in FAILURES:
            outcome = await self._publish(around, outcome, started_at, spread)

        _log(around, outcome, started_at, self.clock)
        return outcome

    async def _publish(
        self, around: CallContext, outcome: Outcome, started_at: float, spread: Spread | None
    ) -> Outcome:
        """Publish an outcome before the workflow learns of it, so that a lost worker publishes it twice, not never.

        The event and the hook go out side by side, because Temporal leaves little time after a handler's own.
        """
        announcements: list[Coroutine[Any, Any, None]] = []
        if self.events is not None:
            outcome = outcome._replace(ended_at=stamp_end(self.clock))
            announcements.append(self.events.report(around.call, outcome, started_at, spread))

        found = self.registry.get(around.call.kind)
        if found is not None and found.on_parked is not None and is_parking(around.call, outcome):
            context = partial(build_context, around, started_at, self.settings, self.get_session, self.resources)
            announcements.append(call_hook(found, found.on_parked, around, context, outcome.reason))

        try:
            if announcements:
                await (announcements[0] if len(announcements) == 1 else asyncio.gather(*announcements))
        except asyncio.CancelledError:
            if not activity.is_worker_shutdown():  # then the outcome counts, and its event is held already
                raise

        return outcome

    async def _measure(self, around: CallContext, deadlines: Deadlines, started_at: float) -> Outcome:
        call = around.call
        telemetry = self.telemetry
        of_lane = {"lane": call.lane}
        telemetry.record(AT_WORK, 1, of_lane)

        try:
            outcome = await self._begin(around, deadlines, started_at)
        except asyncio.CancelledError:
            around.span.end({}, "cancelled")
            raise
        finally:
            telemetry.record(AT_WORK, -1, of_lane)

        record_cycle(telemetry, call, outcome, started_at, self.clock())
        # a message that a closed gate sends away has no cycle, and a span that never ends is not exported
        return outcome if outcome.verdict == "gated" else end_cycle(around.span, outcome)

    def _begin(self, around: CallContext, deadlines: Deadlines, started_at: float) -> Coroutine[Any, Any, Outcome]:
        """Give the coroutine that runs a call; it is no coroutine itself, because every call pays for each of them."""
        call = around.call
        found = self.registry.get(call.kind)
        if found is None:
            return _put_off_unknown(call.kind)
        run = self._run_aging if found.keeps_age or call.expires_at else self._try
        return run(found, around, deadlines, started_at)

    async def _run_aging(self, found: Handler, around: CallContext, deadlines: Deadlines, started_at: float) -> Outcome:
        """Run a call of a message that may expire, or whose handler keeps its age: not the common one."""
        call = around.call
        begun_at = 0.0
        if found.keeps_age and not call.started_at:
            begun_at = round(min(call.due_at, started_at), 3)
            around = around._replace(call=call._replace(started_at=begun_at))
        if call.is_over(self.clock()):
            return await self._run_expiry(found, around, deadlines, started_at)

        outcome = await self._try(found, around, deadlines, started_at)
        return outcome._replace(started_at=begun_at) if begun_at and outcome.verdict != "gated" else outcome

    async def _run_expiry(
        self, found: Handler, around: CallContext, deadlines: Deadlines, started_at: float
    ) -> Outcome:
        """End a message whose time is over, after its `on_expiry`, if that does not fail in every attempt."""
        call = around.call
        on_expiry = found.on_expiry
        if on_expiry is None:
            return expire(call)

        async def function(message: Message, ctx: Context) -> Done:
            await on_expiry(message, ctx)
            return Done()

        expiring = replace(found, function=function, gate=None, limit=None)
        outcome = await self._try(expiring, around, deadlines, started_at, passes_gates=True)
        if outcome.verdict == "handed_back":
            return outcome
        if outcome.verdict == "done":
            return expire(call)
        return expire(call, outcome.reason) if call.attempt >= found.max_attempts else fail(found, outcome.reason)

    async def _try(
        self,
        found: Handler,
        around: CallContext,
        deadlines: Deadlines,
        started_at: float,
        *,
        passes_gates: bool = False,
    ) -> Outcome:
        call = around.call
        gates = self.gates
        try:
            # nearly every call finds all gates open, and known to be
            if (gates.implicit or started_at >= gates.fresh_until) and not passes_gates:
                wait = await self.find_wait(call.kind, call.lane, call.tenant)
                if wait is not None:
                    return wait

            message = build_message(call, found.payload)
            gate = found.gate and found.gate_of(message)
            if gate and (closing := await gates.find_closing(gate)):
                return wait_at(gate, closing, self.clock())

            function = found.function
            if found.limit is not None:
                function = await self._take_turn(found, found.limit, message, call)
                if isinstance(function, Outcome):
                    return function

            context = build_context(around, started_at, self.settings, self.get_session, self.resources)
            with around.span.around(), deadlines.begin():
                returned = await function(message, context)

            if (task := asyncio.current_task()) is not None and task.cancelling():
                await _let_cancel_pass()

            # a worker's clock may be behind the server's, which has woken the message
            ran_at = max(started_at, call.due_at)
            return to_outcome(returned, self.settings.payload_max_bytes, found.payload, ran_at)
        except BaseException as exc:  # noqa: BLE001 — whatever a handler raises is an outcome
            return await self._end_raised(found, deadlines, exc)

    async def _end_raised(self, found: Handler, deadlines: Deadlines, raised: BaseException) -> Outcome:
        """Give the outcome of a call that raised; an exception of a handler's own may raise when it is read."""
        try:
            return await self._read_raised(found, deadlines, raised)
        except BaseException as exc:  # noqa: BLE001 — as above
            return _fail_call(found, exc)

    async def _read_raised(self, found: Handler, deadlines: Deadlines, raised: BaseException) -> Outcome:
        if isinstance(raised, InvalidOutcome | InvalidPayload):
            return Outcome("reject", clip_reason(str(raised)))
        if isinstance(raised, RetryAfter):
            if raised.gate:
                closure = GateClosure.lasting(raised.gate_delay, str(raised), self.clock())
                await self.gates.close(raised.gate, closure)
            return Outcome("retry_after", clip_reason(str(raised)), after=raised.delay.total_seconds())
        if isinstance(raised, TimeoutError):
            reason = describe_error(raised) if str(raised) else f"no outcome within {deadlines.seconds:g} s"
            return fail(found, reason)

        raise raised

    async def _take_turn(
        self, found: Handler, limit: Limit, message: Message, call: HandlerCall
    ) -> HandlerFunction | Outcome:
        key = limit.key_of(message)
        if not key:
            return found.function
        pace = limit.pace(found.timeout_on(call.lane), self.settings.http_at_once)
        return await self.limits.admit(
            found.function, key, pace, grace_of(limit.period), call.turn, is_local=limit.is_per_process
        )


async def _put_off_unknown(kind: str) -> Outcome:
    reason = f"no handler for kind {kind!r} is loaded in this worker"
    return Outcome("retry_after", reason, after=NO_HANDLER_DELAY.total_seconds())


def _fail_call(found: Handler, exc: BaseException) -> Outcome:
    """Give the outcome of a call that raised; raises what asks for the end of the activity itself."""
    if isinstance(exc, asyncio.CancelledError):
        if activity.is_worker_shutdown():
            return Outcome("handed_back", "its worker was shutting down")
        if activity.is_cancelled():
            raise exc
        _take_cancel_back()
    return fail(found, describe_error(exc))


def _log(around: CallContext, outcome: Outcome, started_at: float, clock: Callable[[], float]) -> None:
    has_failed = outcome.verdict in FAILURES
    level, message = (logging.WARNING, "cycle failed") if has_failed else (logging.DEBUG, "cycle ended")
    if logger.isEnabledFor(level):
        details = {"outcome": outcome.verdict, "seconds": round(clock() - started_at, 3), "reason": outcome.reason}
        logger.log(level, message, extra={"action": message.replace(" ", "_"), **around.fields, **details})


def fail(found: Handler, reason: str) -> Outcome:
    """Give the outcome of a call that counts as a failed attempt, with what its handler declares."""
    return Outcome(
        "failed",
        reason,
        max_attempts=found.max_attempts,
        backoff=found.backoff.total_seconds(),
        backoff_max=found.backoff_max.total_seconds(),
    )


def expire(call: HandlerCall, problem: str = "") -> Outcome:
    """Give the outcome of a message whose time is over; `problem` is why its `on_expiry` has not succeeded."""
    reason = f"its time was over {format_moment(call.expires_at)}"
    reason += f"; on_expiry failed: {problem}" if problem else ""
    return Outcome("done", clip_reason(reason), is_expired=True)


def stamp_end(clock: Callable[[], float]) -> float:
    """Give the present time, rounded up to the millisecond, as the end of a cycle, from which a delay counts."""
    return ceil_ms(clock()) / 1000


async def _let_cancel_pass() -> None:
    """Take in a cancellation of this task that its handler has not waited for before it returned an outcome."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        _take_cancel_back()


def _take_cancel_back() -> None:
    """Undo a handler's cancellation of its own task; nobody else asked for it."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass
