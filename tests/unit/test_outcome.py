"""What handlers may return, how it is encoded, and the error when it can't be."""

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.api.outcome import UNCHANGED, Again, Done, Message, Reject, RetryAfter, to_outcome
from shared.errors import InvalidOutcome
from shared.messages.message import REASON_MAX, Outcome

HOUR = timedelta(hours=1)
MOMENT = datetime(2026, 11, 21, 20, tzinfo=UTC)
LIMIT = 32


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (Again(after=HOUR), Outcome("again", after=3600.0)),
        (Again(after=timedelta(0)), Outcome("again", after=0.0)),
        (Again(after=-HOUR), Outcome("again", after=-3600.0)),
        (Again(at=MOMENT), Outcome("again", at=1_795_291_200.0)),
        (Again(at=datetime.fromisoformat("2026-11-21T21:00:00+01:00")), Outcome("again", at=1_795_291_200.0)),
        (Again(after=HOUR, earliest=timedelta(0)), Outcome("again", after=3600.0, earliest=0.0)),
        (Again(after=HOUR, earliest=MOMENT), Outcome("again", after=3600.0, earliest_at=1_795_291_200.0)),
        (Again(at=MOMENT, earliest=HOUR), Outcome("again", at=1_795_291_200.0, earliest=3600.0)),
        (Again(after=HOUR, tolerance=timedelta(0)), Outcome("again", after=3600.0, tolerance=0.0)),
        (Again(after=HOUR, lane="long"), Outcome("again", after=3600.0, lane="long")),
        (Again(after=HOUR, reason="a\nb"), Outcome("again", "a b", after=3600.0)),
        (Again(after=HOUR, reason="x" * 999), Outcome("again", "x" * REASON_MAX, after=3600.0)),
        (
            Again(after=HOUR, payload={"n": 1}),
            Outcome("again", after=3600.0, payload={"n": 1}, is_payload_changed=True),
        ),
        (Again(after=HOUR, payload=None), Outcome("again", after=3600.0, is_payload_changed=True)),
        (
            Again(after=HOUR, payload="x" * 30),
            Outcome("again", after=3600.0, payload="x" * 30, is_payload_changed=True),
        ),
        (Done(), Outcome("done")),
        (Done({"n": 1}), Outcome("done", result={"n": 1})),
        (Reject("gone"), Outcome("reject", "gone")),
        (Reject("gone\nfor good\ud800"), Outcome("reject", "gone for good?")),
        (Reject(""), Outcome("reject", "rejected by its handler")),
    ],
    ids=range(20),
)
def test_what_a_handler_returns_travels_as_an_outcome(returned: object, expected: Outcome) -> None:
    """Delays become seconds, moments seconds since the epoch; nothing that was left out is made up here."""
    assert to_outcome(returned, LIMIT) == expected


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "the handler returned NoneType None; return Again, Done or Reject"),
        (HOUR, "the handler returned timedelta datetime.timedelta(seconds=3600); return Again, Done or Reject"),
        (Done, "the handler returned type <class 'activities.api.outcome.Done'>; return Again, Done or Reject"),
        ("x" * 99, f"the handler returned str '{'x' * 59}…; return Again, Done or Reject"),
        (Again(), "Again needs exactly one of after and at"),
        (Again(after=HOUR, at=MOMENT), "Again needs exactly one of after and at"),
        (
            Again(after=60),  # pyright: ignore[reportArgumentType] — the wrong type is the point
            "Again(after=int 60) is no timedelta; write timedelta(hours=1)",
        ),
        (
            Again(after=HOUR, tolerance="5m"),  # pyright: ignore[reportArgumentType] — the wrong type is the point
            "Again(tolerance=str '5m') is no timedelta; write timedelta(hours=1)",
        ),
        (
            Again(after=HOUR, earliest=0.5),  # pyright: ignore[reportArgumentType] — the wrong type is the point
            "Again(earliest=float 0.5) is no timedelta; write timedelta(hours=1)",
        ),
        (
            Again(at="tomorrow"),  # pyright: ignore[reportArgumentType] — the wrong type is the point
            "Again(at=str 'tomorrow') is no datetime with a time zone; add tzinfo=UTC",
        ),
        (
            Again(at=MOMENT.replace(tzinfo=None)),
            "Again(at=datetime datetime.datetime(2026, 11, 21, 20, 0)) is no datetime with a time zone; add tzinfo=UTC",
        ),
        (
            Again(after=HOUR, earliest=MOMENT.replace(tzinfo=None)),
            (
                "Again(earliest=datetime datetime.datetime(2026, 11, 21, 20, 0)) is no datetime with a time zone; "
                "add tzinfo=UTC"
            ),
        ),
        (Again(after=HOUR, lane="express"), "Again(lane='express') names no lane; use one of short, medium, long"),
        (
            Again(after=HOUR, lane=["long"]),  # pyright: ignore[reportArgumentType] — the wrong type is the point
            "Again(lane=['long']) names no lane; use one of short, medium, long",
        ),
        (
            Again(after=HOUR, payload={1, 2}),
            "the returned payload holds a set, which JSON does not know; return plain JSON",
        ),
        (Again(after=HOUR, payload="x" * 31), "the returned payload is 33 bytes of JSON, the limit is 32"),
        (Done(float("nan")), "the returned result holds nan, which JSON does not know; return plain JSON"),
        (Done([b""]), "the returned result holds a bytes, which JSON does not know; return plain JSON"),
        (Done("\u20ac" * 11), "the returned result is 35 bytes of JSON, the limit is 32"),
    ],
    ids=range(19),
)
def test_an_impossible_outcome_is_refused_in_one_sentence(returned: object, sentence: str) -> None:
    """The author of the handler reads what was returned, what is wrong with it and what to write."""
    with pytest.raises(InvalidOutcome) as caught:
        to_outcome(returned, LIMIT)

    assert str(caught.value) == sentence


