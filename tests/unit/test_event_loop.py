"""The event loop of a worker process: it goes on whatever a handler does to it."""

import asyncio
import sys
from collections.abc import Callable

import pytest

from worker.process import new_event_loop, run_unstoppably


def interrupt() -> None:
    """Do what Ctrl-C does where nobody takes it."""
    raise KeyboardInterrupt


def stop() -> None:
    """Stop the loop that runs."""
    asyncio.get_running_loop().stop()


@pytest.mark.parametrize("hurt", [sys.exit, interrupt, stop])
def test_nothing_that_runs_in_it_stops_it(hurt: Callable[[], None]) -> None:
    """A task that somebody left behind exits, is interrupted, or stops the loop: what matters runs on."""
    loop = new_event_loop()

    async def main() -> str:
        async def left_behind() -> None:
            hurt()

        task = asyncio.create_task(left_behind())
        await asyncio.wait([task])
        assert task.exception() is None or hurt is not stop
        return "ended in its own time"

    try:
        assert run_unstoppably(loop, main()) == "ended in its own time"
    finally:
        loop.close()


def test_what_main_itself_raises_is_raised() -> None:
    """An error of our own is nothing to run on after."""
    loop = new_event_loop()

    async def main() -> None:
        raise RuntimeError("broken")

    try:
        with pytest.raises(RuntimeError, match="broken"):
            run_unstoppably(loop, main())
    finally:
        loop.close()
