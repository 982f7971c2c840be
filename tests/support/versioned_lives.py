"""Handlers whose messages live through a change of versions; each call notes which build it was in."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import activities
from activities import Again, Context, Message, Pack, Reject, handler
from examples.ledger import LEDGER_VARIABLE, ledgered

KIND = os.environ["VERSIONED_KIND"]
BUILD = os.environ.get("DORMICE_BUILD_ID", "")
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
NONE = timedelta(0)

CODE = Path(activities.__file__).parents[1].name
assert (CODE == "baseline") is (BUILD == "baseline"), f"build {BUILD} runs the code of {CODE}"


@ledgered
async def act(message: Message, ctx: Context) -> Again | Reject:
    """Do what the payload says, and give as the reason which build did it."""
    lane = None
    match message.payload:
        case "reject":
            return Reject(BUILD)
        case "sleep":
            return Again(after=HOUR, tolerance=NONE, reason=BUILD)
        case "move":
            lane = "medium" if message.lane == "short" else "short"
        case "hold":
            while not Path(os.environ[LEDGER_VARIABLE]).with_suffix(".open").exists():  # noqa: ASYNC110 — the file is another process's
                await asyncio.sleep(0.05)
        case _:
            pass

    return Again(after=SECOND, tolerance=NONE, lane=lane, reason=BUILD)


solo = handler(KIND)(act)
packed = handler(f"{KIND}-packed", encoding=Pack(packs=2, size=1000, coalesce=NONE))(act)
