"""How far the calls of a batch are, by position: which are at work, and what the others have come to."""

import asyncio
from typing import Any

from activities.calls.calls_in_flight import Call


class BatchProgress:
    """Shared by what makes the calls of a batch and what waits for them."""

    def __init__(self) -> None:
        self.at_work: dict[int, Call] = {}
        self.results: dict[int, Any] = {}
        self.fault: BaseException | None = None
        """An error that no handler may raise; the batch fails with it."""
        self.has_begun = asyncio.Event()
        """Set when no more calls begin."""
        self.has_result = asyncio.Event()
        self.is_idle = asyncio.Event()
        """Set when all calls that began have ended, and no more begin."""

    def keep(self, position: int, result: Any) -> None:
        """Keep the result of a call."""
        self.results[position] = result
        self.has_result.set()
        self._note_change()

    def forget_others(self, positions: frozenset[int]) -> None:
        """Forget the results of all other positions."""
        self.results = {position: result for position, result in self.results.items() if position in positions}

    def note_begun(self) -> None:
        """Note that no more calls begin."""
        self.has_begun.set()
        self._note_change()

    def _note_change(self) -> None:
        if not self.at_work and self.has_begun.is_set():
            self.is_idle.set()
