"""Host names: each is looked up once at a time, kept as long as its records allow, and no other waits for it."""

import asyncio

import pytest

from activities.http import names
from activities.http.names import HostAddresses, Names


class NameServer:
    """Answers when a test lets it, and counts what it is asked."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds = seconds
        self.asked: list[str] = []
        self.is_answering = asyncio.Event()
        self.failure: OSError | None = None

    async def __call__(self, host: str) -> HostAddresses:
        """See `LookUp`."""
        self.asked.append(host)
        if host.startswith("slow"):
            await self.is_answering.wait()
        if self.failure is not None:
            raise self.failure
        return HostAddresses([f"192.0.2.{len(self.asked)}"], self.seconds)


async def test_a_name_is_kept_as_long_as_its_records_say() -> None:
    """Within that time nobody is asked again; with no time at all, each time."""
    kept = NameServer(seconds=60)
    passing = NameServer(seconds=0)
    of_kept = Names(kept)
    of_passing = Names(passing)

    assert [await of_kept.find("a.example") for _ in range(3)] == [["192.0.2.1"]] * 3
    assert [await of_passing.find("a.example") for _ in range(2)] == [["192.0.2.1"], ["192.0.2.2"]]


async def test_a_name_whose_time_is_over_is_looked_up_anew() -> None:
    """What it led to before is not given any more."""
    server = NameServer(seconds=0.01)
    found = Names(server)

    first = await found.find("a.example")
    await asyncio.sleep(0.02)

    assert await found.find("a.example") != first


async def test_many_that_need_a_name_ask_once_and_one_that_gives_up_leaves_the_others() -> None:
    """The question goes on for those that still wait."""
    server = NameServer()
    found = Names(server)
    asking = [asyncio.create_task(found.find("slow.example")) for _ in range(5)]
    await asyncio.sleep(0)

    asking[0].cancel()
    await asyncio.wait(asking[:1])
    server.is_answering.set()

    assert await asyncio.gather(*asking[1:]) == [["192.0.2.1"]] * 4
    assert server.asked == ["slow.example"]


async def test_a_name_server_that_hangs_keeps_only_those_that_need_its_names() -> None:
    """Another name is found meanwhile."""
    found = Names(NameServer())
    hanging = asyncio.create_task(found.find("slow.example"))
    await asyncio.sleep(0)

    assert await found.find("quick.example") == ["192.0.2.2"]
    assert not hanging.done()

    await found.close()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_a_failure_is_told_to_all_that_wait_and_is_not_kept() -> None:
    """The next one asks again, and may find it."""
    server = NameServer()
    server.failure = OSError(None, "no such name")
    found = Names(server)

    answers = await asyncio.gather(found.find("a.example"), found.find("a.example"), return_exceptions=True)
    assert answers == [server.failure] * 2
    assert len(server.asked) == 1

    server.failure = None
    assert await found.find("a.example") == ["192.0.2.2"]


async def test_no_more_names_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was not asked for longest is forgotten."""
    monkeypatch.setattr(names, "KEPT_MAX", 2)
    server = NameServer()
    found = Names(server)
    for host in ("a", "b", "a", "c", "a", "b"):
        await found.find(host)

    assert server.asked == ["a", "b", "c", "b"]
