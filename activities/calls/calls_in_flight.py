"""The calls of packed messages that a worker process has in flight, each message's only once."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from activities.calls.slots import CallSlots
from shared.messages.message import Outcome


class Call:
    """A handler at work.

    `is_slow` says which kind of slot it holds, `ended_at` when it ended, which is 0 until a batch has seen it.
    """

    __slots__ = ("ended_at", "has_slot", "is_slow", "key", "task")

    def __init__(self, key: str, task: asyncio.Task[Outcome]) -> None:
        self.key = key
        self.task = task
        self.is_slow = False
        self.has_slot = True
        self.ended_at = 0.0


class CallsInFlight:
    """Begins calls, and gives the call in flight to whoever asks for the same version of a message again.

    A batch that counts as lost, because an answer was late or got lost, is run again while its calls go on here.
    """

    def __init__(self, slots: CallSlots) -> None:
        self.slots = slots
        self._calls: dict[str, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, key: str, run: Callable[[], Coroutine[Any, Any, Outcome]]) -> Call:
        """Begin a call with a slot that was taken, or give back the slot and give the call in flight with this key."""
        found = self._calls.get(key)
        if found is not None:
            self.slots.give_back(is_slow=False)
            return found

        call = Call(key, asyncio.create_task(run()))
        self._calls[key] = call
        call.task.add_done_callback(partial(self._end, call))
        return call

    def let_be_slow(self, call: Call) -> None:
        """Let a call that lasts keep no slot from quick ones, if there are not too many slow ones."""
        if call.has_slot and not call.is_slow:
            call.is_slow = self.slots.move_to_slow()

    def abandon(self, call: Call) -> None:
        """Forget a call that does not end; it may be begun again."""
        if self._calls.get(call.key) is call:
            del self._calls[call.key]
        if call.has_slot:
            call.has_slot = False
            self.slots.give_back(is_slow=call.is_slow)

    def _end(self, call: Call, _: asyncio.Task[Outcome]) -> None:
        self.abandon(call)
