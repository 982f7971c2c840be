"""Calendars on a real server: a message comes back at the next moment of its calendar, and at none twice."""

from datetime import UTC, datetime, timedelta

from activities import Again, Context, Message, cron, handler
from shared.messages.signals import RunNow
from tests.conftest import Begin, Serve, wait_until
from tests.support.subjects import Subject

HOUR = timedelta(hours=1)


async def test_a_run_before_its_moment_counts_for_it_only_within_early(serve: Serve, kind: str, begin: Begin) -> None:
    """Sooner, it is one more run, and the message is due as before; so it is however often somebody asks for one."""
    noted: list[str] = []
    ahead = datetime.now(UTC) + 2 * HOUR
    calendars = {early: cron(f"{ahead:%M} {ahead:%H} * * *", early=early * HOUR) for early in (0, 3)}

    @handler(kind)
    async def visit(message: Message, ctx: Context) -> Again:
        noted.append(message.id)
        return Again(at=calendars[message.payload])

    async def find_due(message: Subject, version: int) -> float:
        await wait_until(lambda: message.has(version=version), f"cycle {version} has been decided")
        return (await message.status())["due_at_epoch"]

    async with serve(visit, lanes=("short",)):
        strict = await begin(kind, payload=0)
        relaxed = await begin(kind, payload=3)
        due = [await find_due(strict, 1), await find_due(relaxed, 1)]
        for _ in range(2):
            for message in (strict, relaxed):
                await message.send(RunNow())
            version = 2 if len(due) == 2 else 3
            due += [await find_due(strict, version), await find_due(relaxed, version)]

    moment = ahead.replace(second=0, microsecond=0).timestamp()
    assert all(moment <= at <= moment + 60 for at in due[::2])
    assert all(moment <= at - 24 * 3600 <= moment + 60 for at in due[1::2])
    assert len(noted) == 6
