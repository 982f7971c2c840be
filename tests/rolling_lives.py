"""Messages that live through a change of versions: their handlers, and what starts them.

Whichever version of dormice stands first on the path runs both; each call notes which one it was.
"""

import asyncio
import importlib
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client

import activities
from activities import Again, Context, Done, Message, Pack, Reject, handler
from examples.ledger import LEDGER_VARIABLE, ledgered
from shared.settings import load_settings

KIND = os.environ["ROLLING_KIND"]
OLDER, TODAY = "older", "today"
CODE = OLDER if ".zip" in str(activities.__file__) else TODAY


def load(today: str, older: str) -> Any:
    """Load a module from where the code that runs has it."""
    return importlib.import_module(older if CODE == OLDER else today)


Envelope = load("shared.messages.envelope", "shared.envelope").Envelope
DATA_CONVERTER = load("shared.temporal.converter", "shared.converter").DATA_CONVERTER
BulkStarter = load("starter.starting.bulk", "starter.bulk").BulkStarter

SECOND, HOUR, NONE = timedelta(seconds=1), timedelta(hours=1), timedelta(0)
PACK = Pack(packs=2, size=1000, coalesce=NONE)

LIVES = {
    "looping": ("short", "again"),
    "medium": ("medium", "again"),
    "moving": ("short", "move"),
    "held": ("medium", "hold"),
    "asleep": ("short", "sleep"),
    "paused": ("short", "sleep"),
    "parked": ("short", "reject"),
}
"""Where each message begins and what its handler does with it."""


@ledgered
async def act(message: Message, ctx: Context) -> Again | Done | Reject:
    """Do what the payload says, and give as the reason which code did it."""
    lane = None
    match message.payload:
        case "reject":
            return Reject(CODE)
        case "sleep":
            return Again(after=HOUR, tolerance=NONE, reason=CODE)
        case "move":
            lane = "medium" if message.lane == "short" else "short"
        case "hold":
            while not Path(os.environ[LEDGER_VARIABLE]).with_suffix(".open").exists():  # noqa: ASYNC110 — the file is another process's
                await asyncio.sleep(0.05)
        case _:
            pass
    return Again(after=SECOND, tolerance=NONE, lane=lane, reason=CODE)


solo = handler(KIND)(act)
packed = handler(f"{KIND}-packed", encoding=PACK)(act)


async def start(prefix: str) -> None:
    """Start every life in both encodings; ids are PREFIX-LIFE, with -packed behind where they are."""
    # not by `connect`: this runs with either code, and what that takes has changed
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], data_converter=DATA_CONVERTER)
    starter = BulkStarter(client, load_settings(environ=os.environ), encodings={packed.kind: PACK})
    envelopes = [
        (None, Envelope(kind=kind, id=f"{prefix}-{name}{suffix}", lane=lane, payload=payload))
        for kind, suffix in ((solo.kind, ""), (packed.kind, "-packed"))
        for name, (lane, payload) in LIVES.items()
    ]
    async for receipt in starter.start_all(envelopes):
        sys.stdout.write(f"{receipt.workflow_id} {receipt.outcome.value} {receipt.reason}\n")
    sys.stdout.flush()
    os._exit(0)  # the interpreter's own exit is not survived by every client: temporalio/sdk-python#300


if __name__ == "__main__":
    asyncio.run(start(sys.argv[1]))
