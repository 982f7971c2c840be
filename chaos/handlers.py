"""The handlers of a chaos run: each call is written to the ledger before and after its work.

Worker processes load them by name, both with the present code and with an older version.
"""

import asyncio
import os
import random
from datetime import timedelta
from pathlib import Path
from typing import cast

from activities import Again, Context, Done, Message, handler
from chaos.groups import GROUPS, NUMBER_OF, TOLERANCE_SECONDS, Group
from chaos.ledger import LEDGER_VARIABLE, Ledger, What

FAILED_SHARE = 0.005
QUICK_SECONDS = (0.02, 0.25)
SLOW_SECONDS = (0.5, 2.0)
ATTEMPTS_MAX = 10_000
"""Large enough that no message is parked: on `medium`, each call that is lost with its worker counts as an attempt."""

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
    try:
        await _work(group)
    except BaseException:
        note(What.FAILED)
        raise
    if group.back_after[1] == 0:
        note(What.DONE)
        return Done()
    delay = round(random.uniform(*group.back_after), 3)
    note(What.AGAIN, delay)
    tolerance = timedelta(seconds=TOLERANCE_SECONDS if group.packs else 0)
    return Again(after=timedelta(seconds=delay), tolerance=tolerance)


async def _work(group: Group) -> None:
    is_slow = random.random() < group.slow_share
    await asyncio.sleep(random.uniform(*(SLOW_SECONDS if is_slow else QUICK_SECONDS)))
    if random.random() < FAILED_SHARE:
        raise FailedOnPurpose("this call fails on purpose")


for _group in GROUPS:
    globals()[_group.kind.replace("-", "_")] = handler(
        _group.kind,
        lane=_group.lane,
        max_attempts=ATTEMPTS_MAX,
        backoff=timedelta(seconds=0.5),
        backoff_max=timedelta(seconds=5),
        encoding=_group.encoding,
    )(record_call)
