"""The message workflow: one message as one long-running workflow that sleeps, runs its handler and comes back."""

from collections.abc import Sequence
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from activities.dispatch import DISPATCH
    from activities.server_calls.local_activities import SET_PRIORITY
    from shared.lanes import LANES, prefix_of, task_queue
    from shared.messages.decision import begin, decide, next_wake
    from shared.messages.json_value import find_size_flaw
    from shared.messages.message import PAYLOAD_MAX, SERIAL, HandlerCall, MessageState, Outcome
    from shared.messages.placement import MESSAGE_WORKFLOW
    from shared.messages.signals import Revise, Signal, Stop, Unreadable, moment_of
    from shared.messages.timespan import format_moment
    from shared.temporal.search_attributes import attribute_updates, parked_memo
    from workflows.description import describe_decisions, describe_markdown, describe_status
    from workflows.message_signals import MessageSignals
    from workflows.options import ONCE, SERVER_CALL_RETRY, SERVER_CALL_TIMEOUT, SETTLE_DELAY, handler_timeout
    from workflows.replay.alarm import span_until
    from workflows.replay.cancellation import is_requested, shield_from_cancellation
    from workflows.replay.history_length import SIGNAL_EVENTS, HistoryLength, measure_arguments
    from workflows.replay.missing_key import missing_key_outcome
    from workflows.replay.run_now_queue import asks_at_once
    from workflows.replay.signal_buffer import SignalBuffer, is_serial_run


