"""Lives of messages in virtual time: handler, decision, jump to the next wake, with what workers and packs run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from temporalio.testing import ActivityEnvironment

from activities.admission.gates import Gates
from activities.admission.limits import Limits
from activities.api.handler import Handler
from activities.api.outcome import Message
from activities.api.resources import Resources
from activities.calls.dispatch import Dispatch
from activities.registry import Registry
from activities.testing.context import give_or_refuse
from shared.errors import GiveUp, InvalidEnvelope
from shared.messages.decision import begin, decide, next_wake
from shared.messages.json_value import decode_json, encode_json, find_flaw
from shared.messages.message import Decision, HandlerCall, MessageState, Outcome
from shared.messages.placement import PackSpread, pack_index
from shared.messages.signals import Signal
from shared.messages.timespan import format_moment
from shared.settings import Settings
from shared.telemetry.sdk import Telemetry

if TYPE_CHECKING:
    import aiohttp

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""When lives begin if nothing else is said: always the same moment, so that tests are."""

CYCLES_MAX = 10_000


class EndlessLife(GiveUp):
    """A message in a test had more cycles than the test allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One cycle of a life: when its handler was called, with what, what came of it, and what was decided.

    `outcome` is "again", "done", "reject", "failed" or "retry_after"; "gated" where a closed gate sent the message
    away, without a call; "expired" where its time was over. `due_at` is when the message was due, `next_due_at` when it
    is due after the decision: None if it is parked or has ended. `state` is "active", "parked", "done" or "expired".
    """

    at: datetime
    due_at: datetime
    version: int
    attempt: int
    payload: Any
    outcome: str
    reason: str
    state: str
    next_due_at: datetime | None


class Life:
    """A message that lives in virtual time, without a server; `cycles` are those so far, `decisions` all decisions.

    Handlers are called by the code that workers call them by, and what becomes of the message is decided by the code
    that its workflow, or its pack, decides by.
    """

    def __init__(
        self,
        handler: Handler,
        message: Message,
        *,
        begin_at: datetime = BEGIN,
        settings: Settings | None = None,
        http: "aiohttp.ClientSession | None" = None,
        resources: Resources | None = None,
        cycles_max: int = CYCLES_MAX,
    ) -> None:
        """Start a message that is due at `begin_at`; for `http` and `resources` see `make_context`."""
        settings = settings or Settings()
        self._handler = handler
        self._cycles_max = cycles_max
        self._begin = self._now = begin_at.timestamp()
        self._spread = None

        if pack := handler.encoding:
            index = pack_index(message.id, pack.packs)
            self._spread = PackSpread.of(handler.kind, index, pack.coalesce.total_seconds())

        shared = Resources() if resources is None else resources
        self._dispatch = Dispatch(
            Registry([("the test", replace(handler, limit=None))]),  # a message alone stays below every limit
            settings,
            give_or_refuse(http),
            _LoneGates(self._read_clock),
            Limits(""),
            Telemetry(is_on=False),
            resources=shared,
            clock=self._read_clock,
        )
        self._state = _begin_state(handler, message, self._now)
        if handler.expires_after is not None:
            self._state = self._state._replace(expires_at=self._now + handler.expires_after.total_seconds())

        self.decisions: list[Decision] = [*self._state.decisions]
        self.cycles: list[Cycle] = []

    @property
    def now(self) -> datetime:
        """The present moment of this life."""
        return _moment(self._now)

    @property
    def state(self) -> str:
        """Where the message stands: "active", "paused", "parked", "done", "stopped" or "expired"."""
        return self._state.phase

    @property
    def payload(self) -> Any:
        """What the next call gets."""
        return self._state.payload

    @property
    def version(self) -> int:
        """The present version."""
        return self._state.version

    @property
    def result(self) -> Any:
        """The result of `Done`; None before."""
        return self._state.result

    @property
    def parked_reason(self) -> str:
        """Why the message is parked; empty while it is not."""
        return self._state.parked_reason

    @property
    def next_due_at(self) -> datetime | None:
        """When the message is due; None while it is held or after it has ended."""
        return None if (due_at := next_wake(self._state)) is None else _moment(due_at)

    def signal(self, signal: Signal) -> None:
        """Apply a signal of `shared.messages.signals`, as a message applies it that sleeps, is held or has ended."""
        self._decide(signal)

    async def run(self, until: timedelta) -> None:
        """Run all cycles that are due before `until`, counted from the beginning; then it is that moment.

        Raises EndlessLife after more than `cycles_max` cycles.
        """
        end = self._begin + until.total_seconds()
        while (wake := self._find_wake()) is not None and wake <= end:
            if len(self.cycles) >= self._cycles_max:
                raise EndlessLife(
                    f"{self._state.workflow_id}: {self._cycles_max} cycles have ended by {format_moment(self._now)}; "
                    "let its handler wait longer, or give a smaller until or a larger cycles_max"
                )
            self._now = max(self._now, wake)
            await self._run_cycle()
        self._now = max(self._now, end)

    def _find_wake(self) -> float | None:
        """Return when the message runs next: when it is due, or when its pack would wake for it alone."""
        if (due_at := next_wake(self._state)) is None or self._spread is None:
            return due_at
        late = self._spread.limit(round((self._state.latest_at - due_at) * 1000)) / 1000
        return due_at + min(late, self._spread.coalesce) * self._spread.patience

    async def _run_cycle(self) -> None:
        before = self._state
        call = HandlerCall.of(before, before.attempt + 1)
        self._state = begin(before)
        # as JSON on both ways, as between a workflow and its worker
        answer = await ActivityEnvironment().run(self._dispatch.run_handler, _copy(call.dump()))
        outcome = Outcome.load(_copy(answer))
        self._decide(outcome)
        self.cycles.append(
            Cycle(
                at=self.now,
                due_at=_moment(before.due_at),
                version=before.version,
                attempt=call.attempt,
                payload=before.payload,
                outcome=outcome.word,
                reason=self.decisions[-1].reason,
                state=self.state,
                next_due_at=self.next_due_at,
            )
        )

    def _decide(self, event: Outcome | Signal) -> None:
        before = self._state
        self._state = decide(before, event, self._now, spread=self._spread)
        if self._state.decisions is not before.decisions:
            self.decisions.append(self._state.decisions[-1])

    def _read_clock(self) -> float:
        return self._now


