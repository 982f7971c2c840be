"""Waiting: for the end of a message, and what became of it as a sentence and an exit code."""

import asyncio
import json
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from click import option

from shared.errors import RetryLater
from shared.exit import FINE, NOT_DONE, NOT_IN_TIME
from shared.messages.placement import workflow_id
from shared.messages.timespan import format_seconds
from starter.cli.arguments import DURATION
from starter.local.terminal import echo_err

if TYPE_CHECKING:
    from starter.control import Control
    from starter.steering.message_view import MessageView

NO_END = timedelta(days=36_500)

WAIT_HELP = "wait until it has ended or is parked, at most so long; without DURATION for as long as that takes"

EPILOG = """\
With --wait the exit code says what became of the message: 0 it is done, 4 it is parked, or has ended otherwise, 5 the
time is over. It goes on whether somebody waits or not. DURATION is optional, so write --wait last, or --wait=30s."""


OPTIONAL: dict[str, Any] = {**DURATION, "metavar": "[DURATION]"}
wait_option = option("--wait", **OPTIONAL, is_flag=False, flag_value="36500d", help=WAIT_HELP)


async def wait_for_end(control: "Control", kind: str, message_id: str, wait: timedelta) -> "MessageView":
    """Show a message once it has ended or is parked, or the time is over; Ctrl-C is answered with what it means."""
    name = workflow_id(kind, message_id)
    if sys.stderr.isatty():
        echo_err(f"waiting for {name}; Ctrl-C ends the waiting, not the message")
    try:
        return await control.show(kind, message_id, wait=wait)
    except asyncio.CancelledError:
        echo_err(f"no longer waiting: {name} goes on; 'dormice show {name} --wait' waits again")
        raise
    except RetryLater as exc:
        raise type(exc)(f"{name} was being waited for: {exc}; 'dormice show {name} --wait' waits again") from exc


def explain_end(view: "MessageView", wait: timedelta) -> tuple[int, str]:
    """Give the exit code for what became of a message, and a sentence that says what to do next; "" if it is done."""
    listed = view.listed
    name = workflow_id(listed.kind, listed.id)

    state = listed.state
    if state == "done":
        return FINE, ""

    if state == "parked":
        remedy = f"mend the cause, then 'dormice parked replay {name}'"
        return NOT_DONE, f"{name} is parked ({listed.parked_reason}); {remedy}"

    if state == "stopped":
        return NOT_DONE, f"{name} was stopped; 'dormice show {name}' tells why, and it may be started anew"
    if state == "expired":
        return NOT_DONE, f"{name} has expired; 'dormice show {name}' tells more, and it may be started anew"

    if state in ("active", "paused"):
        time_over = "" if wait == NO_END else f" after {format_seconds(wait.total_seconds())}"
        return NOT_IN_TIME, f"{name} is still {state}{time_over} and goes on; 'dormice show {name} --wait' waits again"

    return NOT_DONE, f"{name} has ended as {state}, by something else than itself; 'dormice show {name}' tells more"


def to_cells(document: dict[str, Any]) -> list[str]:
    """Give name, state and, of a message that is done, its result as JSON, as cells of a line."""
    result = [json.dumps(document["result"], ensure_ascii=False)] if document["state"] == "done" else []
    return [document["workflow_id"], document["state"], *result]
