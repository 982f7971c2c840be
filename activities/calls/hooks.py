"""Hooks of handlers: code of an author that hears of a parked message, and that can neither fail nor hold up a call."""

import asyncio
import logging
from collections.abc import Callable

from activities.api.context import CallContext, Context
from activities.api.handler import Handler, ParkedHook
from activities.api.outcome import build_message
from activities.api.payload import InvalidPayload
from shared.messages.message import clip_reason

logger = logging.getLogger(__name__)

HOOK_SECONDS = 3.0  # like the patience of outcome events: less than Temporal leaves a call beyond its handler's time


async def call_hook(
    found: Handler, hook: ParkedHook, around: CallContext, context: Callable[[], Context], reason: str
) -> None:
    """Call a handler's hook and wait for it, but not for long; what goes wrong in it is a warning in the log."""
    task = asyncio.create_task(_run(found, hook, around, context, reason))
    await asyncio.wait([task], timeout=HOOK_SECONDS)
    if not task.done():
        task.cancel()
        flaw = f"no end within {HOOK_SECONDS:g} s"
    else:
        flaw = "it was cancelled from within" if task.cancelled() else task.result()

    if flaw:
        extra = {"action": "on_parked_failed", **around.fields, "reason": flaw}
        logger.warning("the hook on_parked failed", extra=extra)


async def _run(
    found: Handler, hook: ParkedHook, around: CallContext, context: Callable[[], Context], reason: str
) -> str:
    """Run a hook in a task of its own; return what went wrong."""
    try:
        try:
            message = build_message(around.call, found.payload)
        except InvalidPayload:  # it may be what has parked the message
            message = build_message(around.call)
        await hook(message, context(), reason)
    except asyncio.CancelledError:
        raise
    except BaseException as exc:  # noqa: BLE001 — a hook may raise whatever it likes, and must not end the worker
        return describe_error(exc)

    return ""


def describe_error(exc: BaseException) -> str:
    """Give the type of an error and the first line of its text."""
    try:
        text = str(exc).strip().partition("\n")[0]
    except BaseException as worse:  # noqa: BLE001 — an exception's text comes from the handler's own code too
        text = f"its text can't be had ({type(worse).__name__})"
    name = type(exc).__name__
    described = f"{name}: {text}" if text else name
    return clip_reason(described)
