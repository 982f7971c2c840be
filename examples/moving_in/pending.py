"""Exports the messages of a kind that wait in dormice, as lines that `dormice load` reads, for a way back.

The kind must be paused, so that nothing runs here any more: `dormice pause --kind KIND --yes`. Its workers must run,
because only they can say what a message holds. What is not paused yet is waited for, for a minute: the pause may still
be on its way to it, or its handler was at work. Left out, and listed, is what is parked, still at work, or silent.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass, field
from typing import Any

from examples.moving_in.exchange import LeftOut, Line, Program, WrongInput, to_line
from shared.errors import DormiceError, MessageNotFound
from shared.settings import load_settings
from starter.cli.connection import open_control
from starter.control import Control
from starter.steering.message_view import HAS_ENDED, MessageView, to_document
from starter.steering.selection import Selection
from starter.steering.status.listing import ListedMessage

SHOWN_AT_ONCE = 16
RESTS = HAS_ENDED | {"parked"}
WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.5
KEPT = ("lane", "priority", "tenant", "correlation_id")


@dataclass
class Patience:
    """The time for which an export waits in all; whoever looks on is told once what for."""

    seconds: float
    give_up_at: float = field(init=False)
    is_reported: bool = False

    def __post_init__(self) -> None:
        """Begin."""
        self.give_up_at = time.monotonic() + self.seconds

    async def pause(self, reason: str) -> bool:
        """Let a moment pass; gives False, at once, when the time is over."""
        if time.monotonic() >= self.give_up_at:
            return False
        if not self.is_reported:
            self.is_reported = True
            sys.stderr.write(f"{reason}; waiting up to {self.seconds:g} s until all are paused\n")
            sys.stderr.flush()
        await asyncio.sleep(LOOK_SECONDS)
        return True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say which."""
    parser.add_argument("kind")
    help_text = "how long to wait, in all, for messages that are not paused yet; by default 60"
    parser.add_argument("--wait", type=float, default=WAIT_SECONDS, metavar="SECONDS", help=help_text)


def export(args: argparse.Namespace) -> Generator[Line]:
    """Give each message that is alive."""
    patience = Patience(args.wait)
    with asyncio.Runner() as runner:
        control = runner.run(open_control(load_settings(environ=os.environ)))
        listed = control.list(Selection(kind=args.kind))
        while page := runner.run(_take(control, listed, patience)):
            yield from (line for line in page if line is not None)


async def _take(control: Control, listed: AsyncIterator[ListedMessage], patience: Patience) -> list[Line | None]:
    names = list[ListedMessage]()
    async for each in listed:
        names.append(each)
        if len(names) == SHOWN_AT_ONCE:
            break
    return await asyncio.gather(*(_show(control, each.kind, each.id, patience) for each in names))


async def _show(control: Control, kind: str, message_id: str, patience: Patience) -> Line | None:
    name = f"{kind}:{message_id}"
    try:
        view = await _wait_for_pause(control, kind, message_id, patience)
    except MessageNotFound:  # it has ended since it was listed, and is forgotten
        return None

    shown = to_document(view)
    state = shown["state"]
    if state in HAS_ENDED:
        return None
    if state == "parked":
        return LeftOut(name, shown["why"])
    if view.status is None:
        return LeftOut(name, shown["note"])
    if state == "running":
        return LeftOut(name, "its handler is still at work; export again once it has returned")
    if state != "paused":
        hint = f"pause them all with 'dormice pause --kind {kind} --yes', and run this again"
        raise WrongInput(f"{name}: is {state}; {hint}")

    kept: dict[str, Any] = {name: shown[name] for name in KEPT if shown[name]}
    if shown["expires_at"]:
        kept["expires_at"] = shown["expires_at"].isoformat()
    return to_line(kind, message_id, shown["due_at"], shown["payload"], **kept)


async def _wait_for_pause(control: Control, kind: str, message_id: str, patience: Patience) -> MessageView:
    """Look at a message until nothing more happens to it here, or the time is over."""
    while True:
        view = await control.show(kind, message_id)
        state = to_document(view)["state"]
        # without its own answer what it holds is not known; with a handler at work a message may not answer for long
        is_answered = view.status is not None
        if state in RESTS or (state == "paused" and is_answered):
            return view
        reason = f"is {state}" if is_answered else "does not answer yet"
        if not await patience.pause(f"{kind}:{message_id} {reason}"):
            return view


if __name__ == "__main__":
    Program(__doc__ or "", add_arguments, export, None, (DormiceError,)).main()
