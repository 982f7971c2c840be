"""The `echo` handler: does what its payload says, for trials, demonstrations and benchmarks."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

from activities.api.context import Context
from activities.api.handler import handler
from activities.api.outcome import Again, Done, Message, Reject, RetryAfter


@handler("echo", lane="short")
async def echo(message: Message, ctx: Context) -> Again | Done | Reject:  # noqa: ARG001 — what every handler takes
    """Work for `work` seconds, then come back after `delay` seconds, at most `cycles` times.

    Payload, all optional numbers: `delay` (60), `work` (0), `cycles` (endless), `earliest`, `tolerance`; and
    `fail`: "raise", "reject", "hang" or "retry_after" to see what happens then.
    """
    given: Any = message.payload
    payload: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
    await asyncio.sleep(payload.get("work", 0))
    if payload.get("fail") == "reject":
        return Reject("its payload asked to be rejected")

    await _fail_as_asked(payload.get("fail"))
    if payload.get("cycles") is not None and message.version + 1 >= payload["cycles"]:
        return Done(f"echoed {message.version + 1} times")

    return Again(
        after=timedelta(seconds=payload.get("delay", 60)),
        earliest=_seconds(payload.get("earliest")),
        tolerance=_seconds(payload.get("tolerance")),
        reason="echoed",
    )


async def _fail_as_asked(how: str | None) -> None:
    if how == "raise":
        raise RuntimeError("its payload asked to fail")
    if how == "hang":
        await asyncio.Event().wait()
    if how == "retry_after":
        raise RetryAfter(timedelta(seconds=5), "its payload asked to wait")


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)
