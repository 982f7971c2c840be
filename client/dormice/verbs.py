"""Verbs: all that can be asked of messages, written once for the asynchronous client and for its twin that blocks."""

import math
import time
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, Unpack
from urllib.parse import quote

from dormice.calls import Call, Steps, Verb, send
from dormice.documents import (
    Effect,
    Envelope,
    GateClosure,
    KindSummary,
    ListedMessage,
    MessageCount,
    MessageView,
    Options,
    Receipt,
    Selection,
    read_document,
    to_json,
    to_moment,
    to_query,
)
from dormice.errors import InvalidEnvelope, MessageParked, MessageStopped, MessageUnfinished, RetryLater, WorkflowEnded

M = TypeVar("M")
WAIT_SECONDS_MAX = 40
"""The longest that the API waits for an end before it answers."""
ANSWER_SECONDS = 6.0
"""What an answer may take beyond that: a message that no worker can ask is shown after five seconds."""


class MessageVerbs:
    """What can be asked of one message, which need not exist."""

    patience: float
    kind: str
    id: str
    receipt: Receipt[None] | None
    """What became of the start or upsert that gave this object; None for one that `message` gave."""

    @property
    def _path(self) -> str:
        return path_of("messages", kind=self.kind, id=self.id)

    @Verb
    def show(self, *, payload: bool = True) -> Steps[MessageView]:
        """Show it, alive or finished; raises MessageNotFound."""
        return (yield from self._show(self.patience, 0, payload=payload))

    @Verb
    def result(self, timeout: timedelta | None = None) -> Steps[Any]:
        """Wait until it is done, and give its result.

        Raises MessageParked, MessageStopped or WorkflowEnded when it has no result, MessageUnfinished at the timeout.
        """
        give_up_at = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
        name = f"{self.kind}:{self.id}"
        while True:
            left = give_up_at - time.monotonic()
            try:
                patience = min(self.patience, max(left, ANSWER_SECONDS))
                view = yield from self._show(patience, math.ceil(min(max(left, 0), WAIT_SECONDS_MAX)))
            except RetryLater as exc:
                if timeout is None:
                    raise
                why = str(exc)
            else:
                if view.state == "done":
                    return view.result
                why = view.why or f"it is {view.state}"
                _check_end(name, view.state, why)
            if left <= 0:
                raise MessageUnfinished(f"{name} has not ended within {timeout}: {why}; wait longer, or look at it")

    @Verb
    def run_now(self, reason: str = "") -> Steps[Effect]:
        """Run as soon as a worker is free; a parked message gets fresh attempts."""
        return (yield from self._signal("run_now", reason=reason))

    @Verb
    def reschedule(
        self, *, at: datetime | None = None, after: timedelta | None = None, reason: str = ""
    ) -> Steps[Effect]:
        """Be due at a moment, or after a time, instead; wakes a parked message up for it."""
        if (due_at := to_moment(at, after)) is None:
            raise InvalidEnvelope("at: is missing; give at, or after", field="at")
        return (yield from self._signal("reschedule", due_at=due_at, reason=reason))

    @Verb
    def reprioritize(
        self, priority: int, *, at: datetime | None = None, after: timedelta | None = None, reason: str = ""
    ) -> Steps[Effect]:
        """Take another priority, 1 (first) to 5 (last), and another due moment if one is given."""
        given = {"priority": priority, "due_at": to_moment(at, after)}
        return (yield from self._signal("reprioritize", **given, reason=reason))

    @Verb
    def revise(
        self,
        payload: Any,
        *,
        lane: str = "",
        priority: int | None = None,
        at: datetime | None = None,
        after: timedelta | None = None,
        reason: str = "",
    ) -> Steps[Effect]:
        """Take another payload, and lane, priority and due moment if they are given."""
        given = {"payload": payload, "lane": lane, "priority": priority, "due_at": to_moment(at, after)}
        return (yield from self._signal("revise", **given, reason=reason))

    @Verb
    def pause(self, reason: str = "") -> Steps[Effect]:
        """Run nothing until `resume`; other signals still change the message."""
        return (yield from self._signal("pause", reason=reason))

    @Verb
    def resume(self, reason: str = "") -> Steps[Effect]:
        """End a pause; a due time that has passed meanwhile counts as due now."""
        return (yield from self._signal("resume", reason=reason))

    @Verb
    def stop(self, reason: str = "") -> Steps[Effect]:
        """End the message for good; a running handler finishes first."""
        return (yield from self._signal("stop", reason=reason))

    @Verb
    def pull_forward(self, expected_due_at: datetime, reason: str = "") -> Steps[Effect]:
        """Run ahead of time, if it is still due at that moment and may run by now."""
        moment = to_moment(expected_due_at, field="expected_due_at")
        return (yield from self._signal("pull_forward", expected_due_at=moment, reason=reason))

    def _show(self, patience: float, wait: int, *, payload: bool = True) -> Steps[MessageView]:
        query: dict[str, str | int] = {"wait": wait, "payload": "true" if payload else "false"}
        call = Call(method="GET", path=self._path, query=query, seconds=wait)
        return read_document(MessageView, (yield from send(call, patience)))

    def _signal(self, name: str, **given: Any) -> Steps[Effect]:
        fields = {key: value for key, value in given.items() if key == "payload" or value not in (None, "")}
        call = Call(method="POST", path=f"{self._path}/{name}", content=to_json(fields))
        document = yield from send(call, self.patience)
        return Effect(is_kept=document.get("outcome") == "kept", note=document["note"])