def test_retry_after_says_how_long_and_why() -> None:
    """Without a reason of its own it says what was asked."""
    assert RetryAfter(HOUR).delay == HOUR
    assert str(RetryAfter(HOUR)) == "asked to retry after 1:00:00"
    assert str(RetryAfter(HOUR, "status 429\nslow down")) == "status 429 slow down"


def test_retry_after_closes_a_gate_for_its_own_delay_or_another() -> None:
    """What one message has to wait need not be what all have to; without a gate nothing is closed."""
    assert (RetryAfter(HOUR).gate, RetryAfter(HOUR, gate="mail").gate) == ("", "mail")
    assert RetryAfter(HOUR, gate="mail").gate_delay == HOUR
    assert RetryAfter(HOUR, gate="mail", gate_delay=2 * HOUR).gate_delay == 2 * HOUR
    with pytest.raises(InvalidOutcome, match=r"RetryAfter\(gate\): 'a\\n' names no gate"):
        RetryAfter(HOUR, gate="a\n")
    with pytest.raises(InvalidOutcome, match=r"RetryAfter\(gate_delay=int 60\) is no timedelta"):
        RetryAfter(HOUR, gate="mail", gate_delay=60)  # pyright: ignore[reportArgumentType] — the wrong type is the point


def test_retry_after_without_a_timedelta_is_refused_where_it_is_raised() -> None:
    """Bare seconds are a mistake of the handler, told like those in `Again`."""
    with pytest.raises(InvalidOutcome) as caught:
        RetryAfter(60)  # pyright: ignore[reportArgumentType] — the wrong type is the point

    assert str(caught.value) == "RetryAfter(delay=int 60) is no timedelta; write timedelta(hours=1)"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Again(after=HOUR), "reason"),
        (Done(), "result"),
        (Reject("gone"), "reason"),
        (Message(kind="feed", id="a", version=0, lane="short", payload=None), "payload"),
    ],
)
def test_what_handlers_get_and_give_cannot_be_changed_afterwards(value: Any, name: str) -> None:
    """A message seen by one try is the same message for the next."""
    with pytest.raises(FrozenInstanceError):
        setattr(value, name, "other")


def test_an_unchanged_payload_is_told_from_one_that_is_none() -> None:
    """None is a payload too; its stand-in prints as a word."""
    assert Again(after=HOUR).payload is UNCHANGED
    assert repr(UNCHANGED) == "UNCHANGED"
