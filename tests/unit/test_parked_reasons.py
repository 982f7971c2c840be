"""Reasons of parked messages: those with the same words are one group, whatever values stand in them."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages.message import REASON_MAX
from starter.steering.status.reasons import ANYTHING, VALUES_MAX, group_reasons, holds

MANY = range(40)
TEXTS = st.text(st.sampled_from("ab 7'\"`:/.,@…%"), max_size=30)


@pytest.mark.parametrize(
    ("reasons", "group"),
    [
        ([f"sent, {n}" for n in MANY], "sent, …"),
        ([f"order {n} of eva{n}@example.org is unpaid" for n in MANY], "order … of … is unpaid"),
        ([f"https://example.org/{n}?q=1 answered nothing" for n in MANY], "… answered nothing"),
        ([f"payload.port: is 'smtp-{n}'; give a number" for n in MANY], "payload.port: is …; give a number"),
        ([f'no "{chr(97 + n)}" in the index' for n in range(20)], "no … in the index"),
        ([f"can't find {uuid.UUID(int=n)}, isn't there" for n in MANY], "can't find …, isn't there"),
        ([f"due 2026-11-21T20:{n}:00Z, too late" for n in range(10, 50)], "due …, too late"),
        ([f"/data/{chr(97 + n)}/in is missing" for n in range(20)], "… is missing"),
        (
            [f"no whole answer (Cannot connect to host {chr(97 + n)}.example.org:443 ssl:default)" for n in range(20)],
            "no whole answer (Cannot connect to host …:443 ssl:default)",
        ),
        ([f"took {n}.5 s, {n} %" for n in MANY], "took … s, … %"),
    ],
)
def test_reasons_with_values_of_their_own_are_one_group(reasons: list[str], group: str) -> None:
    """Numbers, ids, addresses, hosts, moments, paths and what is quoted: each shows as an ellipsis."""
    assert group_reasons(reasons) == [group] * len(reasons)


def test_values_that_come_again_are_told_apart_while_they_are_few() -> None:
    """Codes of a status are a cause each; the ids beside them are not, and neither are many codes."""
    few = [f"status {status} for page {n}" for status in (404, 410) for n in range(10)]
    many = [f"status {400 + n} again" for n in range(VALUES_MAX + 1) for _ in range(10)]

    assert group_reasons(few) == ["status 404 for page …"] * 10 + ["status 410 for page …"] * 10
    assert set(group_reasons(many)) == {"status … again"}


def test_fields_are_told_apart_though_they_have_dots() -> None:
    """They say what to mend."""
    reasons = [f"payload.{name}: is missing" for name in ("url", "min", "max", "to", "key", "port", "host")]

    assert group_reasons(reasons) == reasons


def test_what_is_the_same_in_all_of_a_group_is_shown() -> None:
    """A single reason is its own group, and a count of attempts says something."""
    assert group_reasons(["attempt 5 of 5: boom 17"]) == ["attempt 5 of 5: boom 17"]
    assert set(group_reasons([f"attempt 5 of 5: boom {n}" for n in MANY])) == {"attempt 5 of 5: boom …"}
    assert group_reasons(["it is bad", "it is worse", ""]) == ["it is bad", "it is worse", ""]


def test_a_long_word_is_looked_at_once() -> None:
    """The longest reason of one word takes no longer than its characters."""
    reasons = ["x" * REASON_MAX, "-." * (REASON_MAX // 2), "'" * REASON_MAX]

    assert group_reasons(reasons * 200) == reasons * 200


@given(st.lists(TEXTS, max_size=8))
def test_a_group_as_a_filter_selects_all_its_reasons(reasons: list[str]) -> None:
    """Whatever they hold, and each reason has a group."""
    groups = group_reasons(reasons)

    assert len(groups) == len(reasons)
    assert all(holds(reason, group) for reason, group in zip(reasons, groups, strict=True))


@given(TEXTS, TEXTS)
def test_a_text_without_an_ellipsis_is_held_as_it_is(reason: str, wanted: str) -> None:
    """Only the ellipsis stands for something else."""
    assert holds(reason, wanted) == (wanted in reason) or ANYTHING in wanted
