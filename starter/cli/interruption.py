"""Ctrl-C for commands that wait: noticed at once, whichever thread of the process the signal reaches."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from shared.exit import INTERRUPTED, find_stop_signals
from starter.local.terminal import echo_err

Result = TypeVar("Result")


def run_interruptibly(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end; raises KeyboardInterrupt as soon as SIGINT comes.

    If another thread receives the SIGINT, one of the Temporal client's, `asyncio.run` alone notices it only at the
    loop's next event, seconds later. A signal handler of the loop wakes the loop at once.
    """

    async def run() -> Result:
        working = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, working.cancel)
        return await working

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@contextmanager
def run_in_background(work: Coroutine[Any, Any, Result]) -> Generator[Future[Result]]:
    """Run a coroutine in a thread of its own during a `with` block; at the block's end it is over or cancelled."""
    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as pool:
        loop = runner.get_loop()
        working = loop.create_task(work)
        try:
            yield pool.submit(runner.run, asyncio.wait_for(working, None))
        finally:
            loop.call_soon_threadsafe(working.cancel)


def call_at_signals(first: Callable[[], object], later: Callable[[], object] | None = None) -> None:
    """Call `first` at the first signal to end, and `later` at each that follows.

    Without `later`, the second signal exits at once, and the parent watches end the children. A later SIGHUP does not
    count, because a terminal that closes may send two.
    """
    loop = asyncio.get_running_loop()
    call = first

    def end(number: signal.Signals) -> None:
        nonlocal call
        if call is first or number is not signal.SIGHUP:
            calling = call
            call = later or (lambda: os._exit(INTERRUPTED))
            calling()

    for number in find_stop_signals():
        loop.add_signal_handler(number, end, number)


def drain_at_signal(stopping: asyncio.Event) -> None:
    """Set an event at the first signal to end, and say so; the second signal exits at once."""

    def drain() -> None:
        stopping.set()
        echo_err("draining: once more leaves at once")

    call_at_signals(drain)


async def run_until_signal(work: Coroutine[Any, Any, Result]) -> Result | None:
    """Run a coroutine to its end; a signal to end cancels it, so that it can clean up, and the result is None."""
    working = asyncio.ensure_future(work)
    call_at_signals(working.cancel)
    try:
        return await working
    except asyncio.CancelledError:
        return None
