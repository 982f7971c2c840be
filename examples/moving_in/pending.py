"""Exports the messages of a kind that wait in dormice, as lines that `dormice load` reads, for a way back.

The kind must be paused, so that nothing runs here any more: `dormice pause --kind KIND --yes`. Its workers must run,
because only they can say what a message holds. One whose handler was at work when it was paused is waited for, for
a minute. Parked messages are left out.
"""

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator, Generator
from typing import Any

from examples.moving_in.exchange import LeftOut, Line, Program, WrongInput, to_line
from shared.errors import DormiceError
from shared.settings import load_settings
from starter.cli.connection import open_control
from starter.control import Control
from starter.steering.message_view import HAS_ENDED, to_document
from starter.steering.selection import Selection
from starter.steering.status.listing import ListedMessage

SHOWN_AT_ONCE = 16
RUNNING_SECONDS, LOOK_SECONDS = 60.0, 0.5
KEPT = ("lane", "priority", "tenant", "correlation_id")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say which."""
    parser.add_argument("kind")


def export(args: argparse.Namespace) -> Generator[Line]:
    """Give each message that is alive."""
    with asyncio.Runner() as runner:
        control = runner.run(open_control(load_settings(environ=os.environ)))
        listed = control.list(Selection(kind=args.kind))
        while page := runner.run(_take(control, listed)):
            yield from (line for line in page if line is not None)


async def _take(control: Control, listed: AsyncIterator[ListedMessage]) -> list[Line | None]:
    names = list[ListedMessage]()
    async for each in listed:
        names.append(each)
        if len(names) == SHOWN_AT_ONCE:
            break
    return await asyncio.gather(*(_show(control, each.kind, each.id) for each in names))


async def _show(control: Control, kind: str, message_id: str) -> Line | None:
    give_up_at = time.monotonic() + RUNNING_SECONDS
    while (shown := to_document(await control.show(kind, message_id)))["state"] == "running":
        if time.monotonic() >= give_up_at:
            raise WrongInput(f"{kind}:{message_id}: its handler is still at work; run this again once it has returned")
        await asyncio.sleep(LOOK_SECONDS)
    if shown["state"] in HAS_ENDED:
        return None
    if shown["state"] == "parked":
        return LeftOut(f"{kind}:{message_id}", shown["why"])
    if shown["state"] != "paused":
        hint = f"pause them all with 'dormice pause --kind {kind} --yes', and run this again"
        raise WrongInput(f"{kind}:{message_id}: is {shown['state']}; {hint}")
    kept: dict[str, Any] = {name: shown[name] for name in KEPT if shown[name]}
    if shown["expires_at"]:
        kept["expires_at"] = shown["expires_at"].isoformat()
    return to_line(kind, message_id, shown["due_at"], shown["payload"], **kept)


if __name__ == "__main__":
    Program(__doc__ or "", add_arguments, export, None, (DormiceError,)).main()