@workflow.defn(name=MESSAGE_WORKFLOW)
class MessageWorkflow(MessageSignals):
    """Carries one message for its whole life, one run of a few cycles after the other."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        """Take over the state that the starter or the run before handed on; signals may arrive before `run`."""
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
        self._signal_buffer = SignalBuffer(is_serial=is_serial_run(is_started_so=self._is_started_serial))
        self._length = HistoryLength()
        self._cycles = 0
        self._replay_time = workflow.info().workflow_start_time.timestamp()
        self._is_asked = False
        self._asked_moment: float | None = None
        """The moment that the signal named which made the message due when it is."""
        self._payload_max_bytes: int = wire.get(PAYLOAD_MAX, 0)

    @workflow.run
    async def run(self, wire: dict[str, Any]) -> Any:  # noqa: ARG002 — Temporal gives it to __init__ as well
        """Sleep, run, decide; for ever, or until the message is done or stopped."""
        return await shield_from_cancellation(self._live(), self._stop_as_requested)

    async def _live(self) -> dict[str, Any]:
        self._mind_cancellation()
        while True:
            await self._sleep()
            if not self._state.ended:
                await self._run_cycle()
            self._publish()
            if self._state.ended:
                self._tell()
                return self._result()

    def _result(self) -> dict[str, Any]:
        state = self._state
        result = {"state": state.ended, "version": state.version, "result": state.result}
        # a record that comes again after the end is told by them from a newer one
        return result | ({"sources": dict(state.sources)} if state.sources else {})

    async def _sleep(self) -> None:
        """Wait until the message is due, however its due time moves meanwhile, and continue as new where that is due."""
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
            if self._state.priority != self._server_priority:
                await self._match_priority()
                is_settled = False
            wake = next_wake(self._state)
            if wake is not None and (self._is_asked or wake <= self._replay_time):
                return
            self._publish()
            is_settled = await self._wait_while(wake)
            is_woken = True

    async def _wait_while(self, wake: float | None) -> bool:
        """Wait until something changes; says whether this run could end now and lose no signal."""
        lane, priority = self._state.lane, self._state.priority
        self._tell()

        def is_changed() -> bool:
            state = self._state
            is_moved = state.lane != lane or state.priority != priority
            return is_moved or state.ended != "" or next_wake(state) != wake

        self._signal_buffer.release_when_idle(is_changed)
        try:
            await workflow.wait_condition(
                is_changed,
                timeout=None if wake is None else span_until(wake),
                timeout_summary=None if wake is None else f"due {format_moment(wake)}",
            )
        except TimeoutError:
            self._note_replay_time(self._replay_time if wake is None else wake)
            is_settled = not self._signal_buffer.waiting
        else:
            is_settled = not self._signal_buffer.is_serial
        self._mind_cancellation()
        return is_settled

    def _note_replay_time(self, wake: float) -> None:
        """Note that the moment has come to which the message has slept.

        A moment that was past when a signal named it was made the time at which the signal came, which may be another one
        on a replay: what counts then is the moment that the signal holds.
        """
        named = wake if self._asked_moment is None else min(wake, self._asked_moment)
        self._is_asked = self._is_asked or named < wake
        self._replay_time = named

    async def _run_cycle(self) -> None:
        self._state = begin(self._state)
        self._cycles += 1
        self._is_asked = False
        self._asked_moment = None
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
        # an ordinary activity's end is an event of its own, and its time the same on a replay
        replay_time = self._replay_time if is_local else workflow.time()
        self._state = decide(self._state, outcome, max(replay_time, outcome.ended_at))

    async def _call_handler(self) -> Outcome:
        try:
            return Outcome.load(await self._execute(self._call()))
        except FailureError as exc:  # local activities fail with their cause itself, ordinary ones wrap it
            return self._lost(exc)

    async def _execute(self, call: HandlerCall) -> dict[str, Any]:
        lane = LANES[call.lane]
        summary = f"version {call.version}, attempt {call.attempt}"
        if lane.heartbeat_timeout is None:
            return await workflow.execute_local_activity(
                DISPATCH,
                call.dump(),
                result_type=dict[str, Any],
                start_to_close_timeout=handler_timeout(call.lane),
                retry_policy=ONCE,
                summary=summary,
            )
        self._tell()  # beside a local activity nobody is answered
        return await workflow.execute_activity(
            DISPATCH,
            call.dump(),
            result_type=dict[str, Any],
            start_to_close_timeout=handler_timeout(call.lane),
            heartbeat_timeout=lane.heartbeat_timeout,
            retry_policy=ONCE,
            summary=summary,
        )

    def _call(self) -> HandlerCall:
        state = self._state
        return HandlerCall(
            kind=state.kind,
            id=state.id,
            lane=state.lane,
            version=state.version,
            attempt=state.attempt + 1,
            payload=state.payload,
            due_at=state.due_at,
            priority=state.priority,
            tenant=state.tenant,
            correlation_id=state.correlation_id,
            trace=state.trace,
            traced=state.traced,
        )

    def _lost(self, exc: FailureError) -> Outcome:
        """A call that came back without an outcome: its worker died, or it blocked its process."""
        cause = exc.cause if isinstance(exc, ActivityError) else exc
        reason = (
            f"timed out ({cause.type.name.lower()})"
            if isinstance(cause, ActivityTimeout) and cause.type
            else str(cause)
        )
        policy = self._policy
        took = handler_timeout(self._state.lane).total_seconds() if isinstance(exc, ActivityTimeout) else 0.0
        outcome = missing_key_outcome(exc) or Outcome("failed", reason=f"the handler call was lost: {reason}")
        if self._signal_buffer.is_serial:
            outcome = outcome._replace(max_attempts=0)  # the handler's own bound is known to workers alone
        return outcome._replace(
            ended_at=self._replay_time + took,
            cycles_per_run=policy.cycles_per_run,
            index_after=policy.index_after,
        )

    def _publish(self) -> None:
        """Bring the search attributes and the memo up to date with the state."""
        updates = attribute_updates(self._indexed, self._state, self._policy.index_after)
        if updates:
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] — the SDK leaves the type argument open
        memo = parked_memo(self._state)
        if memo is not None and memo != parked_memo(self._indexed):
            workflow.upsert_memo(memo)
        if updates or memo is not None:
            self._indexed = self._state

    def _tell(self) -> None:
        """Say in the Web UI where the message stands; once a rest, because a cold wake does it for each rest of its history."""
        workflow.set_current_details(describe_markdown(self._state))

    async def _match_priority(self) -> None:
        """Give this run the priority that the message has, also when the signal came straight from SDK or Web UI."""
        priority = self._state.priority
        self._signal_buffer.hold()
        await workflow.execute_local_activity(
            SET_PRIORITY, priority, start_to_close_timeout=SERVER_CALL_TIMEOUT, retry_policy=SERVER_CALL_RETRY
        )
        self._server_priority = priority

    async def _settle(self) -> None:
        """Let a moment pass on the server, after which this run may end without losing a signal.

        A signal at the moment of ending makes the server refuse the end and have the task done again. If the task before
        has recorded a local activity's result, that replay would end with it, before the signal is delivered. A timer's
        firing comes in one task with all signals before it, and they come first: so a run ends only after a wait.
        """
        self._signal_buffer.release_when_idle()
        await workflow.sleep(SETTLE_DELAY, summary="settle before the end")
        self._mind_cancellation()

    def _mind_cancellation(self) -> None:
        """Stop where cancellation was requested: a task's signals are heard before all else in it, a request is not by itself."""
        if is_requested():
            self._stop_as_requested()

    def _stop_as_requested(self) -> None:
        """Take a request to cancel for the signal `stop`; again is as good as once."""
        reason = workflow.cancellation_reason()
        self._take(Stop(f"cancellation was requested: {reason}" if reason else "cancellation was requested"))

    def _is_run_full(self) -> bool:
        if self._cycles >= self._policy.cycles_per_run:
            return True
        is_serial = self._signal_buffer.is_serial
        return self._length.is_too_long if is_serial else workflow.info().is_continue_as_new_suggested()

    def _continue(self) -> NoReturn:
        """Continue as new. None of the signals that have come still waits to be heard, so none can be lost."""
        queue = workflow.info().task_queue
        beside = {PAYLOAD_MAX: self._payload_max_bytes, SERIAL: int(self._is_started_serial)}
        workflow.continue_as_new(
            self._state.dump() | {name: value for name, value in beside.items() if value},
            task_queue=task_queue(prefix_of(queue), self._state.lane),
            memo=parked_memo(self._state),  # else the server would go on with the memo this run was started with
        )

    def count_input(self, arguments: Sequence[Any]) -> None:
        """Count what a signal adds to the history, as soon as it is heard."""
        if self._signal_buffer.is_serial:
            size = measure_arguments(arguments)
            self._signal_buffer.hear(lambda: self._length.add(SIGNAL_EVENTS, size), is_signal=False)

    def _take(self, signal: Signal | Unreadable) -> None:
        self._signal_buffer.hear(lambda: self._apply(signal))

    def _apply(self, signal: Signal | Unreadable) -> None:
        if isinstance(signal, Revise) and (flaw := find_size_flaw(signal.payload, self._payload_max_bytes)):
            signal = Unreadable(Revise.__name__, f"the payload {flaw}")
        before = self._state
        self._state = decide(before, signal, workflow.time())
        is_asked = asks_at_once(signal, before, self._state, self._replay_time)
        if is_asked is not None and not isinstance(signal, Unreadable):
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
