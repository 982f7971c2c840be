"""The message workflow: one message as one long-running workflow that sleeps, runs its handler and comes back."""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.calls.dispatch import DISPATCH
    from shared.lanes import LANES, prefix_of, task_queue
    from shared.messages import signals
    from shared.messages.decision import begin, decide, next_wake
    from shared.messages.json_value import find_size_flaw
    from shared.messages.message import PAYLOAD_MAX, HandlerCall, MessageState, Outcome
    from shared.messages.placement import MESSAGE_WORKFLOW, unit_hash
    from shared.messages.signal_reading import read_signal
    from shared.messages.signals import SIGNAL_NAMES, VERBS, Revise, Signal, Stop, UnreadableSignal
    from shared.messages.timespan import format_moment
    from shared.temporal.search_attributes import attribute_updates, parked_memo
    from workflows.description import describe_decisions, describe_markdown, describe_status
    from workflows.guards.cancellation import is_requested, shield_from_cancellation
    from workflows.guards.lost_calls import lost_call_outcome
    from workflows.guards.sealed_signals import SEALED, describe_sealed
    from workflows.guards.signal_handlers import IgnoresUnknownSignals, signal_handler
    from workflows.movable_timer import span_until
    from workflows.options import ONCE, handler_timeout
    from workflows.server_priority import ServerPriority


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

        super().__init__(wire.get(SEALED))
        self._indexed = self._state
        self._server_priority = ServerPriority(self._state.priority)
        self._last_outcome = Outcome("again")  # it has the settings of the worker that ran the last cycle
        self._lane = self._state.lane
        self._cycles = 0
        info = workflow.info()
        # messages that were started together would all continue as new in the same minute, again and again
        self._more_cycles = 0.0 if info.continued_run_id else unit_hash(info.workflow_id)
        self._payload_max_bytes: int = wire.get(PAYLOAD_MAX, 0)

    @workflow.run
    async def run(self, wire: dict[str, Any]) -> Any:  # noqa: ARG002 — Temporal gives it to __init__ as well
        """Sleep, run, decide; for ever, or until the message is done or stopped."""
        return await shield_from_cancellation(self._live(), self._stop_as_requested)

    async def _live(self) -> dict[str, Any]:
        self.open_sealed_signals()
        if is_requested():  # before the first task, so nobody was there to hear it
            self._stop_as_requested()

        while True:
            await self._sleep()
            if self._state.ended:
                return self._end()
            if self._is_run_over():
                self._continue_as_new()

            await self._run_cycle()

    async def _sleep(self) -> None:
        """Wait until the message is due, following each change of its due time, or until it or this run is over."""
        while not (self._state.ended or self._is_run_over()):
            self._server_priority.follow(self._state.priority)
            wake = next_wake(self._state)
            if wake is not None and wake <= workflow.time():
                if self._state.phase != self._indexed.phase:  # it is parked no more, however long its handler takes
                    self._publish()
                return

            self._publish()
            self._update_details()
            await self._wait_for_change(wake)

    async def _wait_for_change(self, wake: float | None) -> None:
        """Wait until `wake`, or until a signal changes what this run waits for."""
        priority = self._state.priority

        def is_changed() -> bool:
            state = self._state
            is_moved = state.priority != priority or next_wake(state) != wake
            return is_moved or state.ended != "" or self._is_run_over()

        timeout = None if wake is None else span_until(wake)
        summary = None if wake is None else f"due {format_moment(wake)}"
        try:
            await workflow.wait_condition(is_changed, timeout=timeout, timeout_summary=summary)
        except TimeoutError:
            return  # it is due

    async def _run_cycle(self) -> None:
        self._state = begin(self._state)
        self._cycles += 1
        self._update_details()

        outcome = await self._call_handler()

        self._last_outcome = outcome
        self._payload_max_bytes = outcome.payload_max_bytes or self._payload_max_bytes
        # a worker's clock may be ahead of the server's, and a delay counts from the end of the call
        self._state = decide(self._state, outcome, max(workflow.time(), outcome.ended_at))

    async def _call_handler(self) -> Outcome:
        call = HandlerCall.of(self._state, self._state.attempt + 1)
        try:
            wire = await workflow.execute_activity(
                DISPATCH,
                call.dump(),
                result_type=dict[str, Any],
                start_to_close_timeout=handler_timeout(call.lane),
                heartbeat_timeout=LANES[call.lane].heartbeat_timeout,
                retry_policy=ONCE,
                summary=f"version {call.version}, attempt {call.attempt}",
            )
        except ActivityError as exc:
            last = self._last_outcome
            lost = lost_call_outcome(exc)
            return lost._replace(cycles_per_run=last.cycles_per_run, index_after=last.index_after)

        return Outcome.load(wire)

    def _end(self) -> dict[str, Any]:
        self._publish()
        self._update_details()
        state = self._state
        result = {"state": state.phase, "version": state.version, "result": state.result}
        if state.sources:  # after the end, they distinguish a redelivered record from a newer one
            result["sources"] = dict(state.sources)
        return result

    def _is_run_over(self) -> bool:
        """Return whether to go on in another run: on another lane's queue, or because this history is long enough."""
        cycles_max = self._last_outcome.cycles_per_run
        is_full = self._cycles >= cycles_max + int(self._more_cycles * cycles_max)
        return is_full or self._state.lane != self._lane or workflow.info().is_continue_as_new_suggested()

    def _continue_as_new(self) -> NoReturn:
        """Go on in a new run; a signal that comes meanwhile makes the server repeat the task, so none is lost."""
        self._publish()
        state = self._state
        wire = state.dump()
        if self._payload_max_bytes:
            wire[PAYLOAD_MAX] = self._payload_max_bytes
        if self.sealed:
            wire[SEALED] = self.dump_sealed()

        workflow.continue_as_new(
            wire,
            task_queue=task_queue(prefix_of(workflow.info().task_queue), state.lane),
            memo=parked_memo(state),  # otherwise the server keeps the memo that this run started with
        )

    def _publish(self) -> None:
        """Write what changed into the index and the memo, where readers find it without a worker."""
        updates = attribute_updates(self._indexed, self._state, self._last_outcome.index_after)
        if updates:
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] — the SDK leaves the type argument open
        memo = parked_memo(self._state)
        if memo is not None and memo != parked_memo(self._indexed):
            workflow.upsert_memo(memo)
        if updates or memo is not None:
            self._indexed = self._state

    def _update_details(self) -> None:
        workflow.set_current_details(describe_markdown(self._state))

    def _stop_as_requested(self) -> None:
        """Treat a request to cancel as the signal `stop`; repeated requests change nothing."""
        why = workflow.cancellation_reason()
        reason = f"cancellation was requested: {why}" if why else "cancellation was requested"
        self.take(Stop(reason))

    def take(self, signal: Signal | UnreadableSignal) -> None:
        """Apply a signal to the message."""
        if isinstance(signal, Revise) and (flaw := find_size_flaw(signal.payload, self._payload_max_bytes)):
            signal = UnreadableSignal(Revise.__name__, f"the payload {flaw}")
        self._state = decide(self._state, signal, workflow.time())

    def ignore_signal(self, name: str, problem: str) -> None:
        """Remember that a signal is ignored, and why."""
        super().ignore_signal(name, problem)
        named = VERBS[name].__name__ if name in VERBS else name
        self.take(UnreadableSignal(named, problem))

    @workflow.query
    def status(self) -> dict[str, Any]:
        """Where the message stands."""
        return describe_status(self._state, describe_sealed(self.sealed))

    @workflow.query
    def explain(self) -> dict[str, Any]:
        """Why the message is due when it is: one sentence and the last decisions."""
        return describe_decisions(self._state)
