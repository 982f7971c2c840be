"""The operations page's pure parts: what is a concern, where bars stand, and what is shown of what comes late."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from shared.errors import RetryLater
from shared.keepers.gates import GateClosure
from starter.extras.web.page.plot import HEIGHT, WIDTH, plot_forecast
from starter.extras.web.page.snapshot import Part, Snapshot, read_part
from starter.extras.web.page.template import message_path, show_moment, with_query
from starter.extras.web.page.views.message import list_verbs
from starter.extras.web.page.views.overview import find_concerns
from starter.extras.web.page.views.parked import group_by_reason
from starter.insight.doctor.checks import NOT_LOOKED_AT, Finding, Severity, fine, unknown, warning, wrong
from starter.insight.due_counts import PackDueCounts
from starter.insight.forecast import Forecast, LaneCapacity, find_overload
from starter.steering.pages import MessagePage
from starter.steering.status.listing import ListedMessage, ParkedSelection, describe_left_out
from starter.steering.stored.memo_counts import MessageCount

EDGES = [100.0, 900.0, 1800.0, 2700.0]
NOTHING = MessagePage([])


def park(reason: str, kind: str = "feed", message_id: str = "a") -> ListedMessage:
    """Make a parked message."""
    fields = {"lane": "short", "state": "parked", "due_at": None, "earliest_at": None}
    return ListedMessage(kind=kind, id=message_id, parked_reason=reason, **fields)  # pyright: ignore[reportArgumentType] — a table of fields


def foresee(counts: list[int], per_second: float | None, workers: int = 1) -> Forecast:
    """Make a forecast of one lane."""
    capacity = LaneCapacity(per_second=per_second, workers=workers, measured=workers)
    overload = find_overload("short", EDGES, counts, capacity)
    return Forecast(
        edges=EDGES,
        due={"short": counts},
        lanes={"short": counts, "long": [0, 0, 0]},
        capacity={"short": capacity, "long": LaneCapacity(per_second=None)},
        packed=PackDueCounts(due={}, packs=0),
        overloads=(overload,) if overload else (),
    )


def test_what_is_wrong_comes_first_and_what_is_fine_not_at_all() -> None:
    """With parked messages, gates and overloads among the findings; what has a cause of its own is left out."""
    findings = [
        fine("all well"),
        unknown("nobody knows"),
        unknown(f"{NOT_LOOKED_AT}, see workers"),
        warning("slow", about="long", check="backlog"),
        wrong("gone", "dormice worker", "short", "workers"),
    ]
    parked = MessagePage([park("status 404"), park("status 404"), park("status 410")])
    counts = {"parked": MessageCount(3)}
    gates = {"host:a": GateClosure(0, 1, "busy")}

    found = find_concerns(findings, counts, parked, gates, foresee([0, 9000, 0], 1.0))

    assert [each.level for each in found] == ["wrong", "warning", "warning", "warning", "warning", "unknown"]
    assert (found[0].title, found[0].about, found[0].link) == ("Workers missing", "short", "/workers")
    sentences = "\n".join(each.sentence for each in found)
    assert "3 messages parked; most often: status 404 (2), status 410 (1)" in sentences
    assert "1 gate closed (host:a: busy)" in sentences
    assert "more is due than" in sentences


def test_what_closed_gates_hold_is_a_count_of_its_own() -> None:
    """In the sentence about the gates, for all lanes together."""
    gates = {"kind:a": GateClosure(0, 1, "down")}
    held = replace(foresee([0, 0, 0], 1.0), gates=gates, gated={"short": {"kind:a": 40}, "long": {"kind:a": 2}})
    (found,) = find_concerns([], {"parked": MessageCount(0)}, NOTHING, gates, held)

    assert found.sentence == "1 gate closed (kind:a: down); 42 messages held"
    assert (held.count_gated(lane="short"), held.count_gated(gate="kind:a"), held.count_gated()) == (40, 42, 42)


def test_without_anything_wrong_there_is_no_concern() -> None:
    """Also not while nothing is known: then the page says what has not answered."""
    assert find_concerns([fine("well")], {"parked": MessageCount(0)}, NOTHING, {}, foresee([1, 1, 1], 5.0)) == []
    assert find_concerns([], None, None, None, None) == []


def test_a_count_that_is_about_says_so() -> None:
    """Many packs are counted by their memos."""
    (found,) = find_concerns([], {"parked": MessageCount(1200, is_exact=False, age=60)}, NOTHING, {}, None)

    assert found.sentence == "about 1,200 messages parked"


def test_bars_stand_in_their_intervals_and_are_as_high_as_their_rates() -> None:
    """The first interval, which is short, counts as a whole one; a lane with nothing due has no plot."""
    (plot,) = plot_forecast(foresee([90, 180, 0], None))

    assert (plot.lane, plot.total, plot.top, plot.capacity_y) == ("short", 270, "180 in 15 min", None)
    assert [bar.height for bar in plot.bars] == [HEIGHT / 2, HEIGHT, 0]
    assert plot.bars[0].x == 0
    assert plot.bars[-1].x + plot.bars[-1].width == pytest.approx(WIDTH, abs=2)
    assert plot.bars[1].title.endswith("for 15 min: 180 due")


@pytest.mark.parametrize(("per_second", "line", "is_over"), [(0.1, 50.0, True), (0.2, 0.0, False), (5.0, None, False)])
def test_the_capacity_is_a_line_unless_it_is_far_above(per_second: float, line: float | None, is_over: bool) -> None:  # noqa: FBT001 — a table
    """What a lane can't do in its interval is marked."""
    (plot,) = plot_forecast(foresee([0, 180, 0], per_second))

    assert plot.capacity_y == (None if line is None else pytest.approx(line))
    assert [bar.is_over for bar in plot.bars] == [False, is_over, False]