class _LoneGates(Gates):
    """Gates that only one message knows, so that they need no server."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__("", clock)

    async def _read(self) -> None:
        pass

    async def _send_closures(self) -> None:
        pass


async def live(
    handler: Handler,
    message: Message,
    *,
    until: timedelta = timedelta(days=30),
    signals: Mapping[timedelta, Signal] | None = None,
    begin_at: datetime = BEGIN,
    settings: Settings | None = None,
    http: "aiohttp.ClientSession | None" = None,
    resources: Resources | None = None,
    cycles_max: int = CYCLES_MAX,
) -> Life:
    """Let a message live for `until`, or until it ends, in virtual time; `signals` come at their time after the start.

    A cycle that is due at the moment of a signal comes first. Raises EndlessLife after more than `cycles_max` cycles.
    """
    given: dict[str, Any] = {"settings": settings, "http": http, "resources": resources}
    life = Life(handler, message, begin_at=begin_at, cycles_max=cycles_max, **given)
    for moment, signal in sorted((signals or {}).items(), key=lambda item: item[0]):
        await life.run(moment)
        life.signal(signal)

    await life.run(until)
    return life


def _begin_state(handler: Handler, message: Message, now: float) -> MessageState:
    payload = message.payload
    if flaw := find_flaw(payload):
        if handler.payload is None:
            raise InvalidEnvelope("payload", f"{flaw}; give plain JSON")
        payload = handler.payload.write(payload)

    state = MessageState(
        *(message.kind, message.id, message.lane, now, now),
        payload=_copy(payload),
        version=message.version,
        priority=message.priority,
        tenant=message.tenant,
        correlation_id=message.correlation_id,
        trace=message.trace,
    )
    return state.remember(now, "started")


def _copy(value: Any) -> Any:
    return decode_json(encode_json(value))


def _moment(epoch: float) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)
