"""Sendings: what is done to many messages or letters after a person has confirmed it, in the background."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

from temporalio.service import RPCError

from shared.errors import DormiceError
from shared.messages.signals import Signal
from starter.control import Control
from starter.extras.web.page.snapshot import describe_error
from starter.steering.sender import SignalCounts

NOTED_MAX = 5
"""Sentences about single messages that are kept."""


class SelectionSending:
    """One verb on its way to a selection: what it has done so far, and how it ended; `title` says what it does."""

    def __init__(self, title: str, where: str, run: "Callable[[SelectionSending], Awaitable[None]]") -> None:
        self.id = secrets.token_hex(4)
        self.title = title
        self.where = where
        """The view that it was begun in."""
        self.began_at = datetime.now(UTC)
        self.counts = SignalCounts(report=self._note)
        self.notes = list[str]()
        self.problem = ""
        self._task = asyncio.create_task(self._run(run))

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens."""
        return self._task.done()

    async def wait(self, seconds: float) -> None:
        """Wait until it is over, but no longer."""
        await asyncio.wait([self._task], timeout=seconds)

    def _note(self, sentence: str) -> None:
        if len(self.notes) < NOTED_MAX:
            self.notes.append(sentence)

    async def _run(self, run: "Callable[[SelectionSending], Awaitable[None]]") -> None:
        try:
            await run(self)
        except (DormiceError, RPCError) as exc:
            self.problem = describe_error(exc)


def send_to(
    control: Control, names: AsyncIterator[tuple[str, str]], signal: Signal
) -> Callable[[SelectionSending], Awaitable[None]]:
    """Give what sends a signal to each of a stream."""

    async def run(sending: SelectionSending) -> None:
        await control.send_to_each(names, signal, sending.counts)

    return run
