"""Ctrl-C for commands that wait: noticed at once, whichever thread of the process the signal reaches."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_interruptibly(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end; raises KeyboardInterrupt as soon as SIGINT comes.

    `asyncio.run` alone notices a SIGINT that another thread received, one of the Temporal client's, only at the
    loop's next event: seconds later, and too late to matter. A handler of the loop wakes the loop up.
    """

    async def run() -> Result:
        working = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, working.cancel)
        return await working

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
