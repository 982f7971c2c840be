"""A threaded iterator: reads a blocking iterable in a thread of its own, for a consumer on the event loop."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Generic, TypeVar

BUFFERED_ITEMS = 256

Item = TypeVar("Item")


class ThreadedIterator(Generic[Item]):
    """Gives the items of an iterable as they come, so that a slow pipe never blocks the event loop.

    The thread reads at most BUFFERED_ITEMS ahead. An error is raised after the items before it. Iterate it once.
    """

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = items
        self._ready: list[Item] = []
        self._is_read = False
        self._is_stopped = False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._wake: Callable[[], object] = lambda: None

    def stop(self) -> None:
        """Yield nothing more, even if the iterable itself never returns."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._wake()

    async def __aiter__(self) -> AsyncIterator[Item]:
        loop = asyncio.get_running_loop()
        is_changed = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(is_changed.set)

        self._wake = wake
        # a daemon thread, because a read that blocks for ever must not prevent the exit
        threading.Thread(target=self._read, daemon=True).start()
        is_over = False
        while not is_over and not self._is_stopped:
            await is_changed.wait()
            is_changed.clear()
            with self._changed:
                items = self._ready
                self._ready = []
                is_over = self._is_read
                self._changed.notify_all()
            for item in items:
                if not self._is_stopped:
                    yield item
        if self._error is not None and not self._is_stopped:
            raise self._error

    def _read(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_stopped or len(self._ready) < BUFFERED_ITEMS)
                    if self._is_stopped:
                        return
                    self._ready.append(item)
                    if len(self._ready) == 1:
                        self._wake()
        except Exception as exc:  # noqa: BLE001 — raised where the items are awaited
            self._error = exc

        with self._changed:
            self._is_read = True

        self._wake()