class ClientVerbs(Generic[M]):
    """What can be asked of all messages; M is the class of one."""

    patience: float

    def message(self, kind: str, id: str) -> M:  # noqa: A002 — the envelope's own word
        """Give a message by its name; nothing is sent."""
        return self._make(kind, id, None)

    def _make(self, kind: str, message_id: str, receipt: Receipt[None] | None) -> M:
        raise NotImplementedError

    @Verb
    def start(self, kind: str, id: str, payload: Any = None, **options: Unpack[Options]) -> Steps[M]:  # noqa: A002 — as above
        """Start a message, also one that has finished; raises MessageAlive, StartRefused and InvalidEnvelope."""
        return (yield from self._bring("POST", Envelope(kind, id, payload, **options), {}))

    @Verb
    def upsert(
        self,
        kind: str,
        id: str,  # noqa: A002 — as above
        payload: Any = None,
        *,
        if_version: int | None = None,
        if_due_before: datetime | None = None,
        **options: Unpack[Options],
    ) -> Steps[M]:
        """Start a message, or give it payload, lane, priority and moment if it is alive, once for its idempotency key.

        With a condition nothing is started: raises MessageNotFound, or ConditionUnmet where it does not hold.
        """
        conditions = {"if_version": if_version, "if_due_before": to_moment(if_due_before, field="if_due_before")}
        query = {name: value for name, value in conditions.items() if value is not None}
        return (yield from self._bring("PUT", Envelope(kind, id, payload, **options), query))

    @Verb
    def count(self, *, exact: bool = False, **filters: Unpack[Selection]) -> Steps[MessageCount]:
        """Count messages; `exact` asks every pack, which needs workers."""
        query = {**to_query(filters), "exact": "true" if exact else "false"}
        return read_document(MessageCount, (yield from self._get("/v1/messages:count", query)))

    @Verb
    def kinds(self) -> Steps[list[KindSummary]]:
        """List the kinds that may be started."""
        return [read_document(KindSummary, each) for each in (yield from self._get("/v1/kinds"))["kinds"]]

    @Verb
    def forecast(self, hours: int = 24) -> Steps[dict[str, Any]]:
        """Tell what is due when, by lane, as docs/forecast.md describes the JSON."""
        return (yield from self._get("/v1/forecast", {"hours": hours}))

    @Verb
    def gates(self) -> Steps[list[GateClosure]]:
        """List the closed gates."""
        return [read_document(GateClosure, each) for each in (yield from self._get("/v1/gates"))["gates"]]

    @Verb
    def close_gate(
        self, gate: str, *, opens_at: datetime | None = None, after: timedelta | None = None, reason: str = ""
    ) -> Steps[GateClosure]:
        """Close a gate until a moment, for a time, or until somebody opens it."""
        body = to_json({"opens_at": to_moment(opens_at, after, "opens_at"), "reason": reason})
        call = Call(method="PUT", path=path_of("gates", gate=gate), content=body)
        return read_document(GateClosure, (yield from send(call, self.patience)))

    @Verb
    def open_gate(self, gate: str) -> Steps[None]:
        """Open a gate; one that is open stays so."""
        yield from send(Call(method="DELETE", path=path_of("gates", gate=gate)), self.patience)

    def _get(self, path: str, query: Mapping[str, str | int] | None = None) -> Steps[Any]:
        return (yield from send(Call(method="GET", path=path, query=query or {}), self.patience))

    def _list_page(self, cursor: str, filters: Selection) -> Steps[tuple[list[ListedMessage], str | None]]:
        page = yield from self._get("/v1/messages", {**to_query(filters), "limit": 1000, "cursor": cursor})
        return [read_document(ListedMessage, each) for each in page["messages"]], page["cursor"]

    def _bring(self, method: str, envelope: Envelope, query: Mapping[str, str | int]) -> Steps[M]:
        document = envelope.to_document()
        path = path_of("messages", kind=document.pop("kind"), id=document.pop("id"))
        document.setdefault("idempotency_key", uuid.uuid4().hex)
        call = Call(method=method, path=path, query=query, content=to_json(document))
        told = yield from send(call, self.patience)
        fields = {"outcome": told["outcome"], "reason": told["note"], "run_id": told.get("run_id", "")}
        receipt = Receipt(item=None, kind=envelope.kind, id=envelope.id, **fields)
        return self._make(envelope.kind, envelope.id, receipt)


def _check_end(name: str, state: str, why: str) -> None:
    if state == "parked":
        raise MessageParked(f"{name} is {why}; 'run_now' tries it again")
    if state == "stopped":
        raise MessageStopped(f"{name} was {why}, so it has no result")
    if state not in ("active", "running", "paused"):
        raise WorkflowEnded(f"{name} has no result: {why}")


def path_of(folder: str, **names: str) -> str:
    """Give a path of the API; ids may hold slashes, or be dots, which must not change it; raises InvalidEnvelope."""
    for field, name in names.items():
        if not name:
            raise InvalidEnvelope(f"{field}: is empty; give one", field=field)
    return "/v1/" + "/".join([folder, *(quote(name, safe="").replace(".", "%2E") for name in names.values())])
