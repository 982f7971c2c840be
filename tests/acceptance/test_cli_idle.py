"""The commands about idle capacity, as people type them."""

from dataclasses import replace

import pytest
from temporalio.client import Client

from shared.errors import InvalidSetting
from shared.settings import Settings
from tests.acceptance.conftest import Run
from tests.conftest import Serve, wait_until
from worker.lanes.starting import begin_leaders, check_lanes

pytestmark = pytest.mark.timeout(120)


async def test_idle_capacity_is_switched_limited_and_told(run: Run, serve: Serve) -> None:
    """What was said before a worker is there is kept for it; limits that are not named stay as they were."""
    before = await run("idle")
    switched = await run("idle", "on", "--lane", "short", "--json")
    await run("idle", "limits", "--lane", "short", "--reserve", "0.5", "--quiet", "1s")
    limited = await run("idle", "limits", "--lane", "short", "--pack-messages", "7", "--json")
    waiting = await run("idle", "--json", "--lane", "short")

    assert [line.split()[:3] for line in before.out.splitlines()[1:]] == [
        [lane, "off", "-"] for lane in ("short", "medium", "long")
    ]
    assert (switched.code, switched.err) == (0, "idle capacity of short: on\n")
    assert switched.document == {"lane": "short", "is_on": True}
    assert limited.document == {"lane": "short", "limits": {"pack_messages": 7}}
    assert (waiting.document["is_on"], waiting.document["doing"]) == (False, "waits for a worker of the lane")
    async with serve(lanes=("short",)):
        await wait_until(lambda: _is_on(run), "the worker has heard of it")
        now = await run("idle", "status", "--json", "--lane", "short")
        await run("idle", "off")

    assert now.document["limits"] == {
        "reserve": 0.5,
        "quiet_seconds": 1.0,
        "pack_messages": 7,
        "reach_seconds": 900.0,
    }
    assert now.document["pulled"]["messages"] == 0


async def _is_on(run: Run) -> bool:
    return (await run("idle", "status", "--json", "--lane", "short")).document["is_on"]


async def test_what_is_on_by_the_settings_stays_off_once_a_person_has_switched_it_off(
    run: Run, serve: Serve, client: Client, settings: Settings
) -> None:
    """The first worker of a lane begins its leader; those that come later leave it as it is."""
    wanted = replace(settings, idle_lanes=("short", "long"))
    async with serve(lanes=("short",)):
        await begin_leaders(client, wanted, ["short"])
        await wait_until(lambda: _is_on(run), "it is on")
        await run("idle", "off", "--lane", "short")

        async def is_off() -> bool:
            return not await _is_on(run)

        await wait_until(is_off, "it is off")
        await begin_leaders(client, wanted, ["short"])
        assert not await _is_on(run)
    assert (await run("idle", "status", "--json", "--lane", "long")).document["doing"] == ""


def test_a_lane_that_does_not_exist_is_refused() -> None:
    """It names the setting, the lane and what there is."""
    with pytest.raises(InvalidSetting, match=r"^idle_lanes: there is no lane 'fast'; use short, medium, long$"):
        check_lanes(Settings(idle_lanes=("short", "fast")))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("limits",), "idle limits: none is given; give for example --reserve 0.5"),
        (("limits", "--reserve", "2"), "--reserve: is 2.0; give a number from 0 to 0.95"),
        (("limits", "--quiet", "9d"), "--quiet: is 777600.0; give a number from 0.5 to 3600"),
        (("limits", "--pack-messages", "9000"), "--pack-messages: is 9000; give a number from 1 to 500"),
        (("on", "--lane", "fast"), "Invalid value for '--lane': 'fast' is not one of"),
    ],
)
async def test_what_cannot_be_meant_is_refused(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    """One sentence, exit code 2, and nothing is sent."""
    ran = await run("idle", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dormice: {sentence}")
    assert (await run("idle", "status", "--json", "--lane", "short")).document["doing"] == ""
