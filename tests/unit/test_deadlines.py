"""Deadlines: one timer cuts each call off after its own time, as `asyncio.timeout` does, and nobody else."""

import asyncio

import pytest

from activities.calls.deadlines import Deadlines


async def _call(deadlines: Deadlines, seconds: float, *, is_deaf: bool = False) -> str:
    with deadlines.begin():
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if not is_deaf:
                raise
            return "deaf"
    return "in time"


async def test_each_call_is_cut_off_after_its_own_time_and_no_other() -> None:
    """What returns in time, before or after one that hangs, is not cancelled; what hangs gets TimeoutError."""
    deadlines = Deadlines(0.05)
    seconds = (0, 60, 0.001, 60, 0)
    ended = await asyncio.gather(*(_call(deadlines, s) for s in seconds), return_exceptions=True)
    late = await asyncio.gather(_call(deadlines, 60), _call(deadlines, 0), return_exceptions=True)

    assert [type(each) for each in [*ended, *late]] == [str, TimeoutError, str, TimeoutError, str, TimeoutError, str]


async def test_a_call_that_swallows_being_cut_off_keeps_its_result() -> None:
    """Its task is as if nobody had cancelled it."""
    task = asyncio.create_task(_call(Deadlines(0.01), 60, is_deaf=True))

    assert await task == "deaf"
    assert task.cancelling() == 0


async def test_a_cancellation_by_somebody_else_is_no_timeout() -> None:
    """It leaves the block as it came, and nothing waits for the time any more."""
    deadlines = Deadlines(3600)
    task = asyncio.create_task(_call(deadlines, 60))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert deadlines.is_idle
