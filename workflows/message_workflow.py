"""The message workflow: one message as one long-running workflow that sleeps, runs its handler and comes back."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from activities.calls.dispatch import DISPATCH
    from activities.server_calls import SET_PRIORITY
    from shared.lanes import LANES, prefix_of, task_queue
    from shared.messages import signals
    from shared.messages.decision import begin, decide, next_wake
    from shared.messages.json_value import find_size_flaw
    from shared.messages.message import PAYLOAD_MAX, SERIAL, HandlerCall, MessageState, Outcome
    from shared.messages.placement import MESSAGE_WORKFLOW
    from shared.messages.signal_reading import read_signal
    from shared.messages.signals import SIGNAL_NAMES, Revise, Signal, Stop, UnreadableSignal, moment_of
    from shared.messages.timespan import format_moment
    from shared.temporal.search_attributes import attribute_updates, parked_memo
    from workflows.description import describe_decisions, describe_markdown, describe_status
    from workflows.options import ONCE, SERVER_CALL, SETTLE_DELAY, handler_timeout
    from workflows.replay.cancellation import is_requested, shield_from_cancellation
    from workflows.replay.history_length import SIGNAL_EVENTS, HistoryLength, measure_arguments
    from workflows.replay.missing_key import missing_key_outcome
    from workflows.replay.movable_timer import span_until
    from workflows.replay.run_now_queue import asks_at_once
    from workflows.replay.signal_buffer import SignalBuffer
    from workflows.replay.signal_handlers import IgnoresUnknownSignals, signal_handler

LONG_PATCH = "continue when long"
_TYPE_NAMES = {name: kind.__name__ for kind, name in SIGNAL_NAMES.items()}


def _takes(kind: type[Signal]) -> Callable[[Any, Signal], None]:
    @signal_handler(partial(read_signal, kind), SIGNAL_NAMES[kind])
    def take(self: "MessageWorkflow", signal: Signal) -> None:
        self.take(signal)

    return cast("Callable[[Any, Signal], None]", take)


@workflow.defn(name=MESSAGE_WORKFLOW)
class MessageWorkflow(IgnoresUnknownSignals):
    """Carries one message for its whole life, in a series of runs of a few cycles each."""

    run_now = _takes(signals.RunNow)
    reschedule = _takes(signals.Reschedule)
    reprioritize = _takes(signals.Reprioritize)
    revise = _takes(signals.Revise)
    pause = _takes(signals.Pause)
    resume = _takes(signals.Resume)
    stop = _takes(signals.Stop)
    pull_forward = _takes(signals.PullForward)

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        """Load the state that the starter or the previous run passed on; signals may arrive before `run`."""
        try:
            self._state = MessageState.load(wire)
        except TypeError as exc:
            raise ApplicationError(
                f"the input is no message state ({exc}); start messages with dormice, not by hand", non_retryable=True
            ) from exc
        self._indexed = self._state
        self._server_priority = workflow.info().priority.priority_key or self._state.priority
        self._policy = Outcome("again")
        self._lane = self._state.lane
        self._is_started_serial = bool(wire.get(SERIAL))
        self._signal_buffer = SignalBuffer(is_started_serial=self._is_started_serial)
        self._length = HistoryLength()
        self._is_history_long = False
        self._cycles = 0
        self._replay_time = workflow.info().workflow_start_time.timestamp()
        self._is_asked = False
        self._asked_moment: float | None = None  # named by the signal that set the present due time
        self._payload_max_bytes: int = wire.get(PAYLOAD_MAX, 0)

    @workflow.run
    async def run(self, wire: dict[str, Any]) -> Any:  # noqa: ARG002 — Temporal gives it to __init__ as well
        """Sleep, run, decide; for ever, or until the message is done or stopped."""
        return await shield_from_cancellation(self._live(), self._stop_as_requested)

    async def _live(self) -> dict[str, Any]:
        self._signal_buffer.begin()
        self._mind_cancellation()
        while True:
            await self._sleep()
            if not self._state.ended:
                await self._run_cycle()
            self._publish()
            if self._state.ended:
                self._update_details()
                break
        state = self._state
        result = {"state": state.phase, "version": state.version, "result": state.result}
        # after the end, these offsets distinguish a redelivered record from a newer one
        return result | ({"sources": dict(state.sources)} if state.sources else {})

    async def _sleep(self) -> None:
        """Wait until the message is due, following changes of its due time; continue as new when needed."""
        is_settled = is_woken = False
        while True:
            is_ended, is_moved = self._state.ended != "", self._state.lane != self._lane
            if is_ended and (is_settled or not self._signal_buffer.is_serial):
                return
            if is_settled and (is_moved or self._is_run_full()):
                self._publish()
                self._continue()
            if is_ended or is_moved or (is_woken and self._is_run_full()):
                await self._settle()
                is_settled = True
                continue
            if (priority := self._state.priority) != self._server_priority:
                # also when the signal came directly from an SDK or the Web UI
                self._signal_buffer.hold()
                activity_id = self._signal_buffer.next_activity_id()
                await workflow.execute_local_activity(SET_PRIORITY, priority, activity_id=activity_id, **SERVER_CALL)
                self._server_priority, is_settled = priority, False
            wake = next_wake(self._state)
            if wake is not None and (self._is_asked or wake <= self._replay_time):
                return
            self._publish()
            is_settled = await self._wait_while(wake)
            is_woken = True

    async def _wait_while(self, wake: float | None) -> bool:
        """Wait until something changes; return whether this run could end now without losing a signal."""
        lane, priority = self._state.lane, self._state.priority
        self._signal_buffer.exclude_older_workers()
        self._update_details()

        def is_changed() -> bool:
            state = self._state
            is_moved = state.lane != lane or state.priority != priority
            return is_moved or state.ended != "" or next_wake(state) != wake or self._is_history_long

        self._signal_buffer.release_when_idle(is_changed)
        try:
            await workflow.wait_condition(
                is_changed,
                timeout=None if wake is None else span_until(wake),
                timeout_summary=None if wake is None else f"due {format_moment(wake)}",
            )
        except TimeoutError:
            slept_until = self._replay_time if wake is None else wake
            # `decide` replaces a moment that is past by its signal's time, which may differ on replay: the named counts
            named = slept_until if self._asked_moment is None else min(slept_until, self._asked_moment)
            self._is_asked = self._is_asked or named < slept_until
            self._replay_time = named
            is_settled = not self._signal_buffer.waiting
        else:
            is_settled = not self._signal_buffer.is_serial
        self._mind_cancellation()
        return is_settled

    async def _run_cycle(self) -> None:
        self._state = begin(self._state)
        self._cycles += 1
        self._is_asked, self._asked_moment = False, None
        is_local = LANES[self._state.lane].heartbeat_timeout is None
        if is_local:
            self._signal_buffer.hold()
        else:
            self._signal_buffer.release_when_idle()
        outcome = await self._call_handler()
        self._policy = outcome
        self._payload_max_bytes = outcome.payload_max_bytes or self._payload_max_bytes
        if is_local and outcome.verdict == "done":
            await self._settle()
        # only an ordinary activity's end is an event of its own, so its time is the same on replay
        replay_time = self._replay_time if is_local else workflow.time()
        self._state = decide(self._state, outcome, max(replay_time, outcome.ended_at))

    async def _call_handler(self) -> Outcome:
        call = HandlerCall.of(self._state, self._state.attempt + 1)
        alike: dict[str, Any] = {
            "result_type": dict[str, Any],
            "start_to_close_timeout": handler_timeout(call.lane),
            "retry_policy": ONCE,
            "summary": f"version {call.version}, attempt {call.attempt}",
            "activity_id": self._signal_buffer.next_activity_id(),
        }
        timeout = LANES[call.lane].heartbeat_timeout
        try:
            if timeout is None:
                return Outcome.load(await workflow.execute_local_activity(DISPATCH, call.dump(), **alike))
            self._update_details()  # not for local activities: no query is answered while one runs
            return Outcome.load(
                await workflow.execute_activity(DISPATCH, call.dump(), heartbeat_timeout=timeout, **alike)
            )
        except FailureError as exc:  # local activities raise the cause itself, ordinary ones wrap it
            return self._lost(exc)

    def _lost(self, exc: FailureError) -> Outcome:
        """Make the outcome of a call that returned none: its worker died, or its handler blocked the process."""
        cause = exc.cause if isinstance(exc, ActivityError) else exc
        timeout = cause.type if isinstance(cause, ActivityTimeout) else None
        reason = f"timed out ({timeout.name.lower()})" if timeout else str(cause)
        took = handler_timeout(self._state.lane).total_seconds() if isinstance(exc, ActivityTimeout) else 0.0
        outcome = missing_key_outcome(exc) or Outcome("failed", reason=f"the handler call was lost: {reason}")
        if self._signal_buffer.is_serial:
            outcome = outcome._replace(max_attempts=0)  # only workers know the handler's own limit of attempts
        return outcome._replace(
            ended_at=self._replay_time + took,
            cycles_per_run=self._policy.cycles_per_run,
            index_after=self._policy.index_after,
        )

    def _publish(self) -> None:
        updates = attribute_updates(self._indexed, self._state, self._policy.index_after)
        if updates:
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] — the SDK leaves the type argument open
        memo = parked_memo(self._state)
        if memo is not None and memo != parked_memo(self._indexed):
            workflow.upsert_memo(memo)
        if updates or memo is not None:
            self._indexed = self._state

    def _update_details(self) -> None:
        """Update the Web UI's details, only once per sleep: a cold wake repeats it for each sleep in the history."""
        workflow.set_current_details(describe_markdown(self._state))

    async def _settle(self) -> None:
        """Wait on a short timer, after which this run may end without losing a signal.

        If a signal arrives while a run ends, the server rejects the end and repeats the task. If the previous task has
        recorded a local activity's result, the repeated task would end the run right after that result, before the
        signal. A fired timer comes in one task with all earlier signals, and those come first.
        """
        self._signal_buffer.exclude_older_workers()
        self._signal_buffer.release_when_idle()
        await workflow.sleep(SETTLE_DELAY, summary="settle before the end")
        self._mind_cancellation()

    def _mind_cancellation(self) -> None:
        """Stop if cancellation was requested: unlike signals, a request is not handled first in its workflow task."""
        if is_requested():
            self._stop_as_requested()

    def _stop_as_requested(self) -> None:
        """Treat a request to cancel as the signal `stop`; repeated requests change nothing."""
        reason = workflow.cancellation_reason()
        self.take(Stop(f"cancellation was requested: {reason}" if reason else "cancellation was requested"))

    def _is_run_full(self) -> bool:
        if self._cycles >= self._policy.cycles_per_run:
            return True
        is_serial = self._signal_buffer.is_serial
        return self._length.is_too_long if is_serial else workflow.info().is_continue_as_new_suggested()

    def _continue(self) -> NoReturn:
        """Continue as new; no received signal still waits to be applied, so none is lost."""
        queue = workflow.info().task_queue
        beside = {PAYLOAD_MAX: self._payload_max_bytes, SERIAL: int(self._is_started_serial)}
        workflow.continue_as_new(
            self._state.dump() | {name: value for name, value in beside.items() if value},
            task_queue=task_queue(prefix_of(queue), self._state.lane),
            memo=parked_memo(self._state),  # otherwise the server keeps the memo that this run started with
        )

    def count_input(self, arguments: Sequence[Any]) -> None:
        """Count what a signal adds to the history, once the buffer releases it."""
        if self._signal_buffer.is_serial:
            size = measure_arguments(arguments)
            self._signal_buffer.hear(lambda: self._count(size), is_signal=False)

    def _count(self, size: int) -> None:
        self._length.add(SIGNAL_EVENTS, size)
        if self._length.is_too_long and not self._is_history_long:
            # signals that change no due time wake nobody, but a server refuses all signals to a run that has 10,000;
            # runs that older code has led beyond this point go on as they began
            self._is_history_long = workflow.patched(LONG_PATCH)

    def take(self, signal: Signal | UnreadableSignal) -> None:
        """Apply a signal once the buffer releases it."""
        self._signal_buffer.hear(lambda: self._apply(signal))

    def ignore_signal(self, name: str, problem: str) -> None:
        """Remember that a signal is ignored, and why."""
        super().ignore_signal(name, problem)
        self.take(UnreadableSignal(_TYPE_NAMES.get(name, name), problem))

    def _apply(self, signal: Signal | UnreadableSignal) -> None:
        if isinstance(signal, Revise) and (flaw := find_size_flaw(signal.payload, self._payload_max_bytes)):
            signal = UnreadableSignal(Revise.__name__, f"the payload {flaw}")
        before = self._state
        # older code takes a moment for past only if the last timer was set for a later one
        replay_time = None if self._signal_buffer.is_serial else self._replay_time
        self._state = decide(before, signal, workflow.time(), replay_time=replay_time)
        is_asked = asks_at_once(signal, before, self._state, self._replay_time)
        if is_asked is not None and not isinstance(signal, UnreadableSignal):
            self._is_asked = is_asked
            self._asked_moment = None if is_asked else moment_of(signal)

    @workflow.query
    def status(self) -> dict[str, Any]:
        """Where the message stands."""
        return describe_status(self._state, self._signal_buffer.waiting)

    @workflow.query
    def explain(self) -> dict[str, Any]:
        """Why the message is due when it is: one sentence and the last decisions."""
        return describe_decisions(self._state)
