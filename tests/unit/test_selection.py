"""Selections: a filter becomes exactly one visibility query."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from starter.steering.selection import STATES, Selection

ALIVE = "WorkflowType = 'message' AND ExecutionStatus = 'Running'"
ENDED = "WorkflowType = 'message' AND ExecutionStatus = 'Completed'"
EIGHT = datetime(2026, 11, 21, 20, tzinfo=UTC)
DUE_BEFORE_EIGHT = "(DueAt < '2026-11-21T20:00:00+00:00' OR DueAt IS NULL)"


@pytest.mark.parametrize(
    ("selection", "query"),
    [
        (Selection(), ALIVE),
        (Selection(kind="feed"), f"{ALIVE} AND Kind = 'feed'"),
        (Selection(lane="medium"), f"{ALIVE} AND Lane = 'medium'"),
        (Selection(state="active"), f"{ALIVE} AND State = 'active'"),
        (Selection(state="paused"), f"{ALIVE} AND State = 'paused'"),
        (Selection(state="parked"), f"{ALIVE} AND State = 'parked'"),
        (Selection(state="done"), f"{ENDED} AND State = 'done'"),
        (Selection(state="stopped"), f"{ENDED} AND State = 'stopped'"),
        (Selection(due_before=EIGHT), f"{ALIVE} AND {DUE_BEFORE_EIGHT}"),
        (
            Selection(due_before=EIGHT.astimezone(timezone(timedelta(hours=5)))),
            f"{ALIVE} AND {DUE_BEFORE_EIGHT}",
        ),
        (
            Selection(kind="feed", lane="short", state="active", due_before=EIGHT),
            f"{ALIVE} AND Kind = 'feed' AND Lane = 'short' AND State = 'active' AND {DUE_BEFORE_EIGHT}",
        ),
    ],
)
def test_a_filter_becomes_one_query(selection: Selection, query: str) -> None:
    """Every given field narrows it; ended messages are looked for only when their state is asked for."""
    assert selection.to_query() == query


@pytest.mark.parametrize(
    ("kind", "quoted"),
    [("it's", r"'it\'s'"), ("a' OR Kind != 'b", r"'a\' OR Kind != \'b'"), ("back\\", r"'back\\'")],
)
def test_a_value_never_ends_its_own_quotes(kind: str, quoted: str) -> None:
    """What a person types is a value, never a piece of the query."""
    assert Selection(kind=kind).to_query() == f"{ALIVE} AND Kind = {quoted}"


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        (Selection(lane="fast"), "--lane is 'fast'; use one of short, medium, long"),
        (Selection(state="asleep"), f"--state is 'asleep'; use one of {', '.join(STATES)}"),
    ],
)
def test_a_lane_or_state_that_does_not_exist_is_refused(selection: Selection, sentence: str) -> None:
    """A typing mistake selects nothing by accident: it is an error that says what to use."""
    with pytest.raises(ValueError, match="use one of") as caught:
        selection.to_query()

    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("selection", "is_everything"),
    [
        (Selection(), True),
        (Selection(kind="feed"), False),
        (Selection(lane="short"), False),
        (Selection(state="active"), False),
        (Selection(due_before=EIGHT), False),
    ],
)
def test_only_a_filter_without_any_field_means_everything(*, selection: Selection, is_everything: bool) -> None:
    """The guard against steering all messages by mistake looks at this."""
    assert (selection == Selection()) is is_everything