async def test_a_snapshot_is_read_once_for_all_who_look_and_shows_the_last_one_when_the_next_is_late() -> None:
    """Who comes meanwhile waits for the same reading; what fails says why beside the value from before."""
    reads = Counter[str]()
    gate = asyncio.Event()

    async def read() -> int:
        reads["all"] += 1
        if reads["all"] == 2:
            await gate.wait()
            raise RetryLater("the server is away; try again")
        return reads["all"]

    snapshot = Snapshot(read, fresh=60)
    first = await asyncio.gather(*(snapshot.read() for _ in range(5)))
    snapshot.forget()
    late = await snapshot.read(0.01)
    gate.set()
    failed = await snapshot.read()

    assert [part.value for part in first] == [1] * 5
    assert reads["all"] == 2
    assert (late.value, late.problem.partition(";")[0]) == (1, "nothing came within 0.01 s")
    assert (failed.value, failed.problem.rpartition(";")[0]) == (1, "the server is away; try again")


async def test_a_part_that_fails_or_does_not_come_is_a_sentence() -> None:
    """So one view shows its other parts."""

    async def fail() -> int:
        raise RetryLater("it is away; try again")

    async def hang() -> int:
        await asyncio.Event().wait()
        return 1

    assert await read_part(fail()) == Part(None, problem="it is away; try again")
    assert await read_part(hang(), 0.01) == Part(None, problem="nothing came within 0.01 s; look again in a while")


def test_parked_messages_are_grouped_by_reason() -> None:
    """The most frequent reason first, with its kinds."""
    groups = group_by_reason([park("a", "x"), park("b", "y"), park("b", "x"), park("b", "x")])

    assert [(group.reason, group.count, group.kinds) for group in groups] == [("b", 3, ["x", "y"]), ("a", 1, ["x"])]
    assert ParkedSelection(reason="04").keeps(park("status 404"))
    assert not ParkedSelection(reason="410").keeps(park("status 404"))


def test_a_group_of_reasons_with_values_of_their_own_shows_one_as_example() -> None:
    """Its reason, as a filter, selects the messages of the group and no others."""
    messages = [park(f"order {n} has no address") for n in range(40)] + [park("order book is full")]
    group, other = group_by_reason(messages)
    filtered = ParkedSelection(reason=group.reason)

    assert (group.reason, group.count, group.example) == ("order … has no address", 40, "order 0 has no address")
    assert (other.reason, other.count, other.example) == ("order book is full", 1, "order book is full")
    assert [message for message in messages if filtered.keeps(message)] == messages[:40]


def test_the_overview_names_the_groups_of_reasons() -> None:
    """And not as many reasons as there are messages."""
    parked = MessagePage([park(f"sent {n}, no answer") for n in range(40)])
    (found,) = find_concerns([], {"parked": MessageCount(40)}, parked, {}, None)

    assert found.sentence == "40 messages parked: sent …, no answer (40)"


def test_addresses_are_quoted_and_moments_have_their_exact_time() -> None:
    """Whatever an id holds."""
    assert message_path("feed", "a/b:c?d", "stop") == "/messages/feed/a%2Fb%3Ac%3Fd/stop"
    assert with_query("/messages", {"kind": "a&b", "lane": ""}, cursor=None) == "/messages?kind=a%26b"
    assert 'title="1970-01-01 00:00:00 UTC"' in show_moment(0.0)
    assert show_moment(None) == "-"
    assert describe_left_out([]) == ""
    assert describe_left_out(["no worker", "no worker"]) == "2 packs are missing: no worker"


def test_a_paused_message_can_be_resumed_and_another_one_paused() -> None:
    """Nobody is offered what would do nothing."""
    assert "resume" in list_verbs("paused")
    assert "pause" not in list_verbs("paused")
    assert "resume" not in list_verbs("active")


def test_severities_are_ordered_by_how_bad_they_are() -> None:
    """The page shows them in the reverse order of the doctor's list."""
    found = find_concerns([Finding(level, "x", check="y") for level in Severity], None, None, None, None)

    assert [each.level for each in found] == ["wrong", "unreachable", "warning", "unknown"]
