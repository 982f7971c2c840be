"""The watchdog: a consumer that stopped without an error is distinguished from one that has a reason to stand still."""

from datetime import timedelta

import pytest

from starter.bridge.watchdog import Watchdog

PATIENCE = timedelta(seconds=60)


def watch(dog: Watchdog, *moments: float, lag: int = 10) -> list[bool]:
    """Look at moments at which nothing moves without an excuse; gives those at which it would end the process."""
    return [dog.look(now, lag=lag, in_flight=0, is_paused=False, is_blocked=False) != "" for now in moments]


def test_a_consumer_that_stopped_ends_the_process_after_its_patience() -> None:
    """Not a moment before, counted from the first look that found nothing moving."""
    assert watch(Watchdog(PATIENCE), 1000, 1015, 1030, 1045, 1059.9, 1060) == [False] * 5 + [True]


def test_the_sentence_says_how_long_how_much_and_what_to_do() -> None:
    """It is the last one of the process."""
    dog = Watchdog(PATIENCE)
    watch(dog, *range(0, 60, 10))

    assert dog.look(60, lag=12_345, in_flight=0, is_paused=False, is_blocked=False) == (
        "consumer: no record was received, acknowledged or committed for 60 s although 12,345 wait "
        "and nothing holds them back, so it has stopped without an error; start this process again"
    )


@pytest.mark.parametrize(
    ("lag", "in_flight", "is_paused", "is_blocked"),
    [
        pytest.param(0, 0, False, False, id="nothing waits"),
        pytest.param(10, 1, False, False, id="a record is under way"),
        pytest.param(10, 0, True, False, id="a partition is paused"),
        pytest.param(10, 0, False, True, id="a partition is blocked"),
    ],
)
def test_a_reason_to_be_still_is_no_stop(lag: int, in_flight: int, is_paused: bool, is_blocked: bool) -> None:  # noqa: FBT001 — a table's columns
    """However long it lasts, and patience begins anew afterwards."""
    dog = Watchdog(PATIENCE)
    watch(dog, *range(0, 60, 10))

    excused = [
        dog.look(now, lag=lag, in_flight=in_flight, is_paused=is_paused, is_blocked=is_blocked)
        for now in range(60, 6000, 10)
    ]

    assert set(excused) == {""}
    assert watch(dog, *range(6000, 6061, 10)) == [False] * 6 + [True]


def test_progress_begins_the_patience_anew() -> None:
    """A record now and then is enough, however much waits."""
    dog = Watchdog(PATIENCE)
    for start in range(0, 600, 50):
        assert not any(watch(dog, *range(start, start + 50, 10)))
        dog.note_progress()

    assert watch(dog, *range(600, 661, 10)) == [False] * 6 + [True]


def test_a_process_that_stood_still_itself_does_not_blame_its_consumer() -> None:
    """An hour between two looks counts for a quarter of the patience: the consumer had no time to move either."""
    dog = Watchdog(PATIENCE)

    assert watch(dog, 0, 3600) == [False, False]
    assert watch(dog, 3615, 3630, 3645) == [False, False, True]
