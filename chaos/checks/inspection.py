"""Inspection: checks the ledger at the end of a run, and asks the server about messages that stand still."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos.checks.checkers import Examination
from chaos.checks.tracks.track import Track
from chaos.injection import Injected
from chaos.ledger import Ledger
from shared.errors import DormiceError, MessageNotFound
from shared.messages.placement import identity_of
from starter.control import Control

LATER_SECONDS = 120.0
"""How much longer messages that stand still at the end are watched, to distinguish late from never."""

LOOKED_UP_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The result of an inspection."""

    examination: Examination
    later: list[Track]
    """Messages that stood still, and still do LATER_SECONDS later."""
    known: dict[str, str]
    """What the server knows of some of the messages that stood still."""
    ended_at: float


async def inspect(
    ledger: Ledger, faults: Sequence[Injected], control: Control, notify: Callable[[str], None]
) -> Inspection:
    """Read and check the whole ledger; if messages stand still, watch them for LATER_SECONDS more."""
    ended_at = time.time()
    examination = await _examine(ledger, faults)
    overdue = examination.check_end(ended_at)
    later = list[Track]()
    known = await _look_up(control, overdue)

    if overdue:
        notify(f"{len(overdue)} messages stand still; they are watched for {LATER_SECONDS:.0f} s more")
        await asyncio.sleep(LATER_SECONDS)
        tracks = (await _examine(ledger, faults)).tracks
        later = [track for track in overdue if tracks[track.group, track.number].calls.newest == track.calls.newest]

    return Inspection(examination=examination, later=later, known=known, ended_at=ended_at)


async def _examine(ledger: Ledger, faults: Sequence[Injected]) -> Examination:
    return await asyncio.to_thread(Examination(faults).read, ledger.read())


async def _look_up(control: Control, overdue: Sequence[Track]) -> dict[str, str]:
    known: dict[str, str] = {}
    for track in overdue[:LOOKED_UP_MAX]:
        try:
            listed = await control.look_up(*identity_of(track.name))
        except MessageNotFound:
            known[track.name] = "the server does not know it"
        except DormiceError as exc:
            known[track.name] = str(exc)[:200]
        else:
            known[track.name] = f"{listed.state}, due {listed.due_at}"

    return known
