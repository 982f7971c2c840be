"""Requests for handlers: which worker the server believes to have the calls that a workflow waits for."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_commands import ScheduleActivity

from shared.messages.message import HandlerCall
from shared.packs.cycle import STILL_IN_FLIGHT
from shared.packs.entry import ID, VERSION
from shared.temporal.converter import DATA_CONVERTER


def name_version(kind: str, message_id: str, version: int) -> str:
    """Name a version of a message, as its idempotency key does."""
    return f"{kind}:{message_id}:{version}"


@dataclass(eq=False, slots=True)
class HandlerRequest:
    """A batch of a pack, or the one call of a solo message."""

    versions: dict[int, str]
    """Those whose outcomes it still waits for, by position."""
    is_solo: bool = False
    holder: Any = None
    """The worker that has its calls, None while none has."""
    held_since: float = 0.0
    """When that worker was given it, in virtual time."""
    is_hit: bool = False
    """Whether a fault hit one of its tasks, heartbeats or answers."""

    def take_answer(self, scheduled: ScheduleActivity, payload: Payload) -> None:
        """Forget the versions whose outcomes an activity has answered."""
        (wire,) = DATA_CONVERTER.payload_converter.from_payloads(list(scheduled.arguments))
        (answer,) = DATA_CONVERTER.payload_converter.from_payloads([payload])
        results = answer.get("results", [None])  # a solo message's one call has one outcome
        positions = wire.get("positions", range(len(results)))
        for position, result in zip(positions, results, strict=True):
            if result != STILL_IN_FLIGHT:  # a run may end when it is given a result, and the next one ask again
                self.versions.pop(position, None)


class HandlerRequests:
    """All requests for handlers of one simulation."""

    def __init__(self) -> None:
        self._by_token: dict[str, HandlerRequest] = {}
        self._by_version: dict[str, list[HandlerRequest]] = {}

    def find(self, run_id: str, scheduled: ScheduleActivity) -> HandlerRequest | None:
        """Give the request that an activity makes, or goes on with; None for one that calls no handlers."""
        (wire,) = DATA_CONVERTER.payload_converter.from_payloads(list(scheduled.arguments))
        match scheduled.activity_type:
            case "run_batch":
                versions = (name_version(wire["kind"], entry[ID], entry[VERSION]) for entry in wire["entries"])
                return self._add(wire["token"], versions)
            case "await_calls":
                return self._by_token[wire["token"]]
            case "run_handler":
                call = HandlerCall.load(wire)
                version = name_version(call.kind, call.id, call.version)
                return self._add(f"{run_id}/{scheduled.seq}", [version], is_solo=True)
            case _:
                return None

    def awaits(self, version: str, worker: Any, began_at: float) -> bool:
        """Return whether somebody waits for the call of a version that a worker has begun.

        A batch takes over calls that its worker has begun for a batch before, a solo message's activity does not.
        """
        return any(
            request.holder is worker
            and version in request.versions.values()
            and (request.held_since <= began_at or not request.is_solo)
            for request in self._by_version.get(version, ())
        )

    def is_hit(self, version: str) -> bool:
        """Return whether a fault hit a request for a version."""
        return any(request.is_hit for request in self._by_version.get(version, ()))

    def _add(self, token: str, versions: Iterable[str], *, is_solo: bool = False) -> HandlerRequest:
        request = self._by_token[token] = HandlerRequest(dict(enumerate(versions)), is_solo)
        for version in request.versions.values():
            self._by_version.setdefault(version, []).append(request)
        return request
