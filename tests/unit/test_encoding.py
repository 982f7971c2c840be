"""Encodings: what a handler may declare, and the sentence it gets when it may not."""

from datetime import timedelta
from typing import Any

import pytest

from shared.errors import InvalidHandler
from shared.messages.encoding import PACKS_MAX, SIZE_MAX, Pack


@pytest.mark.parametrize(
    ("packs", "size", "coalesce"),
    [
        (1, 1, timedelta(0)),
        (100, 1000, timedelta(minutes=5)),
        (PACKS_MAX, SIZE_MAX, timedelta(days=30)),
    ],
)
def test_a_pack_takes_every_value_within_its_bounds(packs: int, size: int, coalesce: timedelta) -> None:
    """The bounds themselves are values too."""
    declared = Pack(packs=packs, size=size, coalesce=coalesce)

    assert (declared.packs, declared.size, declared.coalesce) == (packs, size, coalesce)


@pytest.mark.parametrize(
    ("pack", "sentence"),
    [
        ({"packs": 0}, "Pack(packs=0): give a number from 1 to 1,000,000"),
        ({"packs": -1}, "Pack(packs=-1): give a number from 1 to 1,000,000"),
        ({"packs": PACKS_MAX + 1}, "Pack(packs=1000001): give a number from 1 to 1,000,000"),
        ({"size": 0}, "Pack(size=0): give a number from 1 to 5,000"),
        ({"size": SIZE_MAX + 1}, "Pack(size=5001): give a number from 1 to 5,000"),
        ({"coalesce": timedelta(seconds=-1)}, "Pack(coalesce=-1 day, 23:59:59): give no time or more"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(pack: dict[str, Any], sentence: str) -> None:
    """The sentence names the field, what it was and what to write."""
    with pytest.raises(InvalidHandler) as refused:
        Pack(**pack)

    assert str(refused.value) == sentence
