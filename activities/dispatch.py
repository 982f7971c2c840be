"""The one activity that runs handlers: finds the handler, bounds it, and turns all that can happen into an Outcome."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity

from activities.context import Context, HandlerLogger, moment
from activities.handler import Handler
from activities.http_client import HttpClient
from activities.outcome import Message, RetryAfter, to_outcome
from activities.registry import Registry
from shared.errors import InvalidOutcome
from shared.lanes import LANES
from shared.message import HandlerCall, Outcome
from shared.placement import workflow_id
from shared.settings import Settings

logger = logging.getLogger(__name__)

DISPATCH = "run_handler"
NO_HANDLER_DELAY = timedelta(minutes=1)
"""A kind without a handler in this worker is a deploy mistake, not the message's fault: it waits, it is not parked."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Holds what handlers of one process share; its `run_handler` is registered with every worker."""

    registry: Registry
    settings: Settings
    http: HttpClient

    @activity.defn(name=DISPATCH)
    async def run_handler(self, wire: dict[str, Any]) -> dict[str, Any]:
        """Run one cycle and give the wire form of its outcome.

        Never raises for what a handler does: exceptions, timeouts and impossible outcomes become outcomes. Only
        the loss of this process, or its lane's own timeout around a handler that blocks the event loop, is left
        for the workflow to notice.
        """
        call = HandlerCall.load(wire)
        outcome = await self._run(call)
        if outcome.verdict in ("failed", "reject"):
            logger.warning(
                "cycle failed",
                extra={
                    "action": "cycle_failed",
                    "workflow_id": workflow_id(call.kind, call.id),
                    "verdict": outcome.verdict,
                    "reason": outcome.reason,
                },
            )
        return outcome.dump()

    async def _run(self, call: HandlerCall) -> Outcome:
        found = self.registry.get(call.kind)
        if found is None:
            reason = f"no handler for kind {call.kind!r} is loaded in this worker"
            return self._outcome("retry_after", reason, after=NO_HANDLER_DELAY.total_seconds())
        timeout = found.timeout_on(call.lane)
        try:
            async with asyncio.timeout(timeout.total_seconds()), self._heartbeats(call.lane):
                returned = await found(_to_message(call), self._context(call))
            return self._stamp(to_outcome(returned, self.settings.payload_max_bytes))
        except InvalidOutcome as exc:
            return self._outcome("reject", str(exc))
        except RetryAfter as exc:
            return self._outcome("retry_after", str(exc), after=exc.delay.total_seconds())
        except TimeoutError as exc:
            reason = _describe(exc) if str(exc) else f"no outcome within {timeout.total_seconds():g} s"
            return self._failed(found, reason)
        except asyncio.CancelledError:
            if not activity.is_worker_shutdown():
                raise
            return self._outcome("handed_back", "its worker was shutting down")
        except Exception as exc:  # noqa: BLE001 — a handler may raise anything; every one of them is an attempt that failed
            return self._failed(found, _describe(exc))

    def _context(self, call: HandlerCall) -> Context:
        name = workflow_id(call.kind, call.id)
        return Context(
            attempt=call.attempt,
            idempotency_key=f"{name}:{call.version}",
            due_at=moment(call.due_at),
            started_at=datetime.now(UTC),
            settings=self.settings,
            http=self.http.client,
            logger=HandlerLogger(
                logging.getLogger(f"dormice.handler.{call.kind}"),
                {"workflow_id": name, "version": call.version, "correlation_id": call.correlation_id},
            ),
            beat=_no_beat if LANES[call.lane].heartbeat_timeout is None else activity.heartbeat,
        )

    @contextlib.asynccontextmanager
    async def _heartbeats(self, lane: str) -> AsyncGenerator[None]:
        """Heartbeat for a handler that only awaits; how long it may take in all is its timeout's business."""
        timeout = LANES[lane].heartbeat_timeout
        if timeout is None:
            yield
            return
        beating = asyncio.create_task(_beat_every(timeout / 4))
        try:
            yield
        finally:
            beating.cancel()

    def _failed(self, found: Handler, reason: str) -> Outcome:
        return self._outcome(
            "failed",
            reason,
            max_attempts=found.max_attempts,
            backoff=found.backoff.total_seconds(),
            backoff_max=found.backoff_max.total_seconds(),
        )

    def _outcome(self, verdict: Any, reason: str, **rest: Any) -> Outcome:
        return self._stamp(Outcome(verdict, reason=reason, **rest))

    def _stamp(self, outcome: Outcome) -> Outcome:
        settings = self.settings
        return replace(
            outcome,
            cycles_per_run=settings.cycles_per_run,
            index_after=settings.index_after.total_seconds(),
        )


async def _beat_every(interval: timedelta) -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(interval.total_seconds())


def _no_beat() -> None:
    pass


def _to_message(call: HandlerCall) -> Message:
    return Message(
        kind=call.kind,
        id=call.id,
        version=call.version,
        lane=call.lane,
        payload=call.payload,
        priority=call.priority,
        tenant=call.tenant,
        correlation_id=call.correlation_id,
    )


def _describe(exc: BaseException) -> str:
    text = str(exc).strip().partition("\n")[0]
    return f"{type(exc).__name__}: {text}"[:300] if text else type(exc).__name__
