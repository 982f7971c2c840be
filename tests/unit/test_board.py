"""The board as a terminal shows it: what is wrong first, whole in narrow terminals, and one line into a pipe."""

import io
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from activities.idle.due_index import SleepingWorkflow
from shared.errors import ServerUnreachable
from shared.keepers.gates import GateClosure
from starter.insight.board.section import Section
from starter.insight.board.status import BoardStatus, DueSummary, LaneStatus
from starter.insight.board.view import draw
from starter.insight.doctor.checks import warning, wrong
from starter.steering.stored.memo_counts import MessageCount

NOW = time.time()
COUNTS = {
    "active": MessageCount(12_345_678, is_exact=False, age=90.0),
    "paused": MessageCount(0),
    "parked": MessageCount(7),
}
FINE = BoardStatus(
    at=NOW,
    server="temporal.example.org:7233 production",
    answered_at=NOW,
    counts={"feed-of-a-customer-with-a-very-long-name-indeed": COUNTS, "order": COUNTS, "all": COUNTS},
    lanes={"short": LaneStatus(12, 1234, 65.0, 1234.5), "long": LaneStatus()},
    due=DueSummary(
        counts={"1 min": 12_345, "10 min": 100_000, "1 h": 0, "1 d": 5, "later": 1},
        first=[
            SleepingWorkflow(datetime.fromtimestamp(NOW, UTC) + timedelta(hours=2), "order~3", is_pack=True),
            SleepingWorkflow(datetime.fromtimestamp(NOW, UTC) + timedelta(hours=5), "feed:" + "x" * 200, is_pack=False),
        ],
    ),
)
BAD = replace(
    FINE,
    findings=[
        wrong("no worker, and 12 messages alive: nothing runs there", "dormice worker --lane long", "long"),
        warning("7 tasks waiting, the first for 2 min", "start more worker processes", "short"),
    ],
    gone={"4711@machine": NOW - 40},
    parked=[("no such feed", 5), ("[bold]not markup[/bold] \x1b[31m", 2)],
    gates={"host:example.org": GateClosure(NOW, NOW + 3600, "429")},
)


def show(status: BoardStatus, width: int = 100) -> list[str]:
    """Draw a board, and give its lines without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(draw(status, "q or Ctrl-C ends"))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [25, 30, 40, 60, 80, 200])
def test_a_board_fits_its_terminal(width: int) -> None:
    """No line is wider, and no name of a lane, kind or state and no number is cut, however narrow it is."""
    lines = show(BAD, width)
    text = "\n".join(lines).lower()

    assert max(map(len, lines)) <= width
    assert text.count("12,345,678") == 3
    for whole in ("1,234.5", "1,234", "\nshort", "\nlong", "\norder", "active", "parked", "workers", "calls/s"):
        assert whole in text


def test_rows_become_lists_only_where_a_table_has_no_room() -> None:
    """There each number bears the name of its column."""
    wide = "\n".join(show(FINE, 60))
    narrow = "\n".join(show(FINE, 30))

    assert "LANE   WORKERS  WAITING     OLDEST  CALLS/S\nshort       12" in wide
    assert "short\n  workers 12, waiting 1,234,\n" in narrow.replace(" \n", "\n").replace(" \n", "\n")


def test_what_is_wrong_stands_first() -> None:
    """The worst above the rest, each with what to do; what messages say is no markup and no control code."""
    lines = show(BAD)
    text = "\n".join(lines)

    wanted = [
        "wrong    long no worker",
        "do: dormice worker --lane long",
        "warning  short 7 tasks",
        "gone     worker 4711@m",
    ]
    wanted += ["parked   5 messages: no such feed", "parked   2 messages: [bold]not markup[/bold] �[31m"]
    wanted += [
        "gate     host:example.org is closed until ",
        "KIND",
        "LANE",
        "due   12,345 in 1 min",
        "next  order (pack 3) in",
    ]
    positions = [text.index(each) for each in wanted]
    assert positions == sorted(positions)
    assert "(429)" in text


def test_a_board_without_trouble_says_so() -> None:
    """And where numbers come from that are not exact, with their age."""
    text = "\n".join(show(FINE))

    assert "nothing is wrong" in text
    assert "about 12,345,678" in text
    assert "by what the packs last wrote into the index, up to 1 min 30 s ago" in text


def test_a_server_that_is_away_is_the_first_that_is_told() -> None:
    """For how long, why, and when it is asked again; the line into a pipe says the same."""
    away = replace(BAD, fault="the server did not answer", answered_at=NOW - 75, next_try=4.0)
    sentence = "no answer for 1 min 15 s: the server did not answer; asked again in 4.0 s"

    assert show(away)[1] == sentence
    line = away.write_line()
    assert (
        line.index(sentence) < line.index("about 12,345,678 active, 0 paused, 7 parked") < line.index("wrong: long no")
    )
    assert "1,234.5 calls/s" in line
    assert "\n" not in line


async def test_a_section_that_fails_keeps_its_value_and_says_why() -> None:
    """A defect is raised; what the server's absence causes is kept as a sentence until it is over."""
    faults: list[Exception] = [ServerUnreachable("away"), ZeroDivisionError("a defect")]

    async def read() -> int:
        if not section.has_value:
            return 1
        raise faults.pop(0)

    section = Section(read, 0, rest=0.0)
    with pytest.raises(ZeroDivisionError):
        await section.keep(0.0)

    assert (section.value, section.has_value, section.fault) == (1, True, "away")
