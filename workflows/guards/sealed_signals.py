"""Sealed signals: what no worker can open yet is held beside a workflow's state, and everything else goes on.

Whether a signal was sealed when it came is written into the history as a patch marker, because the worker that replays
it may have the key. Whoever holds a signal asks an activity to open it, which any worker of the queue may run.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue, RetryPolicy

from activities.server_calls import OPEN_SIGNAL
from shared.errors import PayloadKeyMissing
from shared.temporal.converter import UNOPENED

SEALED = "sealed"  # where the wire form of a message or pack has the signals that it holds
KEY_PATIENCE = timedelta(hours=1)
"""How long a signal waits for workers to be given its key."""
HELD_BYTES_MAX = 300_000  # of the held signals of one workflow: one chunk of new messages, or hundreds of others

NO_KEY = "it is encrypted by a key that no worker had; give workers the key before those who send, and send it again"
NO_ROOM = "it is encrypted by a key that no worker has, as others are that wait for theirs; send it again later"

_OPEN_TIMEOUT = timedelta(seconds=10)
_OPEN_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1))


class SealedSignal(NamedTuple):
    """A signal that waits for a worker with its key; `since` is in seconds since the epoch."""

    name: str
    since: float
    problem: str
    payloads: list[str]

    @classmethod
    def take(cls, name: str, arguments: Sequence[Any]) -> "SealedSignal":
        """Keep a signal as it came; a worker that replays it, and can open it, keeps what it has opened."""
        payloads = workflow.payload_converter().to_payloads(arguments)
        problems = [payload.metadata.pop(UNOPENED) for payload in payloads if UNOPENED in payload.metadata]
        problem = problems[0].decode(errors="replace") if problems else ""
        return cls(name, workflow.time(), problem[:200], [_write(payload) for payload in payloads])

    def measure(self) -> int:
        """Give about how many bytes it takes in the state."""
        return len(self.name) + len(self.problem) + sum(map(len, self.payloads))

    async def open(self) -> Sequence[Any]:
        """Give the arguments as soon as a worker has the key; raises ActivityError when nobody had it in time."""
        left = self.since + KEY_PATIENCE.total_seconds() - workflow.time()
        opened = await workflow.execute_activity(
            OPEN_SIGNAL,
            self.payloads,
            result_type=list[str],
            schedule_to_close_timeout=timedelta(seconds=max(left, 1.0)),
            start_to_close_timeout=_OPEN_TIMEOUT,
            retry_policy=_OPEN_RETRY,
            summary=f"signal {self.name[:80]}",
        )
        return workflow.payload_converter().from_payloads([_read(text) for text in opened])


def is_sealed(arguments: Sequence[Any], number: int) -> bool:
    """Return whether a signal was sealed for the worker that got it first; `number` counts the signals of the run.

    Raises PayloadKeyMissing in a replay of a signal that was opened, on a worker that lacks the key: the workflow task
    fails, and waits for a worker that has it.
    """
    sealed = [a.payload for a in arguments if isinstance(a, RawValue) and a.payload.metadata.get(UNOPENED)]
    patch = f"signal-{number}-unopened"
    if not workflow.unsafe.is_replaying():
        return bool(sealed) and workflow.patched(patch)
    if workflow.patched(patch):
        return True
    if sealed:
        raise PayloadKeyMissing(sealed[0].metadata[UNOPENED].decode(errors="replace"))
    return False


def describe_sealed(sealed: Sequence[SealedSignal]) -> str:
    """Say for people what is held, empty for nothing."""
    if not sealed:
        return ""
    names = ", ".join(sorted({held.name[:40] for held in sealed}))
    return f"holds signals until a worker has their key: {names} ({sealed[-1].problem or 'a key is missing'})"


def _write(payload: Payload) -> str:
    return b64encode(payload.SerializeToString()).decode()


def _read(text: str) -> Payload:
    return Payload.FromString(b64decode(text))
