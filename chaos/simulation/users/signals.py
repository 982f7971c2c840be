"""Signals of users: draws them, and tells the ledger what was sent, handled and done."""

import random
from datetime import UTC, datetime
from typing import Any

from chaos.simulation.handlers import PACKED, SOLO
from chaos.simulation.ledger.ledger import Ledger
from shared.messages.signals import (
    Pause,
    PullForward,
    Reprioritize,
    Reschedule,
    Resume,
    Revise,
    RunNow,
    Signal,
    Stop,
)

MALFORMED: tuple[tuple[str, Any], ...] = (
    ("run_now", {}),
    ("run_now", {"ids": "x"}),
    ("revise", {"ids": ["m0"]}),
    ("reprioritize", {"ids": ["m0"], "priority": "1"}),
    ("reschedule", {"ids": ["m0"], "due_at": 17}),
    ("pull_forward", {"count": 0}),
    ("admit", {}),
    ("admit", {"token": "x", "entries": [1]}),
    ("spread", {"packs": "many"}),
)


class UserSignals:
    """The signals of one simulation; payloads carry `pad`."""

    def __init__(self, rng: random.Random, ledger: Ledger, pad: str) -> None:
        self._rng = rng
        self._ledger = ledger
        self._pad = pad

    def draw(self, ids: list[str]) -> Signal:
        """Draw a signal for some messages."""
        rng = self._rng
        moment = datetime.fromtimestamp(self._ledger.now + rng.uniform(-10, 60), UTC).isoformat()
        revision = 1 + max(self._ledger.of(kind, i).revisions_sent for i in ids for kind in (PACKED, SOLO))

        return rng.choice(
            [
                RunNow(),
                RunNow(),
                Reschedule(moment),
                Reprioritize(rng.randint(1, 5), rng.choice([None, moment])),
                Revise({"rev": revision, "pad": self._pad}, due_at=rng.choice([None, moment])),
                Revise({"rev": revision, "pad": self._pad}, lane=rng.choice(["short", "medium"])),
                Pause(),
                Resume(),
                Resume(),
                *([Stop()] if rng.random() < 0.2 else []),
                PullForward(moment),
            ]
        )

    def note_sent(self, kind: str, message_id: str, signal: Signal) -> None:
        """Record that a signal is about to be sent to a message."""
        tracked = self._ledger.of(kind, message_id)
        tracked.asking += 1
        if isinstance(signal, Stop):
            tracked.may_be_over = True
        if isinstance(signal, Revise):
            tracked.revisions_sent = max(tracked.revisions_sent, signal.payload["rev"])
        if isinstance(signal, (Pause, Resume)):
            tracked.is_paused = None

    def note_handled(self, kind: str, message_id: str, seconds: float = 0.0) -> None:
        """Record that a signal has been handled, or will have been so many seconds from now."""
        tracked = self._ledger.of(kind, message_id)
        tracked.asking -= 1
        tracked.asked_until = max(tracked.asked_until, self._ledger.now + seconds)

    def note_done(self, message_id: str, signal: Signal) -> None:
        """Record that a packed message was alive when it got a signal."""
        tracked = self._ledger.of(PACKED, message_id)
        match signal:
            case Revise():
                tracked.revision = max(tracked.revision, signal.payload["rev"])
            case Stop():
                tracked.is_stopped = True
            case Pause() | Resume():
                tracked.is_paused = isinstance(signal, Pause)
            case _:
                pass
