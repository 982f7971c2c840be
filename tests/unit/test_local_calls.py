"""What a pack lends to its local activity is there as long as the pack keeps it, and no longer."""

import gc

from shared.packs.local_calls import LocalCall, find_call, lend


def test_a_call_is_found_by_its_number() -> None:
    """It is the same object, not a copy; each call has a number of its own."""
    first, second = LocalCall(entries=[1]), LocalCall(entries=[1])

    assert find_call(lend(first)) is first
    assert find_call(lend(second)) is second


def test_a_call_that_nobody_keeps_is_gone() -> None:
    """A replay lends calls that no activity takes; they must not add up."""
    number = lend(LocalCall())
    gc.collect()

    assert find_call(number) is None
