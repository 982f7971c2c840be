"""Sealed signals: what no worker can open yet is held beside a workflow's state, and everything else goes on.

What became of a signal that was sealed when it came is written into the history as a patch marker, because the worker
that replays it may have the key. An activity opens what is held, on any worker of the queue, again and again for an
hour.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from shared.errors import PayloadKeyMissing
from shared.temporal.converter import UNOPENED

SEALED = "sealed"  # where the wire form of a message or pack has the signals that it holds
KEY_PATIENCE = timedelta(hours=1)
"""How long a signal waits for workers to be given its key."""

HELD_MAX = 100
HELD_BYTES_MAX = 300_000
"""Of the held signals of one workflow: one chunk of new messages, beside some others."""

NO_KEY = "it is encrypted by a key that no worker had; give workers the key before those who send, and send it again"
NO_ROOM = "it is encrypted by a key that no worker has, as others are that wait for theirs; send it again later"

Fate = Literal["opened", "held", "refused"]


class SealedSignal(NamedTuple):
    """A signal that waits for a worker with its key; `since` is in seconds since the epoch."""

    name: str
    since: float
    problem: str
    payloads: list[str]

    @classmethod
    def take(cls, name: str, arguments: Sequence[Any]) -> "SealedSignal":
        """Keep a signal as it came; a worker that replays it, and can open it, keeps what it has opened."""
        try:
            payloads = workflow.payload_converter().to_payloads(arguments)
        except (ValueError, TypeError, RuntimeError):  # too deep, for one; what reads it will not take it either
            payloads = []
        problems = [payload.metadata.pop(UNOPENED) for payload in payloads if UNOPENED in payload.metadata]
        problem = problems[0].decode(errors="replace") if problems else ""
        return cls(name, workflow.time(), problem[:200], [b64encode(p.SerializeToString()).decode() for p in payloads])

    def measure(self) -> int:
        """Give about how many bytes it takes in the state."""
        return len(self.name) + len(self.problem) + sum(map(len, self.payloads))

    def is_over(self, now: float) -> bool:
        """Return whether it has waited for long enough."""
        return now >= self.since + KEY_PATIENCE.total_seconds()


def read_opened(payloads: Sequence[str]) -> Sequence[Any]:
    """Give a signal's arguments from what the activity has opened."""
    return workflow.payload_converter().from_payloads([Payload.FromString(b64decode(text)) for text in payloads])


def find_fate(arguments: Sequence[Any], number: int, held: Sequence[SealedSignal]) -> Fate:
    """Return what becomes of a signal, for the worker that gets it first; `number` counts the signals of the run.

    Raises PayloadKeyMissing in a replay of a signal that was opened, on a worker that lacks the key: the workflow task
    fails, and waits for a worker that has it.
    """
    sealed = [a.payload for a in arguments if isinstance(a, RawValue) and a.payload.metadata.get(UNOPENED)]
    held_patch = f"signal-{number}-held"
    refused_patch = f"signal-{number}-refused"
    if workflow.unsafe.is_replaying():
        if workflow.patched(held_patch):
            return "held"
        if workflow.patched(refused_patch):
            return "refused"
        if sealed:
            raise PayloadKeyMissing(sealed[0].metadata[UNOPENED].decode(errors="replace"))
        return "opened"

    if not sealed:
        return "opened"
    # base64 takes a third more
    size = sum(each.measure() for each in held) + sum(len(payload.data) for payload in sealed) * 4 // 3
    has_room = len(held) < HELD_MAX and size <= HELD_BYTES_MAX
    if has_room and workflow.patched(held_patch):
        return "held"
    workflow.patched(refused_patch)
    return "refused"


def describe_sealed(sealed: Sequence[SealedSignal]) -> str:
    """Say for people what is held, empty for nothing."""
    if not sealed:
        return ""
    names = ", ".join(sorted({held.name[:40] for held in sealed}))
    return f"holds signals until a worker has their key: {names} ({sealed[-1].problem or 'a key is missing'})"
