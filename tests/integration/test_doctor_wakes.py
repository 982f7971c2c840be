"""The doctor on packs that wake for each message by itself."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client

from activities import Again, Context, Message, Pack, handler
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.insight.doctor.checks import Finding, Severity
from starter.insight.doctor.wakes import check_kind
from starter.starting.bulk import BulkStarter
from tests.conftest import Serve, wait_until

MESSAGES = 20
APART = timedelta(seconds=0.8)
RHYTHM = MESSAGES * APART


@pytest.mark.long
async def test_a_tolerance_that_lets_few_messages_meet_is_told(
    client: Client, settings: Settings, serve: Serve, message_id: Callable[[], str]
) -> None:
    """Twenty messages are due one after the other, and without a tolerance: the doctor says which one would help."""
    kind = f"kind-{message_id()}"
    pack = Pack(packs=1, coalesce=timedelta(0))
    called = Counter[str]()

    @handler(kind, encoding=pack)
    async def work(message: Message, ctx: Context) -> Again:
        called[message.id] += 1
        return Again(after=RHYTHM, tolerance=timedelta(0))

    begin = datetime.now(UTC) + timedelta(seconds=2)
    requests = (
        (None, Envelope(kind=kind, id=f"m{n}", lane="short", scheduled_at=begin + n * APART)) for n in range(20)
    )

    async def is_told() -> Finding | None:
        return await check_kind(client, kind)

    async with serve(work, lanes=("short",), sandbox=False):
        async for _ in BulkStarter(client, settings, encodings={kind: pack}).start_all(requests):
            pass
        await wait_until(lambda: len(called) == MESSAGES, "each has come back once")
        found = await wait_until(is_told, "the doctor tells it", 30)

    assert (found.level, found.about) == (Severity.WARNING, kind)
    assert "of its 20 messages" in found.seen
    assert "Again(tolerance=…) be 4.0 s" in found.remedy
