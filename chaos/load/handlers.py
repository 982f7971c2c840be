"""The handlers of a chaos run: each call is written to the ledger before and after its work.

Worker processes load them by name. What a call waits for is real I/O, or lasts as long: see `chaos.load.site`.
"""

import asyncio
import os
import random
from datetime import timedelta
from pathlib import Path
from typing import cast

from activities import Again, Context, Done, Message, handler
from chaos.ledger import LEDGER_VARIABLE, Ledger, What
from chaos.load.groups import GROUPS, NUMBER_OF, TIMEOUT_SECONDS, TOLERANCE_SECONDS, Group
from chaos.load.site import SITE_VARIABLE, draw_seconds

FAILED_SHARE = 0.005
REQUESTED_SHARE = 0.1
"""Share of packed calls that ask the site, as all solo ones do; the others sleep as long as it would take to answer."""

ATTEMPTS_MAX = 10_000
"""Large enough that no message is parked: a call that is lost with its worker counts as an attempt."""

CUT_OFF_SLACK = 0.1
"""Rounding error of the time after which a cancelled call counts as one that has used up its own."""

_site = os.environ[SITE_VARIABLE]
_ledger = Ledger(Path(os.environ[LEDGER_VARIABLE]))


class FailedOnPurpose(Exception):
    """The error of a small share of the calls, so that there are retries."""


async def record_call(message: Message, ctx: Context) -> Again | Done:
    """Write the call's begin to the ledger, work, and write its end."""
    number = NUMBER_OF[message.kind]
    group = GROUPS[number]
    mark = cast("dict[str, int]", message.payload).get("mark", 0) if isinstance(message.payload, dict) else 0

    def note(what: What, asked: float = 0.0) -> None:
        _ledger.append(
            what,
            number,
            int(message.id),
            version=message.version,
            attempt=ctx.attempt,
            due=ctx.due_at.timestamp(),
            asked=asked,
            mark=mark,
        )

    note(What.BEGAN)
    over_at = asyncio.get_running_loop().time() + TIMEOUT_SECONDS
    try:
        await _work(group, ctx)
    except asyncio.CancelledError:
        is_late = asyncio.get_running_loop().time() >= over_at - CUT_OFF_SLACK
        ending = What.FAILED if is_late else What.CUT_OFF
        note(ending)
        raise
    except Exception:
        # on purpose, or the site's fault: dormice tries the call again, and the ledger says that it had to
        note(What.FAILED)
        raise
    if group.back_after[1] == 0:
        note(What.DONE)
        return Done()
    delay = round(random.uniform(*group.back_after), 3)
    note(What.AGAIN, delay)
    seconds = TOLERANCE_SECONDS if group.packs else 0
    tolerance = timedelta(seconds=seconds)
    return Again(after=timedelta(seconds=delay), tolerance=tolerance)


async def _work(group: Group, ctx: Context) -> None:
    seconds = draw_seconds()
    if group.packs and random.random() >= REQUESTED_SHARE:
        await asyncio.sleep(seconds)
    else:
        answer = await ctx.http.get(f"{_site}/{seconds:.3f}", timeout=None)
        answer.raise_for_status()
    if random.random() < FAILED_SHARE:
        raise FailedOnPurpose("this call fails on purpose")


for _group in GROUPS:
    globals()[_group.kind.replace("-", "_")] = handler(
        _group.kind,
        lane=_group.lane,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
        max_attempts=ATTEMPTS_MAX,
        backoff=timedelta(seconds=0.5),
        backoff_max=timedelta(seconds=5),
        encoding=_group.encoding,
    )(record_call)
