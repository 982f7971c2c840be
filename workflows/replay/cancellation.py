"""Cancellation: the largest button of the Web UI must lose no message, so a request to cancel reaches no workflow's work.

The SDK answers a request by cancelling the task that runs the workflow, and with it the timer or activity that the task
waits for. Here that task waits for another one, which lives the workflow's life and is never cancelled.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from temporalio import workflow

Workflow = TypeVar("Workflow")
Arguments = ParamSpec("Arguments")
Ending = TypeVar("Ending")

IGNORED = "\n\n**Cancellation was requested, and is ignored**: what ends messages is `dormice stop`."


async def shield_from_cancellation(life: Coroutine[Any, Any, Ending], hear: Callable[[], None]) -> Ending:
    """Give or raise what `life` ends with, however often cancellation is requested; each request calls `hear`.

    A request brings no command, so histories are as they would be without. Continue-as-new passes like any exception; the
    run that follows knows nothing of a request.
    """
    living = asyncio.create_task(life)
    while not living.done():
        try:
            await workflow.wait([living])
        except asyncio.CancelledError:
            if is_requested():  # else the run is evicted, and `living` ends as well
                hear()
    return living.result()


def ignores_cancellation(
    run: Callable[Concatenate[Workflow, Arguments], Coroutine[Any, Any, Ending]],
) -> Callable[Concatenate[Workflow, Arguments], Coroutine[Any, Any, Ending]]:
    """Make a workflow's `run` go on as if nobody had requested cancellation; its details, by `tell`, say so."""

    @functools.wraps(run)
    async def outliving(self: Workflow, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Ending:
        return await shield_from_cancellation(
            run(self, *args, **kwargs), lambda: set_details(workflow.get_current_details())
        )

    return outliving


def set_details(details: str) -> None:
    """Set the Web UI's current details; where a request to cancel this run is ignored, with the word to use instead."""
    workflow.set_current_details(details.removesuffix(IGNORED) + (IGNORED if is_requested() else ""))


def is_requested() -> bool:
    """Tell whether somebody has requested to cancel this run."""
    return workflow.cancellation_reason() is not None
