"""Resources: opened once for all handlers of a process, closed once at its end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from activities.api.resources import Opener, Resources
from shared.settings import Settings

SETTINGS = Settings()


class Pool:
    """Notes when it is opened and closed, and by which task; `open` is what handlers give."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.tasks: set[object] = set()
        self.failures = 0
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.open: Opener[Pool] = asynccontextmanager(self._open)

    async def _open(self, _settings: Settings) -> AsyncGenerator["Pool"]:
        await self.may_open.wait()
        if self.failures:
            self.failures -= 1
            raise OSError("no room")
        self.tasks.add(asyncio.current_task())
        self.told.append("opened")
        yield self
        self.tasks.add(asyncio.current_task())
        self.told.append("closed")


@pytest.fixture
def pool() -> Pool:
    """A pool that nobody has opened."""
    return Pool()


async def test_all_share_what_the_first_has_opened(pool: Pool) -> None:
    """However many ask at once; it is closed with the block, by the task that opened it."""
    async with Resources() as resources:
        found = await asyncio.gather(*(resources.get(pool.open, SETTINGS) for _ in range(20)))
        assert pool.told == ["opened"]

    assert {id(each) for each in found} == {id(pool)}
    assert pool.told == ["opened", "closed"]
    assert len(pool.tasks) == 1


async def test_what_could_not_be_opened_is_opened_anew_at_the_next_use(pool: Pool) -> None:
    """Each of those who asked gets the error itself."""
    pool.failures = 1
    async with Resources() as resources:
        first = await asyncio.gather(*(resources.get(pool.open, SETTINGS) for _ in range(2)), return_exceptions=True)
        second = await resources.get(pool.open, SETTINGS)

    assert [str(each) for each in first] == ["no room"] * 2
    assert second is pool


async def test_a_caller_that_is_cut_off_ends_it_for_nobody_else(pool: Pool) -> None:
    """The opening goes on."""
    pool.may_open.clear()
    async with Resources() as resources:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await resources.get(pool.open, SETTINGS)
        pool.may_open.set()

        assert await resources.get(pool.open, SETTINGS) is pool

    assert pool.told == ["opened", "closed"]


async def test_nothing_is_opened_that_nobody_uses(pool: Pool) -> None:
    """A worker without such handlers has nothing to close."""
    async with Resources():
        pass

    assert pool.told == []
