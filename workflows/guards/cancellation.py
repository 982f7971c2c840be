"""Cancellation: a click on the Web UI's cancel button must lose no message, so requests never cancel a workflow's work.

The SDK answers a request by cancelling the task that runs the workflow, and with it the timer or activity that the task
waits for. Here that task only waits for a second task, which does the workflow's work and is never cancelled.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from temporalio import workflow

Ending = TypeVar("Ending")

IGNORED = "\n\n**Cancellation was requested, and is ignored**: what ends messages is `dormice stop`."


async def shield_from_cancellation(life: Coroutine[Any, Any, Ending], notify: Callable[[], None]) -> Ending:
    """Run `life` to its end and return or raise what it does; each request to cancel only calls `notify`.

    A request causes no command, so histories are the same as without it. The next run does not know of the request.
    """
    living = asyncio.create_task(life)
    while not living.done():
        try:
            await workflow.wait([living])
        except asyncio.CancelledError:
            if is_requested():  # otherwise the run is being evicted, and `living` ends too
                notify()
    return living.result()


def ignores_cancellation(run: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    """Make a workflow's `run` ignore requests to cancel; after one, the details in the Web UI say so."""

    @functools.wraps(run)
    async def outliving(*args: Any) -> None:
        await shield_from_cancellation(run(*args), lambda: set_details(workflow.get_current_details()))

    return outliving


def set_details(details: str) -> None:
    """Set the Web UI's current details; after an ignored request to cancel, they name the command to use instead."""
    workflow.set_current_details(details.removesuffix(IGNORED) + (IGNORED if is_requested() else ""))


def is_requested() -> bool:
    """Return whether somebody has requested to cancel this run."""
    return workflow.cancellation_reason() is not None
